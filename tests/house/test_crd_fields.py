"""One set of fields: the CRD, `spec.py` and the table in `docs/operator.md` cannot drift apart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml

from dledger_operator.api.spec import Spec, Topic, camel
from dledger_operator.decisions.checks import ACTED_ON, leaves
from dledger_operator.decisions.facts import facts_of
from dledger_operator.status.status import status
from tests.operator.samples import NOW, bootstrapped, converged, joined, pods

ROOT = Path(__file__).parents[2]
CRD = yaml.safe_load((ROOT / "crds/brokergroup.yaml").read_text("utf-8"))
SCHEMA = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
DOCS = (ROOT / "docs/operator.md").read_text("utf-8")


def _crd_fields(schema: dict[str, Any], known: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and default of each leaf, as deep as the dataclass *known* goes."""
    hints = get_type_hints(known)
    named = {camel(field.name): hints[field.name] for field in fields(known)}
    for key, inner in schema["properties"].items():
        kind = named.get(key)
        item = next(iter(get_args(kind)), None)
        if is_dataclass(kind):
            yield from _crd_fields(inner, kind, f"{path}{key}.")
        elif is_dataclass(item):
            yield f"{path}{key}", None
            yield from _crd_fields(inner["items"], item, f"{path}{key}[].")
        else:
            yield f"{path}{key}", inner.get("default")


def _spec_fields() -> dict[str, Any]:
    topic = {f"topics[].{path}": value for path, value in leaves(Topic())}
    return {**dict(leaves(Spec())), **topic}


def _documented() -> dict[str, tuple[str, str]]:
    section = DOCS.partition("## Fields\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(.+?)` \| (.*?) ?\| (.*?) \|$", section, re.MULTILINE)
    return {path: (default, acted_on) for path, default, acted_on in rows}


def test_the_crd_and_the_dataclasses_have_the_same_fields() -> None:
    """A field in one alone would be refused, or ignored."""
    assert {path for path, _ in _crd_fields(SCHEMA["properties"]["spec"], Spec)} == set(
        _spec_fields()
    )


def test_the_crd_and_the_dataclasses_have_the_same_defaults() -> None:
    """No default in the CRD means that the empty value stands for it."""
    spec = _spec_fields()

    for path, default in _crd_fields(SCHEMA["properties"]["spec"], Spec):
        assert (default or spec[path]) == spec[path], path
        assert default is not None or not spec[path], path


def test_the_documentation_lists_every_field_with_its_default() -> None:
    """The table is what users read first."""
    documented = _documented()
    spec = _spec_fields()

    assert set(documented) == set(spec)
    for path, (default, _) in documented.items():
        value = spec[path]
        shown = str(value).lower() if isinstance(value, bool) else str(value or "")
        assert default.strip("`") == shown, path


def test_the_documentation_says_which_fields_are_acted_on() -> None:
    """And which are answered with NotImplementedYet."""
    for path, (_, acted_on) in _documented().items():
        if path.startswith("topics[]"):
            continue
        assert acted_on.startswith("yes") == (path in ACTED_ON), path


def test_every_field_of_the_crd_is_described() -> None:
    """`kubectl explain` must say something; Kubernetes' own types are named as such."""

    def undescribed(schema: dict[str, Any], known: Any, path: str) -> Iterator[str]:
        hints = get_type_hints(known)
        for field in fields(known):
            inner = schema["properties"][camel(field.name)]
            below = f"{path}.{camel(field.name)}"
            if not inner.get("description"):
                yield below
            if is_dataclass(hints[field.name]):
                yield from undescribed(inner, hints[field.name], below)

    assert list(undescribed(SCHEMA["properties"]["spec"], Spec, "spec")) == []


def test_the_crd_says_which_fields_nothing_acts_on() -> None:
    """`kubectl explain` is read before the documentation."""
    acted_on = {path: says.startswith("yes") for path, (_, says) in _documented().items()}

    for path, description in _descriptions(SCHEMA["properties"]["spec"], Spec):
        if not acted_on[path]:
            assert "cted on yet" in description, path
        else:
            assert "Not acted on yet" not in description, path


def _descriptions(schema: dict[str, Any], known: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield path and description of each leaf."""
    hints = get_type_hints(known)
    for field in fields(known):
        key, kind = camel(field.name), hints[field.name]
        inner, item = schema["properties"][key], next(iter(get_args(kind)), None)
        if is_dataclass(kind):
            yield from _descriptions(inner, kind, f"{path}{key}.")
        elif is_dataclass(item):
            yield from _descriptions(inner["items"], item, f"{path}{key}[].")
        else:
            yield f"{path}{key}", inner["description"]


def test_every_string_is_bounded() -> None:
    """An unbounded one makes the CEL rules too costly, and the object too large."""

    def unbounded(schema: dict[str, Any], path: str) -> Iterator[str]:
        text = schema.get("type") == "string"
        if text and not ({"maxLength", "enum", "format"} & schema.keys()):
            yield path
        for key, inner in schema.get("properties", {}).items():
            yield from unbounded(inner, f"{path}.{key}")
        for below in ("items", "additionalProperties"):
            if below in schema:
                yield from unbounded(schema[below], f"{path}[]")

    assert list(unbounded(SCHEMA["properties"]["spec"], "spec")) == []


def test_the_status_that_is_written_is_the_crds() -> None:
    """A key that the CRD does not have would be dropped without a word."""
    nodes = joined(0, 1, 2)
    of = bootstrapped(operator="shop/dledger-operator")
    seen = converged(of, nodes=nodes, pods=pods(0, 1, 2, zone="a"))
    written = status(facts_of(of, seen), now=NOW)
    schema = SCHEMA["properties"]["status"]["properties"]

    assert set(written) | {"lastFailover", "backup", "compaction", "topics"} == set(schema)
    assert set(written["members"][0]) == set(schema["members"]["items"]["properties"])
    assert set(written["conditions"][0]) == set(schema["conditions"]["items"]["properties"])


def test_each_crd_is_a_document_of_its_own() -> None:
    """`helm show crds` joins the files as they are, and kubectl would read one object."""
    for path in (ROOT / "crds").iterdir():
        assert path.read_text("utf-8").startswith("---\n"), path.name


def test_the_chart_installs_this_crd() -> None:
    """The chart's directory is a link to the only copy."""
    assert (ROOT / "charts/dledger-operator/crds").resolve() == ROOT / "crds"
