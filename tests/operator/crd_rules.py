"""What the CRDs demand of a spec, read from their schemas: each constraint, and values at its bound.

`constraints` walks a schema and yields everything that can refuse a manifest; a keyword that it does
not know fails, so that a new kind of constraint is not passed over. `rows` makes the manifests of
those whose bounds a schema gives: the last value that is taken and the first that is not.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

ROOT: Final = Path(__file__).parents[2]
SPEC: Final = "spec"
RULE: Final = "rule"
"""The keyword of a CEL rule; its message is the constraint's value."""

_NO_BOUND: Final = {
    *("description", "default", "properties", "items", "additionalProperties"),
    *("anyOf", "x-kubernetes-list-map-keys"),
}
_BOUNDS: Final = {
    *("type", "enum", "pattern", "format", "minimum", "maximum", "minLength", "maxLength"),
    *("minItems", "maxItems", "minProperties", "maxProperties", "x-kubernetes-list-type"),
    "x-kubernetes-int-or-string",
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
"""A path from the root; ``[]`` is an item of a list, ``{}`` a value of a map."""


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
        return _WORDS[self.keyword].format(self.value)


_WORDS: Final[Mapping[str, str]] = {
    "type": "must be of type {}",
    "enum": "Unsupported value",
    "pattern": "should match '{}'",
    "format": "must be of type {}",
    "minimum": "should be greater than or equal to {}",
    "maximum": "should be less than or equal to {}",
    "minLength": "should be at least {} chars long",
    "maxLength": "may not be more than {} bytes",
    "minItems": "should have at least {} items",
    "maxItems": "must have at most {} items",
    "minProperties": "should have at least {} properties",
    "maxProperties": "must have at most {} items",
    "x-kubernetes-list-type": "Duplicate value",
    "x-kubernetes-int-or-string": "must be of type integer,string",
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
    for keyword, token in (("items", "[]"), ("additionalProperties", "{}")):
        if keyword in schema:
            yield from _walk(kind, schema[keyword], (*path, token))


def _own(kind: str, schema: Schema, path: Place) -> Iterator[Constraint]:
    for keyword, value in schema.items():
        if keyword == "required":
            yield from (Constraint(kind, path, keyword, name) for name in value)
        elif keyword == "x-kubernetes-validations":
            yield from (Constraint(kind, path, RULE, each["message"]) for each in value)
        elif keyword in _BOUNDS:
            yield Constraint(kind, path, keyword, value)
        elif keyword not in _NO_BOUND:
            raise AssertionError(f"{kind} {'.'.join(path)}: no manifest tries the keyword {keyword}")


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
        not_matching: By path, a text that its pattern refuses.
    """

    schema: Schema
    least: Mapping[str, Mapping[str, Any]]
    texts: Mapping[str, Callable[[int], str]] = field(default_factory=dict)
    not_matching: Mapping[str, str] = field(default_factory=dict)

    def placed(self, path: Place, value: Any) -> dict[str, Any]:
        """Return a spec with *value* at a path, and around it what is required."""
        name = field_name(path)
        longest = max((key for key in self.least if name.startswith(key)), key=len)
        around = copy.deepcopy(dict(self.least[longest]))
        made = self._around(self.schema["properties"][SPEC], path, 1, value)
        return laid_over(around, made)

    def _around(self, schema: Schema, path: Place, depth: int, value: Any) -> Any:
        if depth == len(path):
            return value
        token = path[depth]
        if token == "[]":
            return [self._around(schema["items"], path, depth + 1, value)]
        if token == "{}":
            return {"a": self._around(schema["additionalProperties"], path, depth + 1, value)}
        beside = {
            name: self.sample(schema["properties"][name], (*path[:depth], name))
            for name in schema.get("required", ())
            if depth > 1
        }
        inner = self._around(schema["properties"][token], path, depth + 1, value)
        return {**beside, token: inner}

    def sample(self, schema: Schema, path: Place, nth: int = 0) -> Any:
        """Return the *nth* of the smallest values that a schema takes."""
        if "enum" in schema:
            return schema["enum"][nth % len(schema["enum"])]
        match schema.get("type"):
            case "string" if nth:
                return f"a{nth}"
            case "string":
                return self.text(path, max(1, schema.get("minLength", 0)))
            case "boolean":
                return True
            case "array":
                return []
            case "object":
                known = schema.get("properties", {})
                wanted = [*schema.get("required", ())]
                wanted += [*known][: schema.get("minProperties", 0)]
                return {name: self.sample(known[name], (*path, name), nth) for name in wanted}
            case _:
                return schema.get("minimum", nth)

    def text(self, path: Place, length: int) -> str:
        """Return a text of so many characters that fits a path."""
        make = self.texts.get(field_name(path), lambda size: "a" * size)
        return make(length)


def laid_over(under: Any, over: Any) -> Any:
    """Return *under* with *over* merged into it."""
    if not (isinstance(under, dict) and isinstance(over, dict)):
        return over
    return {**under, **{key: laid_over(under.get(key), value) for key, value in over.items()}}


def at(schema: Schema, path: Place) -> Schema:
    """Return the part of a schema that is about a path."""
    for token in path:
        match token:
            case "[]":
                schema = schema["items"]
            case "{}":
                schema = schema["additionalProperties"]
            case _:
                schema = schema["properties"][token]
    return schema


def rows(constraint: Constraint, samples: Samples) -> Rows | None:
    """Return manifests at the bound that the schema itself gives, and just beyond; None for CEL."""
    path, value = constraint.path, constraint.value
    schema = at(samples.schema, path)
    taken, refused = _at_the_bound(constraint, schema, samples)
    if constraint.keyword == RULE:
        return None
    return Rows(
        tuple(samples.placed(path, each) for each in taken),
        tuple(samples.placed(path, each) for each in refused),
    ) if constraint.keyword != "required" else _required(samples, path, value)


def _required(samples: Samples, path: Place, name: str) -> Rows:
    whole = samples.sample(at(samples.schema, path), path)
    placed = samples.placed(path, whole)
    without = copy.deepcopy(placed)
    holder: Any = {SPEC: without}
    for token in path:
        holder = holder[0] if token == "[]" else holder["a" if token == "{}" else token]
    del holder[name]
    return Rows((placed,), (without,))


def _at_the_bound(
    constraint: Constraint, schema: Schema, samples: Samples
) -> tuple[list[Any], list[Any]]:
    """Return values that are taken, and values that are refused."""
    path, value = constraint.path, constraint.value

    def text(length: int) -> str:
        return samples.text(path, length)

    def items(count: int) -> list[Any]:
        return [samples.sample(schema["items"], (*path, "[]"), nth) for nth in range(1, count + 1)]

    def entries(count: int) -> dict[str, Any]:
        inner = schema["additionalProperties"]
        return {f"k{nth}": samples.sample(inner, (*path, "{}")) for nth in range(count)}

    match constraint.keyword:
        case "type":
            return [samples.sample(schema, path)], [_OTHER_TYPES[value]]
        case "enum":
            return [*value], ["Other"]
        case "pattern":
            return [text(1)], [samples.not_matching[field_name(path)]]
        case "format" if value in ("int32", "int64"):
            return [samples.sample(schema, path)], [1 << (int(value[3:]) - 1)]
        case "format":
            return [text(20)], [text(20).replace("T", " at ")]
        case "minimum":
            return [value], [value - 1]
        case "maximum":
            return [value], [value + 1]
        case "minLength":
            return [text(value)], ["a" * (value - 1)]
        case "maxLength":
            return [text(value)], [text(value + 1)]
        case "minItems":
            return [items(value)], [items(value - 1)]
        case "maxItems":
            return [items(value)], [items(value + 1)]
        case "minProperties":
            return [samples.sample(schema, path)], [{}]
        case "maxProperties":
            return [entries(value)], [entries(value + 1)]
        case "x-kubernetes-int-or-string":
            return [7, "7"], [True]
        case "x-kubernetes-list-type":
            return [items(2)], [items(1) * 2]
    return [], []
