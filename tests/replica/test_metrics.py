"""What a node's metrics say, on real disks: quorum margin, bytes at risk, append time, failover."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dledger.common.metrics import NodeMetrics, Sample
from dledger.common.status import FailoverRecord
from dledger.errors import NotLeader
from dledger.server.node_report import quorum_margin
from tests.replica.gated_files import GatedFiles
from tests.replica.group import IDS, DriverGroup, DriverNode, command
from tests.waiting import eventually

OWN = {"group": "orders", "node": "orders-0"}


def _value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"dledger_{name}", OWN | labels)


def _of_group(node: DriverNode, name: str, **labels: str) -> float | None:
    own = {"group": "test", "node": node.id}
    return node.metrics.registry.get_sample_value(f"dledger_{name}", own | labels)


def _sample(**changes: Any) -> Sample:
    values: dict[str, Any] = {each.name: 0 for each in fields(Sample)}
    return Sample(
        **values
        | {"role": "follower", "follower_lag_entries": {}, "dead_letters": {}, "fifo_waiting": {}}
        | changes
    )


def _margin(node: DriverNode) -> int | None:
    return quorum_margin(node.driver.core)


# -- what is worked out ------------------------------------------------------------------------


async def test_a_whole_group_of_three_can_lose_one(group: DriverGroup) -> None:
    """Three voters that answer are one more than a majority; only the leader knows."""
    group.start()
    leader = await group.leader()

    assert await eventually(lambda: _margin(leader)) == 1
    assert [_margin(follower) for follower in group.followers()] == [None, None]


async def test_the_margin_is_nothing_while_a_voter_is_silent(group: DriverGroup) -> None:
    """And is back when it answers again."""
    group.start()
    leader = await group.leader()
    lost = group.followers()[0]

    group.cut.add(lost.id)
    await eventually(lambda: _margin(leader) == 0)
    group.cut.discard(lost.id)

    await eventually(lambda: _margin(leader) == 1)


async def test_what_no_majority_has_synced_is_at_risk(tmp_path: Path) -> None:
    """From the leader's writing it until a second disk has it."""
    files = {node: GatedFiles() for node in IDS}
    group = DriverGroup(tmp_path, files=files)
    group.start()
    leader = await group.leader()
    for follower in group.followers():
        files[follower.id].gate.clear()

    proposal = asyncio.ensure_future(leader.driver.propose(command("x" * 100), grows=True))
    at_risk = await eventually(lambda: leader.driver.core.uncommitted_bytes)
    for each in files.values():
        each.gate.set()

    assert at_risk == len(command("x" * 100))
    assert await proposal == "x" * 100
    assert [node.driver.core.uncommitted_bytes for node in group.nodes.values()] == [0, 0, 0]
    await group.stop()


async def test_a_sync_that_does_not_end_is_seen(tmp_path: Path) -> None:
    """No histogram has it before it ends."""
    files = {node: GatedFiles() for node in IDS}
    group = DriverGroup(tmp_path, files=files)
    group.start()
    leader = await group.leader()
    stuck = group.followers()[0]
    files[stuck.id].gate.clear()

    await leader.driver.propose(command("x"), grows=True)

    await eventually(lambda: stuck.driver.sync_running_s() > 0.1)
    files[stuck.id].gate.set()
    await eventually(lambda: stuck.driver.sync_running_s() == 0)
    await group.stop()


async def test_commands_that_were_answered_are_timed(group: DriverGroup) -> None:
    """On the leader alone; one that is refused has no time."""
    group.start()
    leader = await group.leader()
    follower = group.followers()[0]

    await asyncio.gather(*(leader.driver.propose(command(str(n)), grows=True) for n in range(20)))
    with pytest.raises(NotLeader):
        await follower.driver.propose(command("x"), grows=True)

    assert _of_group(leader, "append_seconds_count") == 20
    assert _of_group(leader, "batch_commands_sum") == 20
    assert _of_group(leader, "batch_bytes_sum") == sum(len(command(str(n))) for n in range(20))
    assert _of_group(follower, "append_seconds_count") == 0
    assert _of_group(leader, "sync_bytes_total") == _of_group(leader, "batch_bytes_sum")


async def test_an_election_is_counted_with_its_cause_by_the_node_that_wins(
    group: DriverGroup,
) -> None:
    """Handing leadership over is no timeout."""
    group.start()
    leader = await group.leader()
    successor = group.followers()[0]

    leader.driver.transfer_leadership(successor.id)

    await eventually(lambda: _of_group(successor, "elections_total", cause="Transfer") == 1)
    assert _of_group(successor, "elections_total", cause="ElectionTimeout") == 0
    labels = {"cause": "Transfer", "phase": "elected"}
    assert _of_group(successor, "failover_seconds_count", **labels) == 1


# -- what is shown -----------------------------------------------------------------------------


def test_every_cause_and_phase_is_there_before_the_first_election() -> None:
    """A counter that is born with its first election shows no increase."""
    metrics = NodeMetrics(**OWN)

    for cause in ("Bootstrap", "Transfer", "ConnectionLost", "ElectionTimeout"):
        assert _value(metrics.registry, "elections_total", cause=cause) == 0
        for phase in ("detected", "elected", "first_ack"):
            labels = {"cause": cause, "phase": phase}
            assert _value(metrics.registry, "failover_seconds_count", **labels) == 0


def test_a_failover_is_told_in_seconds_by_phase() -> None:
    """As the record has it in milliseconds."""
    metrics = NodeMetrics(**OWN)

    metrics.elected(
        FailoverRecord(
            from_id="a",
            to_id="b",
            term=7,
            cause="ConnectionLost",
            detected_ms=100,
            elected_ms=250,
            first_ack_ms=30,
            at_ms=1,
        )
    )

    for phase, seconds in (("detected", 0.1), ("elected", 0.25), ("first_ack", 0.03)):
        labels = {"cause": "ConnectionLost", "phase": phase}
        assert _value(metrics.registry, "failover_seconds_sum", **labels) == seconds
    slow = {"cause": "ConnectionLost", "phase": "elected", "le": "0.1"}
    assert _value(metrics.registry, "failover_seconds_bucket", **slow) == 0
    assert _value(metrics.registry, "failover_seconds_bucket", **slow | {"le": "0.25"}) == 1


def test_a_scrape_sees_the_newest_sample_and_nothing_of_the_one_before() -> None:
    """A leader that steps down takes its view of the followers along."""
    metrics = NodeMetrics(**OWN)

    metrics.publish(
        _sample(
            role="leader", follower_lag_entries={"orders-1": 3}, quorum_margin=1, bytes_at_risk=9
        )
    )
    leading = [
        _value(metrics.registry, name, **labels)
        for name, labels in (
            ("role", {"role": "leader"}),
            ("role", {"role": "follower"}),
            ("follower_lag_entries", {"follower": "orders-1"}),
            ("quorum_margin", {}),
            ("bytes_at_risk", {}),
        )
    ]
    metrics.publish(_sample(term=8, quorum_margin=None, bytes_at_risk=None))

    assert leading == [1, 0, 3, 1, 9]
    assert _value(metrics.registry, "role", role="leader") == 0
    assert _value(metrics.registry, "term") == 8
    assert _value(metrics.registry, "follower_lag_entries", follower="orders-1") is None
    assert _value(metrics.registry, "quorum_margin") is None


def test_every_series_names_its_group_and_node() -> None:
    """Whatever scrapes it; only what the process itself has is named by its target."""
    metrics = NodeMetrics(**OWN)
    metrics.publish(_sample(follower_lag_entries={"orders-1": 3}))
    metrics.requests.answered("SendMessage", "OK")

    series = [s for family in metrics.registry.collect() for s in family.samples]

    unnamed = {s.name for s in series if not OWN.items() <= s.labels.items()}
    assert {name.partition("_")[0] for name in unnamed} == {"process"}
