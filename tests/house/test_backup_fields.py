"""One set of fields: the CRD of BrokerBackup, `brokerbackup.py`, the status, the documentation."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from dledger_operator.api import names
from dledger_operator.api.brokerbackup import BackupSpec
from dledger_operator.api.spec import Store, camel
from dledger_operator.status.backup_history import last_backup
from dledger_operator.status.backup_status import backup_status
from tests.operator.backup_samples import SUCCEEDED, backup, completed, observed
from tests.operator.samples import NOW, bootstrapped, converged

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs/operator.md").read_text("utf-8")
CRD = yaml.safe_load((ROOT / "crds/brokerbackup.yaml").read_text("utf-8"))
GROUP_CRD = yaml.safe_load((ROOT / "crds/brokergroup.yaml").read_text("utf-8"))


def _properties(crd: dict[str, Any], part: str) -> dict[str, Any]:
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    found: dict[str, Any] = schema[part]["properties"]
    return found


def _spec_fields() -> set[str]:
    own = {camel(field.name) for field in fields(BackupSpec)} - {"store"}
    return own | {f"store.{camel(field.name)}" for field in fields(Store)}


def test_the_crd_and_the_dataclass_have_the_same_fields() -> None:
    """A field in one alone would be refused, or ignored."""
    spec = _properties(CRD, "spec")

    in_crd = (spec.keys() - {"store"}) | {f"store.{key}" for key in spec["store"]["properties"]}

    assert in_crd == _spec_fields()


def test_the_documentation_lists_every_field() -> None:
    """The table is what users read first."""
    section = DOCS.partition("## Fields of a BrokerBackup\n")[2].partition("\n## ")[0]

    assert set(re.findall(r"^\| `(.+?)` \|", section, re.MULTILINE)) == _spec_fields()


def test_the_status_that_is_written_is_the_crds() -> None:
    """A key that the CRD does not have would be dropped without a word."""
    schema = _properties(CRD, "status")

    written = backup_status(backup(), observed(job=SUCCEEDED), now=NOW)

    assert set(written) == set(schema)
    assert set(written["range"]) == set(schema["range"]["properties"])
    assert set(written["conditions"][0]) == set(schema["conditions"]["items"]["properties"])


def test_what_a_group_keeps_of_its_backups_is_the_crds() -> None:
    """The newest completed one, and the last scheduled time."""
    schema = _properties(GROUP_CRD, "status")["backup"]["properties"]
    observed = converged(bootstrapped(), backups=(completed(scheduled_at=NOW),))

    assert set(last_backup(bootstrapped(), observed, now=NOW)) == set(schema)


def test_every_string_of_the_spec_is_bounded_and_described() -> None:
    """An unbounded one makes rules too costly; `kubectl explain` must say something."""
    spec = _properties(CRD, "spec")

    for key, schema in {**spec, **spec["store"]["properties"]}.items():
        assert schema["description"], key
        assert schema["type"] != "string" or "maxLength" in schema, key


def test_the_crd_says_what_names_says() -> None:
    """Kind, plural and the short name that the documentation uses."""
    said = CRD["spec"]["names"]

    assert (said["kind"], said["plural"]) == (names.BACKUP_KIND, names.BACKUP_PLURAL)
    assert said["shortNames"] == ["bgb"]
    assert "kubectl get bgb" in DOCS
