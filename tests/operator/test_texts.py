"""Texts of users on their way into containers: their shapes, here and in the CRDs; no expansion."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dledger_operator.api.reasons import Reason
from dledger_operator.api.spec import Manifest
from dledger_operator.api.texts import (
    CLAIM_NAME,
    ENDPOINT,
    FILE_URL,
    GROUP_ID,
    IMAGE,
    SECRET_NAME,
    STORE_URL,
    Shape,
)
from dledger_operator.decisions.backups import plan_backup
from dledger_operator.decisions.checks import problems
from dledger_operator.observed.observed import Observed
from dledger_operator.resources.log_job import LogRange
from dledger_operator.resources.pipeline import verbatim
from dledger_operator.resources.recovery import recovery_job
from tests.operator.backup_samples import LARGE, SMALL, STORE, backup, backup_job, observed
from tests.operator.samples import bootstrapped, group

ROOT = Path(__file__).parents[2]
KEY = "$(AWS_SECRET_ACCESS_KEY)"
ENV = "${env:AWS_SECRET_ACCESS_KEY}"


@pytest.mark.parametrize(
    ("shape", "good", "bad"),
    [
        (
            STORE_URL,
            ["", "s3://bucket", "s3://bucket/a/b-c_d.e=f", "gs://b/%20x", "file:///backups"],
            [
                "bucket",
                "s3://",
                "S3://b",
                f"s3://b/{KEY}",
                f"s3://b/{ENV}",
                "s3://b/a b",
                "s3://b\n",
            ],
        ),
        (
            ENDPOINT,
            ["", "http://s3.storage.svc:9000", "https://s3.example/base", "http://[fd00::1]:9000"],
            [
                "s3.storage.svc",
                "--conf=x",
                f"http://c/{KEY}",
                "http://u:p@h",
                "http://h?x=1",
                "ftp://h",
            ],
        ),
        (SECRET_NAME, ["", "s3", "my.keys-2"], [KEY, "-s3", "s3:x", "S3", "a/b"]),
        (CLAIM_NAME, ["", "backups", "nfs.backups-2"], [KEY, "-c", "C", "a/b"]),
        (
            FILE_URL,
            ["", "file:///backups", "file:///mnt/nfs/a.b", "file:///var/backups/x_y"],
            [
                "file:///",
                "file:///tmp",
                "file:///opt/dledger",
                "file:///backups2",
                "file:///backups/",
                "file:///mnt/../etc",
                "file:///srv//x",
                "file:///srv/%2e%2e/etc",
                "file://host/backups",
                f"file:///mnt/{KEY}",
            ],
        ),
        (
            IMAGE,
            ["", "dledger:1", "r.example:5000/team/x@sha256:ab", "Docker.io/a_b"],
            [KEY, f"evil/{ENV}", "-x", "a b", "a\nb"],
        ),
        (
            GROUP_ID,
            ["", "old", "6f9619ff-8b86-4d01-b42d-00cf4fc964ff"],
            [KEY, "--master=x", "a/b", "é"],
        ),
    ],
)
def test_each_shape_takes_what_is_meant_and_nothing_that_expands(
    shape: Shape, good: list[str], bad: list[str]
) -> None:
    """The empty text asks for nothing."""
    assert [text for text in good if not shape.fits(text)] == []
    assert [text for text in bad if shape.fits(text)] == []


def _rules(schema: Any, path: str = "spec") -> Iterator[tuple[str, str, str]]:
    """Yield path, pattern and message of each rule that is one pattern alone."""
    for rule in schema.get("x-kubernetes-validations", ()):
        if found := re.fullmatch(r"self\.matches\('\^\((.*)\)\?\$'\)", rule["rule"]):
            pattern = found[1].replace("\\\\", "\\").replace("\\'", "'")
            yield path, pattern, rule["message"]
    for key, inner in schema.get("properties", {}).items():
        yield from _rules(inner, f"{path}.{key}")


def _schema(crd: str) -> Any:
    text = (ROOT / "crds" / f"{crd}.yaml").read_text("utf-8")
    schema = yaml.safe_load(text)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema["properties"]["spec"]


@pytest.mark.parametrize(
    ("crd", "expected"),
    [
        (
            "brokergroup",
            {
                "spec.image": IMAGE,
                "spec.spark.image": IMAGE,
                "spec.bootstrap.recovery.groupId": GROUP_ID,
                **{
                    f"{store}.{field}": shape
                    for store in ("spec.backup.store", "spec.bootstrap.recovery.store")
                    for field, shape in (
                        ("url", STORE_URL),
                        ("endpoint", ENDPOINT),
                        ("secretName", SECRET_NAME),
                        ("claimName", CLAIM_NAME),
                    )
                },
                "spec.peerTls.caSecretName": SECRET_NAME,
                "spec.tls.secretName": SECRET_NAME,
            },
        ),
        (
            "brokerbackup",
            {
                "spec.store.url": STORE_URL,
                "spec.store.endpoint": ENDPOINT,
                "spec.store.secretName": SECRET_NAME,
                "spec.store.claimName": CLAIM_NAME,
            },
        ),
    ],
)
def test_the_crd_has_the_same_shapes(crd: str, expected: dict[str, Shape]) -> None:
    """The API server refuses what the operator would not act on."""
    found = {path: (pattern, message) for path, pattern, message in _rules(_schema(crd))}

    assert {path: pattern for path, (pattern, _) in found.items()} == {
        path: shape.pattern for path, shape in expected.items()
    }
    for path, (_, message) in found.items():
        assert message.endswith(expected[path].words)


@pytest.mark.parametrize("crd", ["brokergroup", "brokerbackup"])
def test_the_crd_lets_a_claim_be_mounted_where_the_operator_does(crd: str) -> None:
    """A rule of the whole store, since only a file:// url is meant."""
    text = (ROOT / "crds" / f"{crd}.yaml").read_text("utf-8")

    assert f"self.url.matches('^{FILE_URL.pattern}$')" in text
    assert FILE_URL.words in text


EXPANDING: list[tuple[str, dict[str, Any]]] = [
    ("spec.image", {"image": f"evil/{ENV}"}),
    ("spec.spark.image", {"backup": {"store": STORE}, "spark": {"image": f"evil/{ENV}"}}),
    ("spec.backup.store.url", {"backup": {"store": {**STORE, "url": f"s3://b/{KEY}"}}}),
    ("spec.backup.store.endpoint", {"backup": {"store": {**STORE, "endpoint": f"http://c/{KEY}"}}}),
    ("spec.backup.store.secretName", {"backup": {"store": {**STORE, "secretName": KEY}}}),
    (
        "spec.bootstrap.recovery.store.endpoint",
        {"bootstrap": {"recovery": {"store": {**STORE, "endpoint": KEY}}}},
    ),
    (
        "spec.bootstrap.recovery.groupId",
        {"bootstrap": {"recovery": {"store": STORE, "groupId": KEY}}},
    ),
    (
        "spec.bootstrap.recovery.target.time",
        {"bootstrap": {"recovery": {"store": STORE, "target": {"time": KEY}}}},
    ),
]


@pytest.mark.found
@pytest.mark.parametrize(("field", "spec"), EXPANDING)
def test_a_text_that_would_be_expanded_is_refused_and_named(
    field: str, spec: dict[str, Any]
) -> None:
    """Found: K3. Also where the API server stored it before it had the rule."""
    found = problems(group(spec), Observed())

    assert [problem.reason for problem in found] == [Reason.INVALID_SPEC]
    assert field in found[0].message


@pytest.mark.found
def test_a_backup_to_a_store_of_its_own_that_would_be_expanded_is_never_made() -> None:
    """Found: K3. Its spec cannot change, so that it has failed."""
    one = backup({"store": {**STORE, "endpoint": f"http://collector/{KEY}"}})

    assert plan_backup(one, observed()) == ()


def _args(manifest: Manifest) -> list[str]:
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    args: list[str] = container["args"]
    return args


@pytest.mark.found
@pytest.mark.parametrize("log", [SMALL, LARGE])
def test_whatever_passes_the_checks_reaches_the_container_as_it_is(log: LogRange) -> None:
    """Found: K3. The second bar: only our own words are expanded; the id may come from a node."""
    store = {"url": f"s3://{KEY}", "endpoint": KEY, "secretName": KEY}
    of = bootstrapped(
        {
            "backup": {"store": store},
            "spark": {"image": KEY},
            "bootstrap": {"recovery": {"store": store, "groupId": KEY, "target": {"time": KEY}}},
        },
        groupId=KEY,
    )

    made = backup_job(backup(), of, store=of.spec.backup.store, log=log)

    ours = {"spark.driver.host=$(POD_IP)", "spark.driver.bindAddress=$(POD_IP)"}
    ours |= {"spark.kubernetes.driver.pod.name=$(POD_NAME)"}
    for args in (_args(made), _args(recovery_job(of))):
        plain = [arg.replace("$$", "") for arg in args if arg not in ours]
        assert any("$$(AWS" in arg for arg in args)
        assert not any("$" in arg for arg in plain)


def test_a_text_without_a_dollar_sign_is_not_touched() -> None:
    """Two stand for one."""
    assert verbatim("s3://b/p") == "s3://b/p"
    assert verbatim("a$b$(C)") == "a$$b$$(C)"


DELIVERED = re.compile(r"url|endpoint|secretName|groupId|image", re.ASCII)


def test_every_text_that_reaches_arguments_has_a_shape() -> None:
    """A new field of that kind needs one, and a row in docs/internals/operator.md."""
    for crd in ("brokergroup", "brokerbackup"):
        shaped = {path for path, _, _ in _rules(_schema(crd))}
        found = {p for p in _texts(_schema(crd)) if DELIVERED.fullmatch(p.rpartition(".")[2])}
        assert found - shaped <= {"spec.tls.secretName"}


def _texts(schema: Any, path: str = "spec") -> Iterator[str]:
    if schema.get("type") == "string":
        yield path
    for key, inner in schema.get("properties", {}).items():
        yield from _texts(inner, f"{path}.{key}")
