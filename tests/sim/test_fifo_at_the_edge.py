"""FIFO topics through leaders and followers that come and go, in virtual time."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import count, islice

import pytest

from dledger_sim.callers import CallOptions
from dledger_sim.checkers import ViolationError
from dledger_sim.deliveries import Lease
from dledger_sim.edge import EdgeOptions, EdgeRun
from dledger_sim.options import Options
from dledger_sim.ordered import Ordered

SEEDS = int(os.environ.get("EDGE_SEEDS", "8"))


def test_message_groups_keep_their_order_whatever_happens_between() -> None:
    """Over failovers, lost answers and breaking links; and nothing is lost."""
    drawn = ((seed, EdgeOptions.of(seed)) for seed in count(1))
    calling = ((seed, options) for seed, options in drawn if options.calls is not None)
    received = 0
    for seed, options in islice(calling, SEEDS):
        assert options.calls is not None
        calls = replace(options.calls, in_order=True, consumers=3)
        received += EdgeRun(seed, replace(options, calls=calls)).run().received

    assert received > 5 * SEEDS


def test_a_group_without_faults_hands_out_each_message_of_a_fifo_topic_once() -> None:
    """All through followers' links."""
    drawn = EdgeOptions.producing(1)
    quiet = replace(
        drawn,
        group=replace(Options(), clients=0, segment_bytes=4 << 20),
        wire=replace(drawn.wire, delay_ms=1, room=1000, break_s=0.0, mute_s=0.0),
        senders=(),
        thieves=False,
        calls=CallOptions(
            messages=30, at_once=4, invisible_ms=30_000, links_only=True, in_order=True
        ),
    )
    outcome = EdgeRun(1, quiet).run()

    assert (outcome.acknowledged, outcome.unknown, outcome.refused) == (30, 0, 0)


def _lease(at_us: int, *, until_us: int = 100, acked_us: int = 0) -> Lease:
    lease = Lease(handle=f"{at_us}", attempt=1, body=b"", arrived_us=at_us, least_us=until_us)
    if acked_us:
        lease.acks, lease.first_ack_us = 1, acked_us
    return lease


def _overtaken(seen: Ordered) -> None:
    seen.note("one", [((0, 1), "a", _lease(10))])


def _behind_a_later_ack(seen: Ordered) -> None:
    seen.note("one", [((0, 0), "a", _lease(10, acked_us=50))])
    seen.note("two", [((0, 1), "a", _lease(20))])


def _with_two(seen: Ordered) -> None:
    seen.note("one", [((0, 0), "a", _lease(10, acked_us=11)), ((0, 1), "a", _lease(10))])
    seen.note("two", [((0, 1), "a", _lease(20)), ((0, 2), "a", _lease(20))])


def _turned_round(seen: Ordered) -> None:
    seen.note("one", [((0, 1), "a", _lease(10)), ((0, 0), "a", _lease(10))])


@pytest.mark.parametrize("wrong", [_overtaken, _behind_a_later_ack, _with_two, _turned_round])
def test_an_order_that_is_broken_is_seen(wrong: Callable[[Ordered], None]) -> None:
    """Or the runs above would show nothing."""
    seen = Ordered()
    stored = [((0, offset), "a") for offset in range(3)] + [((0, 9), "b")]

    def look() -> None:
        wrong(seen)
        seen.check(stored)

    with pytest.raises(ViolationError):
        look()


def test_an_order_that_is_kept_is_none() -> None:
    """What was acknowledged is done; another group goes on meanwhile."""
    seen = Ordered()
    seen.note("one", [((0, 0), "a", _lease(10, acked_us=15)), ((0, 9), "b", _lease(10))])
    seen.note("two", [((0, 1), "a", _lease(20, until_us=30)), ((0, 2), "a", _lease(20))])
    seen.note("three", [((0, 1), "a", _lease(120)), ((0, 2), "a", _lease(120))])

    seen.check([((0, offset), "a") for offset in range(3)] + [((0, 9), "b")])
