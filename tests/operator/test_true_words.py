"""Words that are true: no alarm for what is as it should be, and who is meant where somebody is."""

from __future__ import annotations

import functools
import re
import textwrap
from dataclasses import replace
from typing import Any

import pytest
import yaml

from dledger_operator.api import names
from dledger_operator.api.brokeroperation import PENDING, BrokerOperation
from dledger_operator.api.reasons import Reason
from dledger_operator.cluster.api import ApiError
from dledger_operator.cluster.cluster import Cluster
from dledger_operator.controllers.reconcile import GRACE_S
from dledger_operator.decisions.actions import Apply, Repair
from dledger_operator.decisions.checks import problems
from dledger_operator.decisions.facts import facts_of
from dledger_operator.decisions.outcomes import Rejected
from dledger_operator.decisions.plan import plan
from dledger_operator.metrics.metrics import Metrics
from dledger_operator.observed.observed import Observed
from dledger_operator.observed.parsers import parse_pod
from dledger_operator.resources import desired
from dledger_operator.status.operation_status import operation_status
from dledger_operator.status.status import status
from tests.house.sources import ROOT
from tests.operator.fakes import FakeApi, FakeNodes, World
from tests.operator.samples import (
    FREE,
    FRESH_ID,
    NOW,
    PLATFORM,
    bootstrapped,
    converged,
    joined,
    member,
    members,
    node,
    pods,
)
from tests.operator.test_reconcile import Operator

FIVE = bootstrapped({"replicas": 5})


def _made(observed: Observed) -> dict[str, type]:
    """Return how each Service of a group that grows to five is made."""
    facts = facts_of(FIVE, observed)
    actions = plan(facts, desired(facts.group, PLATFORM), fresh_id=FRESH_ID)
    made = [each for each in actions if isinstance(each, Apply | Repair)]
    services = [each for each in made if each.manifest["kind"] == "Service"]
    return {each.manifest["metadata"]["name"]: type(each) for each in services}


def test_the_service_of_a_new_pod_was_not_missing() -> None:
    """Found: LOW. An Event said that somebody had deleted it; one that was there is repaired."""
    seen = converged(bootstrapped())
    children = {
        ref: child for ref, child in seen.children.items() if ref != ("Service", "orders-1-client")
    }

    made = _made(replace(seen, children=children))

    assert made["orders-1-client"] is Repair
    assert (made["orders-3-client"], made["orders-4-client"]) == (Apply, Apply)


def test_a_new_member_below_one_that_votes_already_did_not_lose_its_disk() -> None:
    """Found: LOW. Degraded told of an empty disk when the higher pod was ready first."""
    grown = (
        *members(0, 1, 2),
        member("id-4", "orders-4", role="follower", match_index=7),
        member("id-3", "orders-3", role="follower", voter=False),
    )
    before = [{"name": "orders-3", "id": "", "joining": True}]
    seen = converged(
        FIVE,
        pods=pods(0, 1, 2, 3, 4),
        nodes=joined(0, 1, 2, 3, 4, members=grown),
    )

    found = facts_of(bootstrapped({"replicas": 5}, members=before), seen)
    lost = facts_of(bootstrapped({"replicas": 5}), seen)

    assert found.entering == ("orders-3",)
    assert lost.entering == ()
    rows = {row["name"]: row["joining"] for row in status(found, now=NOW)["members"]}
    assert rows == {f"orders-{n}": n == 3 for n in range(5)}


def test_whose_finalizer_holds_a_pod_is_said_beside_its_name() -> None:
    """Found: LOW. `it is being deleted` sent nobody anywhere."""
    parsed = parse_pod(
        {
            "metadata": {
                "name": "orders-2",
                "deletionTimestamp": NOW,
                "finalizers": ["example.com/audit"],
            }
        }
    )
    seen = converged(bootstrapped(), pods={**pods(0, 1), "orders-2": parsed})

    rows = status(facts_of(bootstrapped(), seen), now=NOW)["conditions"]

    ready = next(row["message"] for row in rows if row["type"] == "Ready")
    assert ready == "not ready: orders-2 (being deleted, held by finalizers: example.com/audit)"


def test_a_member_without_a_zone_has_no_empty_line() -> None:
    """`kubectl describe` printed one for each."""
    rows = status(facts_of(bootstrapped(), converged(bootstrapped())), now=NOW)["members"]

    assert [row for row in rows if "zone" in row] == []


def test_a_look_keeps_its_table_when_a_leader_is_back() -> None:
    """Found: LOW. What would have been lost was gone from the status with the words of its end."""
    table = [{"pod": "orders-1", "nodeId": "id-1", "lastTerm": 3, "lastIndex": 9}]
    body: dict[str, Any] = {
        "metadata": {"namespace": "shop", "name": "look", "uid": "uid-9"},
        "spec": {"group": "orders", "kind": "ForceNewGroup", "forceNewGroup": {}},
        "status": {"phase": PENDING, "survivors": table, "message": "orders-1 would be the group"},
    }
    end = Rejected(Reason.MAJORITY_THERE, "orders-1 leads, and a majority follows it")

    after = operation_status(BrokerOperation.parse(body), end, now=NOW)

    assert (after["phase"], after["survivors"]) == ("Failed", table)
    assert after["message"] == f"{end.message}; before: orders-1 would be the group"
    assert after["conditions"][0]["message"] == after["message"]


class _StartingNodes(FakeNodes):
    """Nodes of an older group, which answer one after the other."""

    answering = 0

    async def poll(self, pods: Any, *, everyone: bool = False) -> Any:
        self._over_tls = set()
        there = sorted(pods)[: self.answering]
        return {name: node(f"id-{name}", group_id="older", role="follower") for name in there}


async def test_nodes_that_answer_one_after_the_other_are_no_lost_majority(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found: LOW. Each adoption told Degraded, and Recovered within a second."""
    monkeypatch.setattr("tests.operator.test_reconcile.FakeNodes", _StartingNodes)
    world = World()
    world.put_group({"replicas": 5})
    operator = Operator(world)
    nodes = operator.reconciler._nodes
    assert isinstance(nodes, _StartingNodes)
    for nodes.answering in (0, 1, 2):
        await operator.rounds(int(GRACE_S) - 1)
    assert "Degraded" not in world.events

    await operator.rounds(3)

    assert "Degraded" in world.events


async def test_a_claim_that_was_brought_back_is_told_which_labels_it_lacks() -> None:
    """Found: LOW. Who restores a volume had to read the labels off another group's."""
    world = World()
    claim = names.claim("orders", 0)
    world.put({"kind": "PersistentVolumeClaim", "metadata": {"name": claim, "labels": {}}})
    cluster = Cluster(FakeApi(world), Metrics().wrote)
    built = next(m for m in desired(bootstrapped(), PLATFORM) if m["kind"] == "StatefulSet")

    with pytest.raises(ApiError) as refused:
        await cluster.apply_child(bootstrapped(), built, known=True)

    said = str(refused.value)
    assert f"kubectl label pvc {claim} -n shop " in said
    assert all(f"{key}={value}" in said for key, value in names.labels("orders").items())


def _of_runbooks(kind: str) -> dict[str, Any]:
    """Return the manifest of that kind that is in the runbooks, for a group `orders` in `shop`."""
    words = {"GROUP": "orders", "NS": "shop", "POD": "orders-0", "CLASS": "fast", "SIZE": "10Gi"}
    text = (ROOT / "docs/runbooks.md").read_text("utf-8")
    blocks = re.findall(
        r"(?:```yaml|<<'?END'?)\n(.*?)^ *(?:```|END)$", text, re.DOTALL | re.MULTILINE
    )
    fill = functools.partial(re.sub, r"\b[A-Z]+\b", lambda word: words.get(word[0], word[0]))
    made = [yaml.safe_load(fill(textwrap.dedent(block))) for block in blocks]
    (found,) = (each for each in made if each["kind"] == kind)
    return dict(found)


def test_the_group_of_the_page_for_production_is_one_that_is_acted_on() -> None:
    """Whoever copies it gets what it says, once its images are allowed."""
    text = (ROOT / "docs/production.md").read_text("utf-8")
    (block,) = text.split("```yaml\n")[1:]
    body = yaml.safe_load(block.partition("```")[0])
    body["metadata"]["uid"] = "uid-1"

    group = FREE.group(body)

    assert (group.unknown, group.unreadable, problems(group, Observed())) == ((), "", ())
    for constraint in group.spec.topology_spread_constraints:
        labels = constraint["labelSelector"]["matchLabels"]
        assert labels.items() <= names.selector("orders").items()


def test_the_claim_of_the_runbook_is_one_that_the_operator_takes() -> None:
    """Found: LOW. The labels that make it the group's own were in no document."""
    claim = _of_runbooks("PersistentVolumeClaim")

    assert claim["metadata"]["labels"] == names.labels("orders")
    assert claim["metadata"]["name"] == names.claim("orders", 0)


def test_the_pod_of_the_runbook_has_the_disk_where_a_node_has_it() -> None:
    """Found: LOW. Pausing a group stops no pod, and no manifest was given."""
    built = next(m for m in desired(bootstrapped(), PLATFORM) if m["kind"] == "StatefulSet")
    node_pod, pod = built["spec"]["template"]["spec"], _of_runbooks("Pod")["spec"]
    (mount,) = pod["containers"][0]["volumeMounts"]

    assert mount in [
        {"name": one["name"], "mountPath": one["mountPath"]}
        for one in node_pod["containers"][0]["volumeMounts"]
    ]
    for key in ("runAsNonRoot", "runAsUser", "fsGroup", "seccompProfile"):
        assert pod["securityContext"][key] == node_pod["securityContext"][key], key
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": names.claim("orders", 0)}
