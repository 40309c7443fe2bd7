"""Which other members keep a group from being forced, and what a repeated request does."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, cast

import pytest

from dledger.errors import Refused, Unavailable
from dledger.raft.force import SILENT_TIMEOUTS
from dledger.replica.force_group import (
    Force,
    Forced,
    Reached,
    carry_out,
    check_named,
    check_reached,
)
from dledger.types import Member, NodeId
from dledger_sim.process import member
from tests.raft.bench import Alone

FORCE = Force(group_id="g", node_id=NodeId("1"), last_term=2, last_index=4)


def survivor(voters: int = 3) -> Alone:
    node = Alone(voters=voters, terms=(1, 1, 2))
    node.tick(SILENT_TIMEOUTS * 20)
    node.settle()
    return node


def reached(
    name: str, *, term: int = 2, index: int = 4, leader: str = "", epoch: int = 0
) -> Reached:
    return Reached(
        member=member(name), leader_id=leader, last_term=term, last_index=index, epoch=epoch
    )


def test_a_survivor_whom_nobody_answers_may_be_forced() -> None:
    """That the disks are lost for good, only the administrator knows."""
    check_reached(survivor().raft, [])


def test_a_majority_that_answers_is_never_forced_apart() -> None:
    """It elects a leader by itself."""
    with pytest.raises(Refused, match="are a majority with node 1: group-2;"):
        check_reached(survivor().raft, [reached("2")])


def test_a_minority_that_answers_and_has_no_more_is_left_out() -> None:
    """Of five, two are left, with the same log."""
    check_reached(survivor(5).raft, [reached("2"), reached("6")])


@pytest.mark.parametrize(("term", "index"), [(2, 5), (3, 4), (3, 1)])
def test_the_survivor_with_the_most_of_the_log_is_the_one(term: int, index: int) -> None:
    """By term, then index (Raft 5.4.1): its log has all that the other could have committed."""
    with pytest.raises(Refused, match=f"its last entry is {index} of term {term}, that of node 1"):
        check_reached(survivor(5).raft, [reached("2", term=term, index=index)])


def test_a_member_that_knows_a_leader_is_believed() -> None:
    """However few answer: this node may have missed a change of the members."""
    with pytest.raises(Refused, match="node 9 leads it"):
        check_reached(survivor(5).raft, [reached("2", leader="9")])


def test_a_member_of_a_later_epoch_is_believed() -> None:
    """The group was forced on another survivor before."""
    with pytest.raises(Refused, match="to its epoch 1"):
        check_reached(survivor(5).raft, [reached("2", epoch=1)])


@pytest.mark.parametrize(
    ("group", "node", "own", "why"),
    [
        ("h", "1", "g", "belongs to group 'g', not 'h'"),
        ("g", "2", "g", "this is node 1, not '2'"),
        ("g", "1", "", "its disk is empty"),
    ],
)
def test_another_node_or_group_than_meant_is_refused(
    group: str, node: str, own: str, why: str
) -> None:
    """An address may lead to another one than the administrator looked at."""
    force = Force(group_id=group, node_id=NodeId(node), last_term=2, last_index=4)

    with pytest.raises(Refused, match=why):
        check_named(force, group_id=own, node_id=NodeId("1"))


class Driver:
    """A driver of a core whose writes end when its loop gets a turn, if the disk works."""

    def __init__(self, *, disk_works: bool = True) -> None:
        self.node = survivor()
        self.core = self.node.raft
        self.is_running = True
        self.forced = 0
        self._disk_works = disk_works

    def force_group(self, *, last_term: int, last_index: int) -> tuple[int, int]:
        self.forced += 1
        return self.node.do(
            lambda raft: raft.force_group(last_term=last_term, last_index=last_index)
        )

    def is_serving_leader(self) -> bool:
        return self.core.commit_index == self.core.last_index

    async def wait_change(self, timeout_s: float) -> None:
        await asyncio.sleep(0)
        if self._disk_works:
            self.node.settle()
        else:
            await asyncio.sleep(timeout_s)


async def nobody(members: Collection[Member]) -> list[Reached]:
    assert {one.id for one in members} == {"2", "3"}
    return []


async def force(driver: Driver, timeout_s: float = 10) -> Forced:
    return await carry_out(cast("Any", driver), FORCE, survey=nobody, timeout_s=timeout_s)


async def test_it_is_answered_when_it_is_durable_and_says_what_became_of_it() -> None:
    """Who was removed, and up to where the log was known to be committed."""
    driver = Driver()

    done = await force(driver)

    assert (done.index, done.epoch, done.committed_index) == (5, 1, 0)
    assert [one.id for one in done.removed] == ["2", "3"]
    assert driver.core.durable_index > done.index


async def test_asking_again_for_what_is_done_does_nothing() -> None:
    """As after an answer that was lost."""
    driver = Driver()
    done = await force(driver)

    again = await force(driver)

    assert (again.index, again.epoch, again.removed) == (done.index, done.epoch, done.removed)
    assert (again.committed_index, driver.forced) == (-1, 1)


async def test_a_disk_that_takes_nothing_gives_no_answer_that_it_is_done() -> None:
    """Persist before you speak; it may still be done."""
    driver = Driver(disk_works=False)

    with pytest.raises(Unavailable, match="entry 5 is not durable yet"):
        await force(driver, 0.3)


async def test_a_write_between_the_survey_and_the_act_is_noticed() -> None:
    """The core looks again when it acts."""
    driver = Driver()

    async def meanwhile(_: Collection[Member]) -> list[Reached]:
        driver.node.append(*Alone(terms=(1, 1, 2, 2)).disk.stored(5, 5), after=(2, 4), term=9)
        return []

    with pytest.raises(Refused, match="is 5 of term 2, not 4"):
        await carry_out(cast("Any", driver), FORCE, survey=meanwhile, timeout_s=1)
