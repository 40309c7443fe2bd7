"""A group that starts from a backup: its steps, what a claim remembers, what is never founded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from dledger.common.status import NodeStatus
from dledger_operator.api import names
from dledger_operator.api.reasons import Reason
from dledger_operator.api.spec import BrokerGroup
from dledger_operator.decisions.actions import (
    Action,
    Apply,
    Bootstrap,
    Create,
    MarkRestored,
    RecordGroupId,
)
from dledger_operator.decisions.facts import facts_of
from dledger_operator.decisions.plan import plan
from dledger_operator.decisions.recovery import (
    NoClaim,
    NoJob,
    NotRestoring,
    Recovery,
    Restored,
    RestoreFailed,
    Restoring,
    blocks_nodes,
    recovery,
)
from dledger_operator.observed.job_status import JobFailed, JobRunning, JobSucceeded
from dledger_operator.observed.observed import Observed, Volume, ref_of
from dledger_operator.resources import desired
from dledger_operator.resources.recovery import DONE, PENDING
from dledger_operator.status.status import status
from tests.operator.backup_samples import RESULT, STORE
from tests.operator.samples import (
    FRESH_ID,
    GROUP_ID,
    NOW,
    PLATFORM,
    bootstrapped,
    converged,
    group,
    joined,
    node,
    pods,
    unjoined,
    volumes,
)

SPEC: dict[str, Any] = {"bootstrap": {"recovery": {"store": STORE, "groupId": "old"}}}
CLAIM = names.claim("orders", 0)
DENIED = JobFailed(error="StoreDenied: s3://b denies access")


def _claim(mark: str) -> dict[str, Volume]:
    return {CLAIM: Volume(name=CLAIM, size="10Gi", storage_class_name="standard", recovery=mark)}


def _unbuilt(**changes: Any) -> Observed:
    """Return what is seen before there are nodes: every child but the StatefulSet."""
    built = {ref_of(m): m for m in desired(group(SPEC), PLATFORM)}
    del built["StatefulSet", "orders"]
    return Observed(children=built, **changes)


def _plan(of: BrokerGroup, observed: Observed) -> tuple[Action, ...]:
    return plan(facts_of(of, observed), desired(of, PLATFORM), fresh_id=FRESH_ID)


def _refs(actions: tuple[Action, ...]) -> list[tuple[str, str]]:
    return [ref_of(action.manifest) for action in actions if isinstance(action, Create)]


def _built(actions: Iterable[Action]) -> list[tuple[str, str]]:
    return [ref_of(each.manifest) for each in actions if isinstance(each, Apply | Create)]


STATES: list[tuple[BrokerGroup, Observed, Recovery]] = [
    (group(), Observed(), NotRestoring()),
    (group(SPEC), Observed(), NoClaim()),
    (group(SPEC), _unbuilt(volumes=_claim(PENDING)), NoJob()),
    (group(SPEC), _unbuilt(volumes=_claim(PENDING), recovery=JobRunning(note="x")), Restoring("x")),
    (
        group(SPEC),
        _unbuilt(volumes=_claim(PENDING), recovery=JobSucceeded(result=RESULT)),
        Restored(RESULT),
    ),
    (
        group(SPEC),
        _unbuilt(volumes=_claim(PENDING), recovery=DENIED),
        RestoreFailed(DENIED.error),
    ),
    (group(SPEC), _unbuilt(volumes=_claim(DONE)), NotRestoring()),
    (group(SPEC), _unbuilt(volumes=_claim(DONE), recovery=DENIED), NotRestoring()),
    (group(SPEC), _unbuilt(volumes=volumes(0, 1, 2)), NotRestoring()),
    (group(SPEC), converged(group(SPEC), volumes=_claim(PENDING)), NotRestoring()),
    (group(SPEC, groupId=GROUP_ID), Observed(), NotRestoring()),
]


@pytest.mark.parametrize(("of", "observed", "expected"), STATES)
def test_how_far_a_recovery_has_come_is_read_from_claim_and_job(
    of: BrokerGroup, observed: Observed, expected: Recovery
) -> None:
    """Not from the status, which goes with the object."""
    assert recovery(of, observed) == expected


@pytest.mark.parametrize(("of", "observed", "expected"), STATES)
def test_nodes_wait_until_the_volume_is_restored(
    of: BrokerGroup, observed: Observed, expected: Recovery
) -> None:
    """Everything else is built meanwhile."""
    planned = _plan(of, replace(observed, children={}))
    applied = _built(planned)

    blocked = blocks_nodes(recovery(of, replace(observed, children={})))
    assert (("StatefulSet", "orders") in applied) == bool(of.group_id and not blocked)
    assert (RecordGroupId(FRESH_ID, adopted=False) in planned) == (not of.group_id and not blocked)
    assert ("Service", "orders") in applied


def test_first_comes_the_claim_then_the_job_then_the_mark_then_the_nodes() -> None:
    """One step a round, each seen before the next."""
    of = group(SPEC)
    well = JobSucceeded(result=RESULT)

    assert _refs(_plan(of, _unbuilt())) == [("PersistentVolumeClaim", CLAIM)]
    assert _refs(_plan(of, _unbuilt(volumes=_claim(PENDING)))) == [("Job", "orders-recovery")]
    assert _plan(of, _unbuilt(volumes=_claim(PENDING), recovery=JobRunning())) == ()
    assert _plan(of, _unbuilt(volumes=_claim(PENDING), recovery=well)) == (
        MarkRestored(CLAIM, RESULT),
    )
    restored = _unbuilt(volumes=_claim(DONE), recovery=well)
    assert _plan(of, restored) == (RecordGroupId(FRESH_ID, adopted=False),)
    *_, built = _plan(group(SPEC, groupId=FRESH_ID), restored)
    assert _built([built]) == [("StatefulSet", "orders")]


def test_a_failed_recovery_changes_nothing_more() -> None:
    """No empty group in its place; deleting the Job makes it anew."""
    of = group(SPEC)

    assert _plan(of, _unbuilt(volumes=_claim(PENDING), recovery=DENIED)) == ()
    assert _refs(_plan(of, _unbuilt(volumes=_claim(PENDING)))) == [("Job", "orders-recovery")]


def test_a_claim_of_an_earlier_group_is_not_restored_over() -> None:
    """The nodes start on it, and what it carries is adopted."""
    of = group(SPEC, groupId=FRESH_ID)
    *_, built = _plan(of, _unbuilt(volumes=volumes(0, 1, 2)))

    assert _built([built]) == [("StatefulSet", "orders")]
    assert RecordGroupId(GROUP_ID, adopted=True) in _plan(of, converged(of))


def _nodes(*recovered_to: int) -> dict[str, NodeStatus]:
    pairs = enumerate(recovered_to)
    return {f"orders-{n}": node(f"id-{n}", recovered_to=to) for n, to in pairs}


def _started(of: BrokerGroup, nodes: dict[str, NodeStatus]) -> Observed:
    return converged(of, nodes=nodes, pods=pods(0, 1, 2, leader=None), volumes=_claim(DONE))


def test_a_restored_group_is_founded_by_its_first_node_under_a_new_id() -> None:
    """Recorded before anything is founded, as ever."""
    recorded = group(SPEC, groupId=FRESH_ID)

    first = _plan(group(SPEC), _started(group(SPEC), _nodes(4711, 0, 0)))
    then = _plan(recorded, _started(recorded, _nodes(4711, 0, 0)))

    assert first == (RecordGroupId(FRESH_ID, adopted=False),)
    (bootstrap,) = then
    assert isinstance(bootstrap, Bootstrap)
    assert (bootstrap.pod, bootstrap.group_id) == ("orders-0", FRESH_ID)
    assert [name for _, name, _ in bootstrap.members] == ["orders-0", "orders-1", "orders-2"]


def test_a_restored_disk_is_founded_also_when_the_spec_does_not_ask_for_it() -> None:
    """Applied again without `bootstrap`, the volume still has the log."""
    of = group()

    assert _plan(of, _started(of, _nodes(4711, 0, 0))) == (RecordGroupId(FRESH_ID, adopted=False),)


@pytest.mark.parametrize(
    ("of", "nodes"),
    [
        (group(SPEC), _nodes(0, 0, 0)),
        (group(SPEC), _nodes(0, 4711, 0)),
        (group(SPEC), _nodes(4711, 4711, 0)),
        (group(), _nodes(0, 4711, 0)),
        (group(SPEC, groupId=GROUP_ID), _nodes(0, 0, 0)),
        (group(groupId=GROUP_ID), _nodes(0, 0, 4711)),
    ],
)
def test_nothing_else_is_ever_founded(of: BrokerGroup, nodes: dict[str, NodeStatus]) -> None:
    """An empty first disk would make the restored log, or the wish for it, void."""
    observed = _started(of, nodes)

    assert _plan(of, observed) == ()
    assert _condition(of, observed, "Degraded")[:2] == ("True", Reason.NOT_RESTORED)
    assert _condition(of, observed, "Progressing")[:2] == ("False", Reason.BLOCKED)
    assert _condition(of, observed, "Available")[0] == "False"


def test_a_restored_group_waits_for_every_replica() -> None:
    """As any other does."""
    of = group(SPEC)
    nodes = {"orders-0": _nodes(4711)["orders-0"], **unjoined(1)}

    assert _plan(of, _started(of, nodes)) == ()
    assert _condition(of, _started(of, nodes), "Degraded")[0] == "False"


def test_a_founded_group_is_not_restored_again() -> None:
    """Its disks may all be lost: that is told, and nothing else is done."""
    of = bootstrapped(SPEC)
    observed = converged(of, nodes=_nodes(4711, 0, 0), volumes=_claim(DONE))

    assert _plan(of, observed) == ()
    assert _condition(of, observed, "Degraded")[1] == Reason.ALL_DISKS_EMPTY


def test_a_running_restored_group_is_as_any_other() -> None:
    """What its first disk once was does not matter any more."""
    of = bootstrapped(SPEC)
    nodes = {**joined(1, 2), "orders-0": replace(joined(0)["orders-0"], recovered_to=4711)}

    assert _plan(of, converged(of, nodes=nodes)) == ()
    assert _condition(of, converged(of, nodes=nodes), "Progressing")[1] == Reason.COMPLETE


def _condition(of: BrokerGroup, observed: Observed, kind: str) -> tuple[str, str, str]:
    rows = {row["type"]: row for row in status(facts_of(of, observed), now=NOW)["conditions"]}
    return rows[kind]["status"], rows[kind]["reason"], rows[kind]["message"]


@pytest.mark.parametrize(
    ("observed", "kind", "said", "reason"),
    [
        (_unbuilt(), "Progressing", "True", Reason.RECOVERING),
        (_unbuilt(volumes=_claim(PENDING)), "Progressing", "True", Reason.RECOVERING),
        (_unbuilt(), "Degraded", "False", Reason.AS_EXPECTED),
        (_unbuilt(), "Available", "False", Reason.WAITING_FOR_NODES),
        (
            _unbuilt(volumes=_claim(PENDING), recovery=DENIED),
            *("Degraded", "True", Reason.RECOVERY_FAILED),
        ),
        (
            _unbuilt(volumes=_claim(PENDING), recovery=DENIED),
            *("Progressing", "False", Reason.BLOCKED),
        ),
    ],
)
def test_each_step_has_its_reason(observed: Observed, kind: str, said: str, reason: Reason) -> None:
    """Before there are nodes."""
    assert _condition(group(SPEC), observed, kind)[:2] == (said, str(reason))


def test_a_failed_recovery_is_told_in_the_pipelines_words() -> None:
    """Typed, so that the remedy is plain."""
    observed = _unbuilt(volumes=_claim(PENDING), recovery=DENIED)

    for kind in ("Degraded", "Available"):
        assert "StoreDenied: s3://b denies access" in _condition(group(SPEC), observed, kind)[2]


def test_what_holds_a_recovery_up_is_told() -> None:
    """Such as a Secret that is not there."""
    waiting = JobRunning(note='CreateContainerConfigError: secret "s3" not found')
    observed = _unbuilt(volumes=_claim(PENDING), recovery=waiting)

    assert 'secret "s3" not found' in _condition(group(SPEC), observed, "Progressing")[2]
