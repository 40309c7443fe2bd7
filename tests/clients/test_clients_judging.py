"""``make clients`` finds what it is for: a message lost, doubled, late; a gap that is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from e2e.clients.judging import (
    Figures,
    Got,
    Send,
    Sent,
    judge,
    judge_spooled,
    leaderless_spans,
    lines,
    not_once,
    with_leader_s,
)
from e2e.clients.loads import TYPES, plan_send

KEYS = [str(number) for number in range(200)]
SENT = [Sent(key=key, ended_s=number / 10) for number, key in enumerate(KEYS)]
GOT = [Got(key=each.key, at_s=each.ended_s + 1) for each in SENT]
STORED = dict.fromkeys(KEYS, 1)


def _kept(figures: Figures) -> list[bool]:
    return [line.kept for line in lines("x", figures)]


def _broken(figures: Figures) -> list[str]:
    return [line.what.removeprefix("x: ") for line in lines("x", figures) if not line.kept]


def test_a_calm_run_is_kept() -> None:
    """Every message stored once and delivered a second later."""
    figures = judge(SENT, GOT, STORED, [])

    assert all(_kept(figures))
    assert (figures.acked, figures.late, figures.redelivered, figures.errors) == (200, 0, 0, 0)
    assert figures.latest_s == pytest.approx(1)
    assert figures.longest_gap_s == pytest.approx(0.1)


def test_a_message_that_never_comes_is_lost_and_late() -> None:
    """Though it is in the log."""
    figures = judge(SENT, GOT[:-1], STORED, [])

    assert (figures.lost, figures.late) == (["199"], 1)
    assert _broken(figures) == ["lost"]


def test_a_message_that_is_not_in_the_log_is_lost() -> None:
    """Though a consumer saw it: the next leader's consumers will not."""
    assert judge(SENT, GOT, {**STORED, "7": 0}, []).lost == ["7"]
    assert not all(_kept(judge(SENT, GOT, {**STORED, "7": 0}, [])))


def test_a_message_in_the_log_twice_is_stored_twice() -> None:
    """Whether its sender was told of it or not; a second delivery alone is none."""
    failed = [*SENT[:-1], Sent(key="199", ended_s=20, error="Unavailable")]

    assert judge(SENT, GOT, {**STORED, "7": 2}, []).stored_twice == ["7"]
    assert judge(failed, GOT, {**STORED, "199": 2}, []).stored_twice == ["199"]
    assert _broken(judge(SENT, GOT, {**STORED, "7": 2}, [])) == ["stored twice"]
    again = judge(SENT, [*GOT, GOT[0]], STORED, [])
    assert (again.redelivered, again.stored_twice) == (1, [])


def test_a_send_that_failed_promises_nothing() -> None:
    """Its message may be there or not."""
    failed = [*SENT[:-1], Sent(key="199", ended_s=20, error="Unavailable")]

    for got in (GOT, GOT[:-1]):
        figures = judge(failed, got, STORED, [])
        assert (figures.lost, figures.errors, figures.error) == ([], 1, "Unavailable")
        assert all(_kept(figures))


@pytest.mark.parametrize(("late", "kept"), [(2, True), (3, False)])
def test_one_in_a_hundred_may_be_late(late: int, kept: bool) -> None:
    """Ten seconds with a leader, from acknowledgement to the first delivery."""
    got = [Got(key=each.key, at_s=each.ended_s + 10.5) for each in SENT[:late]] + GOT[late:]

    figures = judge(SENT, got, STORED, [])

    assert figures.late == late
    assert _kept(figures)[-1] is kept


def test_the_time_without_a_leader_does_not_count() -> None:
    """It comes once a second with a leader has passed: nobody could have been quicker."""
    got = [Got(key=each.key, at_s=each.ended_s + 10.5) for each in SENT]

    assert judge(SENT, got, STORED, []).late == 200
    assert judge(SENT, got, STORED, [(20.0, 21.0)]).late < 200
    assert judge(SENT, got, STORED, [(0.0, 40.0)]).late == 0
    assert with_leader_s((10, 30), [(0, 12), (20, 25), (29, 40)]) == 12
    assert with_leader_s((10, 9), []) == 0


def test_the_spans_without_a_leader_are_those_between_looks() -> None:
    """Looks in a row that found nobody are one span; what the last look saw lasts no time."""
    samples = [(0.0, True), (1.0, False), (2.0, False), (3.0, True), (4.0, False), (5.0, False)]

    assert leaderless_spans(samples) == [(1.0, 3.0), (4.0, 5.0)]
    assert leaderless_spans([(0.0, False)]) == []


def test_a_run_in_which_nothing_was_acknowledged_is_not_kept() -> None:
    """It has lost nothing, and shown nothing."""
    failed = [Sent(key=key, ended_s=0, error="Unavailable") for key in KEYS]

    assert _broken(judge(failed, [], {}, [])) == ["acknowledged", "delivered in time"]


def test_what_is_for_later_may_come_neither_early_nor_late() -> None:
    """In its queue within 2 s by the time with a leader, whatever a consumer takes."""
    sent = [Sent(key=key, ended_s=0.0, due_s=10.0) for key in ("a", "b", "c")]
    at_s = {"a": 10.5, "b": 9.9, "c": 15.0}
    got = [Got(key=key, at_s=when_s) for key, when_s in at_s.items()]
    stored = dict.fromkeys(at_s, 1)

    figures = judge(sent, got, stored, [], got)
    assert (figures.early, figures.released_late, figures.late) == (["b"], ["c"], 0)
    assert judge(sent, got, stored, [(11.0, 14.0)], got).released_late == []
    assert judge(sent, got, stored, [], got[:-1]).released_late == ["c"]
    assert len(_broken(figures)) == 2


def test_a_message_group_keeps_its_order_in_the_log_and_at_its_consumer() -> None:
    """A delivery that is repeated breaks none, nor does a send that failed, nor another group."""
    sent = [Sent(key=f"{group}{n}", ended_s=n, group=group) for n in range(3) for group in "xy"]
    keys = [each.key for each in sent]

    def seen(got: list[str], stored: list[str], first: Sent = sent[0]) -> object:
        deliveries = [Got(key=key, at_s=5.0 + n) for n, key in enumerate(got)]
        return judge([first, *sent[1:]], deliveries, dict.fromkeys(stored, 1), []).out_of_order

    assert seen([*keys, "x1"], keys) == []
    assert seen(["y0", "y1", "y2", "x0", "x1", "x2"], keys) == []
    assert seen(["x1", "x0", *keys[1:]], keys) == ["x0"]
    assert seen(keys, ["x1", "x0", *keys[1:]]) == ["x0"]
    failed = replace(sent[0], error="Unavailable")
    assert seen(["x1", "x0", *keys[1:]], keys, failed) == []


def test_what_was_rolled_back_is_nobodys() -> None:
    """Neither in the log nor at a consumer; and nobody misses it."""
    sent = [Sent(key="yes", ended_s=0), Sent(key="no", ended_s=0, wanted=False)]
    got = [Got(key="yes", at_s=1)]

    assert _broken(judge(sent, got, {"yes": 1}, [])) == []
    assert _broken(judge(sent, got, {"yes": 1, "no": 1}, [])) == ["rolled back, and there"]
    both = [*got, Got(key="no", at_s=1)]
    assert judge(sent, both, {"yes": 1}, []).unwanted == ["no"]
    assert _broken(replace(judge(sent, got, {"yes": 1}, []), unended=["a half"])) == [
        "transactions left open"
    ]


def test_who_is_silent_is_asked_and_may_take_longer() -> None:
    """Late is what takes more than its own time."""
    sent = [Sent(key="asked", ended_s=0, most_s=300), Sent(key="ended", ended_s=0)]
    got = [Got(key=each.key, at_s=60) for each in sent]

    assert judge(sent, got, {"asked": 1, "ended": 1}, []).late == 1


@pytest.mark.parametrize("kind", TYPES)
def test_each_type_has_a_load_of_its_own(kind: str) -> None:
    """Its own words to the client, times in whole seconds ahead, and each message another key."""
    plans = [plan_send(kind, writer, number, 100.4) for writer in (0, 1) for number in range(32)]

    assert len({each.key for each in plans}) == len(plans)
    assert all(each.options for each in plans) is (kind != "NORMAL")
    assert {each.group for each in plans} == (
        {f"{writer}-{n}" for writer in (0, 1) for n in range(4)} if kind == "FIFO" else {""}
    )
    if kind == "DELAY":
        assert {each.due_s for each in plans} == set(range(103, 111))
    if kind == "TRANSACTION":
        ways = {(each.is_wanted, each.options.get("end")) for each in plans}
        assert ways == {(True, "commit"), (True, None), (False, "rollback"), (False, None)}


@pytest.mark.parametrize(
    ("got", "wrong"),
    [
        (["a", "b"], ""),
        (["b"], "1 missing: a"),
        (["a", "b", "b"], "1 more than once: b"),
        (["a", "b", "c"], "1 not sent: c"),
        ([], "2 missing: a, b"),
    ],
)
def test_what_has_to_come_once_is_compared_both_ways(got: list[str], wrong: str) -> None:
    """Too few, too many, and ones that were not sent."""
    assert not_once(["a", "b"], got) == wrong


# -- through a sidecar -----------------------------------------------------------------------------

SENDS = [
    Send(producer=producer, row=row, lasted_s=row / 10)
    for row in range(1, 21)
    for producer in (0, 1)
]
QUEUE = [(each.producer, each.row) for each in SENDS]


def test_producers_that_noticed_nothing_are_kept() -> None:
    """Each once; what other producers sent may lie between."""
    found = judge_spooled(SENDS, sorted(QUEUE))

    assert (found.amiss(), found.sent, found.answered, found.stored) == ("", 40, 40, 40)
    assert found.longest_s == pytest.approx(2.0)


def test_a_message_that_was_answered_ok_and_is_not_there_is_lost() -> None:
    """One whose send failed may be there or not."""
    failed = [*SENDS, Send(producer=0, row=21, lasted_s=3.0, error="no answer")]

    assert judge_spooled(SENDS, QUEUE[1:]).amiss() == "1 lost"
    assert judge_spooled(failed, QUEUE).amiss() == "1 errors, as no answer"
    assert judge_spooled(failed, [*QUEUE, (0, 21)]).lost == 0


def test_what_is_stored_twice_or_behind_a_later_one_is_seen() -> None:
    """A repeat is counted once, wherever it lies; order is each producer's own."""
    swapped = [*QUEUE[:-3], QUEUE[-1], QUEUE[-2], QUEUE[-3]]

    assert judge_spooled(SENDS, [*QUEUE, *QUEUE[:2]]).amiss() == "2 stored twice"
    assert judge_spooled(SENDS, swapped).amiss() == "1 out of order"


def test_a_run_in_which_nothing_was_sent_shows_nothing() -> None:
    """It is no success."""
    assert judge_spooled([], []).amiss() == "nothing was sent"
