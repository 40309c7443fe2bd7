"""When a leader's disk is too slow for it to lead."""

from __future__ import annotations

from pathlib import Path

from dledger.replica.driver import DriverConfig
from dledger.replica.leader_health import StallLimits, StallWatch
from tests.replica.gated_files import GatedFiles
from tests.replica.group import IDS, DriverGroup, DriverNode, command
from tests.waiting import eventually

LIMITS = StallLimits(stall_s=1.0, behind_s=0.5)


def test_a_disk_slower_than_the_others_has_half_the_time() -> None:
    """The group has committed what is still being written here."""
    watch = StallWatch(LIMITS)
    assert not watch.exceeded(0.0, busy_since_s=0.0, is_behind=True)
    assert not watch.exceeded(0.49, busy_since_s=0.0, is_behind=True)
    assert watch.exceeded(0.5, busy_since_s=0.0, is_behind=True)


def test_a_disk_as_slow_as_the_others_has_all_of_it() -> None:
    """A change of leader would not help; at the end it is tried."""
    watch = StallWatch(LIMITS)
    assert not watch.exceeded(0.99, busy_since_s=0.0, is_behind=False)
    assert watch.exceeded(1.0, busy_since_s=0.0, is_behind=False)


def test_time_before_the_others_were_faster_is_not_time_behind() -> None:
    """Disks that hung together for long come back one after the other."""
    watch = StallWatch(LIMITS)
    assert not watch.exceeded(0.7, busy_since_s=0.0, is_behind=False)
    assert not watch.exceeded(0.8, busy_since_s=0.0, is_behind=True)
    assert not watch.exceeded(0.9, busy_since_s=0.0, is_behind=True)


def test_each_sync_has_its_own_time() -> None:
    """A disk that is a little behind all the time, but never for long, can lead."""
    watch = StallWatch(LIMITS)
    assert not watch.exceeded(0.4, busy_since_s=0.0, is_behind=True)
    assert not watch.exceeded(0.8, busy_since_s=0.7, is_behind=True)
    assert not watch.exceeded(0.9, busy_since_s=None, is_behind=True)
    assert not watch.exceeded(1.4, busy_since_s=0.95, is_behind=True)


async def test_a_leader_gives_way_when_the_others_commit_without_its_disk(tmp_path: Path) -> None:
    """Well before the time after which any stalled disk makes it step down."""
    files = {node: GatedFiles() for node in IDS}
    config = DriverConfig(tick_s=0.01, stall=StallLimits(stall_s=3600, behind_s=0.05))
    group = DriverGroup(tmp_path, files=files, config=config)
    group.start()
    leader = await group.leader()
    files[leader.id].gate.clear()

    stuck = leader.driver.submit(command("x"), grows=True)
    successor = await eventually(lambda: _other_leader(group, leader))

    assert await successor.driver.propose(command("y"), grows=True) == "y"
    files[leader.id].gate.set()
    await eventually(stuck.done)
    assert [e.data for e in successor.state.applied] == [command("x"), command("y")]
    await group.stop()


async def test_a_leader_whose_disk_is_no_slower_than_the_others_stays(tmp_path: Path) -> None:
    """All disks hang together: nobody is better off as leader."""
    files = {node: GatedFiles() for node in IDS}
    config = DriverConfig(tick_s=0.01, stall=StallLimits(stall_s=3600, behind_s=0.05))
    group = DriverGroup(tmp_path, files=files, config=config)
    group.start()
    leader = await group.leader()
    for each in files.values():
        each.gate.clear()

    stuck = leader.driver.submit(command("x"), grows=True)
    await eventually(lambda: leader.driver.sync_running_s() > 0.2)
    assert leader.driver.is_serving_leader()

    files.pop(leader.id).gate.set()  # first, so that it is behind nobody
    await eventually(lambda: leader.driver.core.durable_index == leader.driver.core.last_index)
    for each in files.values():
        each.gate.set()
    assert await stuck == "x"
    assert leader.driver.is_serving_leader()
    await group.stop()


def _other_leader(group: DriverGroup, former: DriverNode) -> DriverNode | None:
    others = (node for node in group.nodes.values() if node is not former)
    return next((node for node in others if node.driver.is_serving_leader()), None)
