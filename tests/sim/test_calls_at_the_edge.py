"""RocketMQ's calls at any node, and the links that pass them on, in virtual time."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import count, islice

import pytest

from dledger.errors import NotLeader, OutcomeUnknown
from dledger.rpc.rocketmq_stubs import definition
from dledger_sim.callers import CallingSender, CallOptions, meaning_of
from dledger_sim.checkers import ViolationError
from dledger_sim.deliveries import Deliveries, Lease
from dledger_sim.edge import EdgeOptions, EdgeRun
from dledger_sim.options import Options
from dledger_sim.senders import Told

SEEDS = int(os.environ.get("EDGE_SEEDS", "12"))
Code = definition.Code


def test_what_callers_were_told_holds_whatever_happens_between() -> None:
    """Sent, received and acknowledged through leaders and followers that come and go."""
    drawn = ((seed, EdgeOptions.of(seed)) for seed in count(1))
    calling = ((seed, options) for seed, options in drawn if options.calls is not None)
    outcomes = [EdgeRun(seed, options).run() for seed, options in islice(calling, SEEDS)]

    assert sum(one.received for one in outcomes) > 5 * SEEDS
    assert sum(one.links for one in outcomes) > SEEDS
    assert sum(one.unknown for one in outcomes) > 0


def test_a_group_without_faults_takes_and_hands_out_each_message_once() -> None:
    """All through followers' links: nothing is refused, unknown, or delivered again."""
    drawn = EdgeOptions.producing(1)
    quiet = replace(
        drawn,
        group=replace(Options(), clients=0, segment_bytes=4 << 20),
        wire=replace(drawn.wire, delay_ms=1, room=1000, break_s=0.0, mute_s=0.0),
        senders=(),
        thieves=False,
        calls=CallOptions(messages=30, at_once=4, invisible_ms=30_000, links_only=True),
    )
    outcome = EdgeRun(1, quiet).run()

    assert (outcome.acknowledged, outcome.unknown, outcome.refused) == (30, 0, 0)
    assert outcome.links >= 2


def test_a_run_with_callers_is_the_same_each_time() -> None:
    """Or a seed that fails could not be looked at."""
    seed = next(seed for seed in count(1) if EdgeOptions.of(seed).calls is not None)

    assert EdgeRun(seed).run() == EdgeRun(seed).run()


def _lease(handle: str, *, attempt: int = 1, at_us: int = 10, until_us: int = 100) -> Lease:
    return Lease(handle=handle, attempt=attempt, body=b"0", arrived_us=at_us, least_us=until_us)


PLACE = (0, 0)


def _come_at_once(seen: Deliveries, first: Lease) -> None:
    del first
    seen.note(PLACE, _lease("b", attempt=2, at_us=99), began_us=50)


def _again_behind_its_ack(seen: Deliveries, first: Lease) -> None:
    seen.note_ack(first)
    seen.note_answer(PLACE, first, 20, held=True)
    seen.note(PLACE, _lease("b", attempt=2, at_us=500), began_us=200)


def _stale_while_it_lasts(seen: Deliveries, first: Lease) -> None:
    seen.note_ack(first)
    seen.note_answer(PLACE, first, 20, held=False)


def _not_counted(seen: Deliveries, first: Lease) -> None:
    del first
    seen.note(PLACE, _lease("b", attempt=1, at_us=500), began_us=200)


@pytest.mark.parametrize(
    ("does", "what"),
    [
        (_come_at_once, "is leased to another consumer until 100 us"),
        (_again_behind_its_ack, "its acknowledgement was answered"),
        (_stale_while_it_lasts, "its handle is called stale"),
        (_not_counted, "for the 1. time behind the 1."),
    ],
)
def test_a_delivery_that_breaks_a_promise_is_seen(
    does: Callable[[Deliveries, Lease], None], what: str
) -> None:
    """The checker's own test."""
    seen, first = Deliveries(), _lease("a")
    seen.note(PLACE, first, began_us=0)

    with pytest.raises(ViolationError, match=what):
        does(seen, first)


def test_a_message_is_missing_until_its_acknowledgement_may_be_carried_out() -> None:
    """One that was refused did nothing; of one without an answer nobody knows."""
    seen, first = Deliveries(), _lease("a")
    assert seen.missing({PLACE}) == {PLACE}
    seen.note(PLACE, first, began_us=0)
    assert seen.missing({PLACE}) == {PLACE}
    seen.note_ack(first)
    assert seen.missing({PLACE}) == set()
    seen.note_refusal(first)
    assert seen.missing({PLACE}) == {PLACE}


@pytest.mark.parametrize(
    ("stored", "what"),
    [
        ({0: [(0, 0)], 2: [(0, 1)], 1: [(0, 2), (1, 0)]}, "1 is stored 2 times"),
        ({2: [(0, 1)]}, "0 was acknowledged and is lost"),
        ({0: [(0, 1)], 2: [(0, 1)]}, "0 is not where it was told to be"),
        ({0: [(0, 0)], 2: [(0, 1)], 3: [(1, 0)]}, "3 is stored, in spite of NotLeader"),
    ],
)
def test_a_send_that_breaks_a_promise_is_seen(
    stored: dict[int, list[tuple[int, int]]], what: str
) -> None:
    """The checker's own test: one of unknown outcome may be there or not."""
    sender = CallingSender("c", EdgeRun(1).wire, CallOptions())
    sender.sent = [
        Told(0, -1, offset=0),
        Told(1, -1, error=OutcomeUnknown("1")),
        Told(2, -1, offset=1),
        Told(3, -1, error=NotLeader(None)),
    ]

    sender.check({0: [(0, 0)], 2: [(0, 1)]})
    sender.check({0: [(0, 0)], 1: [(1, 0)], 2: [(0, 1)]})
    with pytest.raises(ViolationError, match=what):
        sender.check(stored)


@pytest.mark.parametrize(
    ("code", "words", "known"),
    [
        (Code.HA_NOT_AVAILABLE, "the group has no leader at the moment: try again", True),
        (Code.HA_NOT_AVAILABLE, "whether it was carried out is not known", False),
        (Code.TOO_MANY_REQUESTS, "", True),
        (Code.INTERNAL_SERVER_ERROR, "", True),
    ],
)
def test_a_status_says_whether_nothing_was_done(
    code: definition.Code.ValueType, words: str, known: bool
) -> None:
    meant = meaning_of(definition.Status(code=code, message=words))

    assert isinstance(meant, OutcomeUnknown) is not known


def test_a_good_request_is_never_told_of_a_bug() -> None:
    with pytest.raises(ViolationError, match="INTERNAL_ERROR"):
        meaning_of(definition.Status(code=Code.INTERNAL_ERROR, message="see its log"))
