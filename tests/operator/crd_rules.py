"""What the CRDs demand, read from their schemas: each constraint, and manifests at its bound.

`constraints` walks a schema and yields everything that can refuse a manifest; a keyword that it
does not know fails, so that a new kind of constraint is not passed over (nor a pattern, which would
be refused with a regular expression: a rule has words for it). `rows` makes the manifests of those
whose bounds a schema gives: the last value that is taken, and the first that is not. Asked by
test_crd_rules_api_server.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

ROOT: Final = Path(__file__).parents[2]
SPEC: Final = "spec"
ITEM: Final = "[]"
VALUE: Final = "{}"
RULE: Final = "rule"
"""The keyword of a CEL rule; its message is the constraint's value."""

_NO_BOUND: Final = {
    *("description", "default", "properties", "items", "additionalProperties"),
    *("anyOf", "x-kubernetes-list-map-keys"),
}
_OTHER_TYPES: Final[Mapping[str, Any]] = {
    "string": 7,
    "integer": "seven",
    "boolean": "yes",
    "object": "none",
    "array": "none",
}

Schema: TypeAlias = Mapping[str, Any]
Place: TypeAlias = tuple[str, ...]
"""A path from the root; `ITEM` stands for an item of a list, `VALUE` for a value of a map."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """One thing that the schema of a kind demands at a path.

    Attributes:
        kind: Of the objects.
        path: Where.
        keyword: The schema's, or `RULE`.
        value: What it says; the name of the field where that is required, the message of a rule.
    """

    kind: str
    path: Place
    keyword: str
    value: Any = field(hash=False)

    @property
    def key(self) -> str:
        """Its name in a table and in a test's report."""
        where = ".".join(self.path).replace(".[]", "[]").replace(".{}", "{}")
        named = self.keyword in (RULE, "required")
        return f"{self.kind} {where} {self.keyword}" + (f" {self.value}" if named else "")

    @property
    def where(self) -> str:
        """The field that a refusal names, when the manifest is one of `placed`."""
        path = (*self.path, self.value) if self.keyword == "required" else self.path
        return field_name(path)

    @property
    def words(self) -> str:
        """What a refusal says of it."""
        if self.keyword == RULE:
            return str(self.value)
        if self.value == "int32":
            return "should be less than or equal to"
        return _WORDS[self.keyword].format(self.value)


_WORDS: Final[Mapping[str, str]] = {
    "type": "must be of type",
    "enum": "Unsupported value",
    "format": "must be of type",
    "minimum": "should be greater than or equal to {}",
    "maximum": "should be less than or equal to {}",
    "minLength": "should be at least {} chars long",
    "maxLength": "may not be more than {} bytes",
    "minItems": "should have at least {} items",
    "maxItems": "must have at most {} items",
    "minProperties": "should have at least {} properties",
    "maxProperties": "must have at most {} items",
    "x-kubernetes-list-type": "Duplicate value",
    "x-kubernetes-int-or-string": "must validate at least one schema (anyOf)",
    "required": "Required value",
}


def field_name(path: Place) -> str:
    """Return a path as the API server spells it, of first items and of keys `a`."""
    return ".".join(path).replace(".[]", "[0]").replace("{}", "a")


def schemas() -> dict[str, Schema]:
    """Return the schema of each kind that the chart installs."""
    found = {}
    for file in sorted((ROOT / "crds").iterdir()):
        crd = yaml.safe_load(file.read_text("utf-8"))["spec"]
        (version,) = crd["versions"]
        found[crd["names"]["kind"]] = version["schema"]["openAPIV3Schema"]
    return found


def constraints(kind: str, schema: Schema) -> Iterator[Constraint]:
    """Yield what a kind's schema demands of manifests: of the root and of all below spec."""
    yield from _own(kind, {key: schema[key] for key in schema if key != "type"}, ())
    yield from _walk(kind, schema["properties"][SPEC], (SPEC,))


def _walk(kind: str, schema: Schema, path: Place) -> Iterator[Constraint]:
    yield from _own(kind, schema, path)
    for name, inner in schema.get("properties", {}).items():
        yield from _walk(kind, inner, (*path, name))
    for keyword, step in (("items", ITEM), ("additionalProperties", VALUE)):
        if keyword in schema:
            yield from _walk(kind, schema[keyword], (*path, step))


def _own(kind: str, schema: Schema, path: Place) -> Iterator[Constraint]:
    for keyword, value in schema.items():
        if keyword == "required":
            yield from (Constraint(kind, path, keyword, name) for name in value)
        elif keyword == "x-kubernetes-validations":
            yield from (Constraint(kind, path, RULE, each["message"]) for each in value)
        elif keyword in BOUNDS:
            yield Constraint(kind, path, keyword, value)
        elif keyword not in _NO_BOUND:
            raise AssertionError(
                f"{kind} {'.'.join(path)}: no manifest tries the keyword {keyword}"
            )


# --- manifests ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rows:
    """Manifests for one constraint: what is taken, and what is refused for it.

    Attributes:
        accepted: Whole specs.
        refused: Whole specs.
        before: The spec that is there already, where the constraint is about changes.
        names: Whether accepted and refused are names of objects instead.
    """

    accepted: tuple[Any, ...]
    refused: tuple[Any, ...]
    before: Mapping[str, Any] | None = None
    names: bool = False


@dataclass(frozen=True, slots=True)
class Samples:
    """How to write manifests of a kind.

    Attributes:
        schema: The kind's.
        least: By path, the spec around it: that of the longest path that leads to it holds.
        texts: By path, a text of so many characters; others are so many times `a`.
    """

    schema: Schema
    least: Mapping[str, Mapping[str, Any]]
    texts: Mapping[str, Callable[[int], str]] = field(default_factory=dict)

    def placed(self, path: Place, value: Any) -> dict[str, Any]:
        """Return a spec with *value* at a path, and around it what is required."""
        name = field_name(path)
        longest = max((key for key in self.least if name.startswith(key)), key=len)
        around = copy.deepcopy(dict(self.least[longest]))
        made = self._around(self.schema["properties"][SPEC], path, 1, value)
        spec: dict[str, Any] = laid_over(around, made)
        return spec

    def _around(self, schema: Schema, path: Place, depth: int, value: Any) -> Any:
        if depth == len(path):
            return value
        step = path[depth]
        if step == ITEM:
            return [self._around(schema["items"], path, depth + 1, value)]
        if step == VALUE:
            return {"a": self._around(schema["additionalProperties"], path, depth + 1, value)}
        beside = {
            name: self.sample(schema["properties"][name], (*path[:depth], name))
            for name in schema.get("required", ())
            if depth > 1  # beside the fields of spec there is what `least` says
        }
        inner = self._around(schema["properties"][step], path, depth + 1, value)
        return {**beside, step: inner}

    def sample(self, schema: Schema, path: Place, nth: int = 0) -> Any:
        """Return the *nth* of the smallest values that a schema takes."""
        if path == (SPEC,):
            return copy.deepcopy(dict(self.least[""]))
        if "enum" in schema:
            return schema["enum"][nth % len(schema["enum"])]
        match schema.get("type"):
            case "string":
                least = max(1, schema.get("minLength", 0))
                return f"a{nth}" if nth else self.text(path, least)
            case "array":
                return [self.sample(schema["items"], (*path, ITEM), nth)]
            case "object":
                return self._object(schema, path, nth)
            case kind:
                return True if kind == "boolean" else schema.get("minimum", nth)

    def _object(self, schema: Schema, path: Place, nth: int) -> dict[str, Any]:
        known = schema.get("properties", {})
        wanted = [*schema.get("required", ()), *[*known][: schema.get("minProperties", 0)]]
        return {name: self.sample(known[name], (*path, name), nth) for name in wanted}

    def text(self, path: Place, length: int) -> str:
        """Return a text of so many characters that fits a path."""
        make = self.texts.get(field_name(path))
        return make(length) if make is not None else "a" * length


def laid_over(under: Any, over: Any) -> Any:
    """Return *under* with *over* merged into it."""
    if not (isinstance(under, dict) and isinstance(over, dict)):
        return over
    return {**under, **{key: laid_over(under.get(key), value) for key, value in over.items()}}


def at(schema: Schema, path: Place) -> Schema:
    """Return the part of a schema that is about a path."""
    steps = {ITEM: "items", VALUE: "additionalProperties"}
    for step in path:
        schema = schema[steps[step]] if step in steps else schema["properties"][step]
    return schema


def rows(constraint: Constraint, samples: Samples) -> Rows:
    """Return manifests at the bound that a schema itself gives, and just beyond."""
    path = constraint.path
    if constraint.keyword == "required":
        return _required(samples, path, constraint.value)
    bound = Bound(constraint.value, path, at(samples.schema, path), samples)
    taken, refused = BOUNDS[constraint.keyword](bound)
    return Rows(
        tuple(samples.placed(path, each) for each in taken),
        tuple(samples.placed(path, each) for each in refused),
    )


def _required(samples: Samples, path: Place, name: str) -> Rows:
    whole = samples.placed(path, samples.sample(at(samples.schema, path), path))
    without = copy.deepcopy(whole)
    holder: Any = {SPEC: without}
    for step in path:
        holder = holder[0] if step == ITEM else holder["a" if step == VALUE else step]
    del holder[name]
    return Rows((whole,), (without,))


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound that a schema gives, and how to make values around it.

    Attributes:
        value: The bound.
        path: Whose.
        schema: That of the path.
        samples: Of the kind.
    """

    value: Any
    path: Place
    schema: Schema
    samples: Samples

    def least(self) -> Any:
        """Return the smallest value that fits."""
        return self.samples.sample(self.schema, self.path)

    def text(self, length: int) -> str:
        """Return a text of so many characters that fits but for its length."""
        return self.samples.text(self.path, length)

    def items(self, count: int) -> list[Any]:
        """Return a list of so many items that differ."""
        path = (*self.path, ITEM)
        return [self.samples.sample(self.schema["items"], path, nth + 1) for nth in range(count)]

    def entries(self, count: int) -> dict[str, Any]:
        """Return a map of so many entries."""
        inner, path = self.schema["additionalProperties"], (*self.path, VALUE)
        return {f"k{nth}": self.samples.sample(inner, path) for nth in range(count)}

    def beyond_format(self) -> Any:
        """Return what is none of a format."""
        if self.value in ("int32", "int64"):
            return 1 << (int(self.value[3:]) - 1)
        return self.text(20).replace("T", " at ")


BOUNDS: Final[Mapping[str, Callable[[Bound], tuple[Sequence[Any], Sequence[Any]]]]] = {
    "type": lambda it: ([it.least()], [_OTHER_TYPES[it.value]]),
    "enum": lambda it: (it.value, ["Other"]),
    "format": lambda it: ([it.least()], [it.beyond_format()]),
    "minimum": lambda it: ([it.value], [it.value - 1]),
    "maximum": lambda it: ([it.value], [it.value + 1]),
    "minLength": lambda it: ([it.text(it.value)], [it.text(it.value)[1:]]),
    "maxLength": lambda it: ([it.text(it.value)], [it.text(it.value + 1)]),
    "minItems": lambda it: ([it.items(it.value)], [it.items(it.value - 1)]),
    "maxItems": lambda it: ([it.items(it.value)], [it.items(it.value + 1)]),
    "minProperties": lambda it: ([it.least()], [{}]),
    "maxProperties": lambda it: ([it.entries(it.value)], [it.entries(it.value + 1)]),
    "x-kubernetes-list-type": lambda it: ([it.items(2)], [it.items(1) * 2]),
    "x-kubernetes-int-or-string": lambda _: ([7, "7"], [True]),
}
"""By keyword, values that are taken and values that are refused."""
