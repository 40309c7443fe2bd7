"""Every "set it back to" of the operator, done as the sentence says, on a real API server.

The table is complete by construction: each such sentence of the operator's sources has a row, and
so has each field of the spec that nothing acts on.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest

from dledger_operator.api.spec import Spec
from dledger_operator.decisions.checks import ACTED_ON, leaves
from tests.operator.api_server import ApiServer
from tests.operator.backup_samples import STORE
from tests.operator.crd_rules import SPEC, Schema, schemas
from tests.operator.live import ROOT, Story
from tests.waiting import eventually_async

pytestmark = pytest.mark.e2e

SOURCES: Final = ROOT / "operator" / "dledger_operator"
FOUNDED: Final[dict[str, Any]] = {"topics": [{"name": "demo", "queues": 4}]}
"""The spec that the group runs with, and is to be back at."""
_ADVICE: Final = re.compile(r'^spec\.(\S+?)=.* set it back to (""|\w+)')

NOT_YET: Final[list[tuple[str, Any, str]]] = [
    ("storage.deletionPolicy", "Delete", "Retain"),
    ("storage.autoGrow.enabled", True, "false"),
    ("storage.autoGrow.maxSize", "200Gi", "100Gi"),
    ("tls.issuerRef.name", "authority", '""'),
    ("tls.issuerRef.kind", "Issuer", '""'),
    ("tls.issuerRef.group", "cert-manager.io", '""'),
    ("auth.enabled", True, "false"),
    ("auth.usersSecretName", "users", '""'),
    ("expose.type", "NodePort", "ClusterIP"),
    ("monitoring.canary.intervalSeconds", 5, "1"),
    ("backup.verifySchedule", "@daily", '""'),
    ("planApproval", "Manual", "Automatic"),
]
"""Fields that nothing acts on: what is asked for, and what the sentence says to type instead."""


def _not_yet(path: str, asked: Any, default: str) -> str:
    text = str(asked).lower() if isinstance(asked, bool) else str(asked)
    return f"spec.{path}={text}: nothing acts on this yet; set it back to {default}"


OTHER_TYPE: Final = (
    "spec.topics[demo].type=FIFO: the topic is NORMAL, and so are its messages; set it back to "
    "NORMAL"
)
FEWER_QUEUES: Final = (
    "spec.topics[demo].queues=2: the topic has 4 queues, and its messages are in them; set it back "
    "to 4"
)
SMALLER: Final = (
    "spec.storage.size=5Gi: volumes cannot shrink; set it back to 10Gi, which StatefulSet orders "
    "has"
)
NO_ISSUER: Final = (
    "spec.tls.enabled=true: nothing issues certificates for clients yet; name a kubernetes.io/tls "
    "Secret in spec.tls.secretName, or set it back to false: port 8082 then has a certificate of "
    "each node's own"
)
ASKED: Final[list[tuple[list[tuple[str, Any]], list[str]]]] = [
    (
        [*((path, asked) for path, asked, _ in NOT_YET), ("topics[demo].type", "FIFO")],
        [*(_not_yet(*row) for row in NOT_YET), OTHER_TYPE],
    ),
    ([("topics[demo].queues", 2)], [FEWER_QUEUES]),
    ([("storage.size", "5Gi")], [SMALLER]),
    ([("tls.enabled", True)], [NO_ISSUER]),
]
"""What a running group is asked for, and all that SpecValid then says."""
TOO_EARLY: Final = (
    "spec.replicas=1: the group is not founded yet, and may be about to be, with 3 members; set it "
    "back to 3 until it is, or delete it"
)
SMALLER_THAN_CLAIMS: Final = [
    f"spec.storage.size=5Gi: volumes cannot shrink; set it back to 10Gi, which volume claim {name} "
    "has"
    for name in ("data-orders-0", "data-orders-1", "data-orders-2")
]
OTHER_CLASS: Final = [
    f'spec.storage.storageClassName=other: volume claim {name} has "", and a volume cannot change '
    'its class; delete the BrokerGroup, which leaves its volumes, and create it again with ""'
    for name in ("data-orders-0", "data-orders-1", "data-orders-2")
]
NOT_REACHED: Final = (
    "spec.bootstrap.recovery.store.url=gs://backups: only s3:// and file:// are reached from pods "
    "so far; bootstrap is immutable: delete the BrokerGroup and create it again"
)


# --- the table is complete ------------------------------------------------------------------------


def _sentences() -> list[str]:
    """Return every sentence that a test below does what it says."""
    of_running = [one for _, said in ASKED for one in said]
    return [*of_running, TOO_EARLY, *SMALLER_THAN_CLAIMS]


def _templates(source: str) -> Iterator[str]:
    """Yield as a pattern each text of a source, but for docstrings, that says to set back."""
    tree = ast.parse(source)
    described = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and isinstance(node.body[0], ast.Expr)
    }
    within = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if part is not node
    }
    for node in ast.walk(tree):
        if id(node) in described | within:
            continue
        if isinstance(node, ast.JoinedStr | ast.Constant):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            texts = [part.value if isinstance(part, ast.Constant) else None for part in parts]
            if any(re.search(r"\bback to\b", str(text)) for text in texts):
                yield "".join(".+" if text is None else re.escape(str(text)) for text in texts)


def test_every_set_it_back_of_the_sources_is_done_here() -> None:
    """One that is new has no row; a row that no source says any more is seen as well."""
    files = sorted(SOURCES.rglob("*.py"))
    found = [one for file in files for one in _templates(file.read_text("utf-8"))]
    said = _sentences()

    assert len(found) >= 6
    assert [one for one in found if not any(re.fullmatch(one, each) for each in said)] == []
    assert [each for each in said if not any(re.fullmatch(one, each) for one in found)] == []


def test_every_field_that_nothing_acts_on_is_set_back_here() -> None:
    """Each would be refused with a default that is to be typed."""
    assert {path for path, *_ in NOT_YET} == {path for path, _ in leaves(Spec())} - ACTED_ON


def test_a_sentence_without_a_row_is_seen() -> None:
    """In an f-string as in a plain one; not in what describes a function."""
    source = (
        '"""Goes back to."""\ndef f(a):\n    """Back to."""\n    return f"set {a} back to {a}"\n'
        'plain = "back to it"'
    )

    assert sorted(_templates(source)) == [r"back\ to\ it", r"set\ .+\ back\ to\ .+"]


# --- and done -------------------------------------------------------------------------------------


def _changed(spec: dict[str, Any], changes: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields at the top of a spec that hold these changes, changed."""
    for path, value in changes:
        *above, last = re.split(r"\.|(?=\[)", path)
        inside: Any = spec
        for step in above:
            if step.startswith("["):
                (inside,) = (one for one in inside if one["name"] == step[1:-1])
            else:
                inside = inside.setdefault(step, {})
        inside[last] = value
    tops = {re.split(r"\W", path)[0] for path, _ in changes}
    return {top: spec[top] for top in tops}


def _advised(said: list[str]) -> list[tuple[str, Any]]:
    """Return the fields that sentences say to set back, and to what."""
    schema = schemas()["BrokerGroup"]["properties"][SPEC]
    found = [match.groups() for each in said if (match := _ADVICE.match(each))]
    assert len(found) == len(said)
    return [(path, _typed(schema, path, text)) for path, text in found]


def _typed(schema: Schema, path: str, text: str) -> Any:
    """Return a value as the CRD wants it."""
    for step in re.split(r"\.|(?=\[)", path):
        schema = schema["items"] if step.startswith("[") else schema["properties"][step]
    return "" if text == '""' else text if schema["type"] == "string" else json.loads(text)


async def _change(story: Story, changes: list[tuple[str, Any]]) -> None:
    spec = (await story.get("bg", "orders"))[SPEC]
    patch = json.dumps({SPEC: _changed(spec, changes)})
    await story.kubectl("patch", "bg", "orders", "--type=merge", "-p", patch)


async def _told(story: Story, expected: list[str]) -> list[str]:
    """Return all that SpecValid says, once that is what is expected."""
    said: list[str] = []

    async def told() -> bool:
        said[:] = re.split(r"; (?=spec\.)", await story.message("SpecValid"))
        return sorted(said) == sorted(expected)

    try:
        await eventually_async(told, "SpecValid says it")
    except AssertionError as error:
        raise AssertionError(f"SpecValid says {said}") from error
    return said


async def _set_back(story: Story, expected: list[str]) -> None:
    """Do what SpecValid says, and see that it is well again."""
    await _change(story, _advised(await _told(story, expected)))
    await story.until_condition("SpecValid", "True/Accepted")


async def test_what_a_running_group_is_told_to_set_back_is_taken_and_ends_it(story: Story) -> None:
    """The group has converged on what it was, and its nodes were not touched."""
    await story.up(**FOUNDED)
    await story.until_condition("Progressing", "False/Complete")
    before = await story.get("statefulset", "orders")

    for asked, said in ASKED:
        await _change(story, asked)
        await _set_back(story, said)

    await story.until_condition("Progressing", "False/Complete")
    await story.until_condition("Degraded", "False/AsExpected")
    after = await story.get("statefulset", "orders")
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert story.nodes.topics == {"demo": 4}


async def test_a_group_that_is_not_founded_yet_gets_its_members_back(story: Story) -> None:
    """And is founded with them."""
    await story.apply(replicas=3)
    await eventually_async(lambda: story.get("statefulset", "orders"), "the StatefulSet")

    await _change(story, [("replicas", 1)])
    await _set_back(story, [TOO_EARLY])

    await story.run_pods()
    await story.until_condition("Available", "True/LeaderElected")
    await story.until_condition("Progressing", "False/Complete")
    assert len(story.nodes.members) == 3


async def test_a_group_of_old_volumes_gets_their_size_and_class_back(story: Story) -> None:
    """The size is set back; the class is immutable, and the group is created again, as is told."""
    await story.up()
    group_id = (await story.status())["groupId"]
    await _deleted(story)

    await story.apply(storage={"size": "5Gi", "storageClassName": "other"})
    said = await _told(story, [*SMALLER_THAN_CLAIMS, *OTHER_CLASS])
    await _change(story, _advised([each for each in said if "set it back" in each]))
    await _told(story, OTHER_CLASS)
    assert not await story.tried(
        *("patch", "bg", "orders", "--type=merge"),
        *("-p", json.dumps({SPEC: {"storage": {"storageClassName": ""}}})),
    )
    await _deleted(story)
    await story.up(storage={"storageClassName": ""})

    await story.until_condition("SpecValid", "True/Accepted")
    await story.until_condition("Progressing", "False/Complete")
    assert (await story.status())["groupId"] == group_id


async def test_a_group_that_cannot_be_founded_so_is_created_again(story: Story) -> None:
    """As is told: what it is founded on cannot be changed."""
    await story.apply(bootstrap={"recovery": {"store": {"url": "gs://backups"}}})
    await _told(story, [NOT_REACHED])
    assert not await story.tried(
        *("patch", "bg", "orders", "--type=merge"),
        *("-p", json.dumps({SPEC: {"bootstrap": {"recovery": {"store": STORE}}}})),
    )

    await _deleted(story)
    await story.apply(bootstrap={"recovery": {"store": STORE}})

    await story.until_condition("SpecValid", "True/Accepted")
    await story.until_condition("Progressing", "True/Recovering")


async def test_a_field_of_a_newer_version_is_removed(server: ApiServer, story: Story) -> None:
    """Of CRDs that are newer than the operator; without the field all is well."""
    await story.up()
    at = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/fromTheFuture"
    added = [{"op": "add", "path": at, "value": {"type": "integer"}}]
    crd = ("patch", "crd", "brokergroups.dledger.io", "--type=json", "-p")
    server.kubectl(*crd, json.dumps(added))

    said = "spec.fromTheFuture is not known to this version; remove the field"
    numbers = itertools.count(1)

    async def told() -> bool:
        # What is changed while the operator's watch is still of the old CRD comes without the
        # field, and the next watch goes on behind it: so it is changed until one shows it.
        await _change(story, [("fromTheFuture", next(numbers))])
        return await story.message("SpecValid") == said

    await eventually_async(told, "SpecValid says it")
    removed = json.dumps({SPEC: {"fromTheFuture": None}})
    await story.kubectl("patch", "bg", "orders", "--type=merge", "-p", removed)

    await story.until_condition("SpecValid", "True/Accepted")
    server.kubectl(*crd, json.dumps([{"op": "remove", "path": at}]))


async def _deleted(story: Story) -> None:
    await story.kubectl("delete", "bg", "orders")

    async def gone() -> bool:
        return not await story.list("statefulset,pods")

    await eventually_async(gone, "the children are gone")
