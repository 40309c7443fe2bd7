"""One set of fields: the CRD of BrokerOperation, `brokeroperation.py`, the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from dledger_operator.api import names
from dledger_operator.api.brokeroperation import DEADLINE_S, TTL_S, Kind, OperationSpec
from dledger_operator.api.spec import camel
from dledger_operator.decisions.rounds import RECORD
from dledger_operator.status.operation_status import RECORDED

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs/operator.md").read_text("utf-8")
CRD = yaml.safe_load((ROOT / "crds/brokeroperation.yaml").read_text("utf-8"))
SCHEMA = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]


def _fields(cls: Any, path: str = "") -> Iterator[str]:
    hints = get_type_hints(cls)
    for one in fields(cls):
        inner, name = hints[one.name], f"{path}{camel(one.name)}"
        if is_dataclass(inner):
            yield from _fields(inner, f"{name}.")
        else:
            yield name


def _of_crd(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for key, inner in schema["properties"].items():
        if "properties" in inner:
            yield from _of_crd(inner, f"{path}{key}.")
        else:
            yield f"{path}{key}", inner


def test_crd_dataclass_and_documentation_have_the_same_fields() -> None:
    """A field in one alone would be refused, or ignored."""
    section = DOCS.partition("## Fields of a BrokerOperation\n")[2].partition("\n## ")[0]

    assert {path for path, _ in _of_crd(SCHEMA["spec"])} == set(_fields(OperationSpec))
    assert set(re.findall(r"^\| `(.+?)` \|", section, re.MULTILINE)) == set(_fields(OperationSpec))
    assert f"| `{DEADLINE_S}` |" in section
    assert f"| `{TTL_S}` |" in section


def test_the_crd_has_the_kinds_that_are_built_and_no_others() -> None:
    """A kind that nothing acts on would wait for ever."""
    assert SCHEMA["spec"]["properties"]["kind"]["enum"] == list(Kind)


def test_every_field_is_described_and_bounded() -> None:
    """An unbounded one makes rules too costly; `kubectl explain` must say something."""
    for path, schema in _of_crd(SCHEMA["spec"]):
        assert schema["description"], path
        assert schema["type"] != "string" or {"maxLength", "enum"} & schema.keys(), path


def test_what_an_operation_records_is_the_crds() -> None:
    """A key that the CRD does not have would be dropped without a word, and the rest lost."""
    told = {"observedGeneration", "phase", "message", "conditions", "startedAt", "finishedAt"}

    assert {*RECORDED, RECORD, *told} == set(SCHEMA["status"]["properties"])


def test_the_crd_says_what_names_says() -> None:
    """Kind, plural and the short name that the documentation uses."""
    said = CRD["spec"]["names"]

    assert (said["kind"], said["plural"]) == (names.OPERATION_KIND, names.OPERATION_PLURAL)
    assert said["shortNames"] == ["bgo"]
    assert "kubectl get bgo" in DOCS
