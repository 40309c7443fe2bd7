"""The pure parts of the bench: quantiles, schedules, gaps, cases and rows."""

from __future__ import annotations

import pytest

from e2e.bench.cases import MAX_UNDER_WAY_BYTES, QUICK, engine_cases, interleaved, peer_cases
from e2e.bench.figures import has_resumed, latency_figures, longest_gap, quantile, send_times
from e2e.bench.rows import MalformedRun, Row, Run, by_identity, from_json, merged, to_json


def test_a_quantile_is_a_value_that_was_measured() -> None:
    """Nearest rank: no interpolation invents a latency; the share counts values at or below it."""
    values = [1.0, 2.0, 3.0, 100.0]

    assert [quantile(values, share) for share in (0.25, 0.5, 0.51, 0.99, 1.0)] == [
        1,
        2,
        3,
        100,
        100,
    ]


def test_latencies_become_milliseconds() -> None:
    """The load programs count in microseconds."""
    figures = latency_figures([float(us) for us in range(1000, 0, -1)])

    assert figures == {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999, "max_ms": 1.0}
    assert latency_figures([]) == {}


def test_send_times_depend_on_the_rate_alone() -> None:
    """An open loop: when a request is due is known before the first one is sent."""
    assert list(send_times(4, 1)) == [0, 0.25, 0.5, 0.75]
    assert list(send_times(0.5, 1)) == [0]


def test_a_gap_counts_from_the_last_acknowledgement_before_the_fault() -> None:
    """The client's view: it knows nothing of the moment of the fault."""
    gap = longest_gap([1.0, 1.1, 1.2, 1.9, 2.0], fault_s=1.3, end_s=2.05, recent_s=0.5)

    assert (gap.from_s, gap.to_s, gap.is_over) == (1.2, 1.9, True)
    assert gap.seconds == pytest.approx(0.7)


def test_a_fault_that_shows_late_is_measured_where_it_shows() -> None:
    """A node that is told to stop serves a little longer."""
    gap = longest_gap([1.0, 1.1, 1.2, 1.3, 1.8, 1.9], fault_s=1.05, end_s=2.0, recent_s=0.5)

    assert (gap.from_s, gap.to_s) == (1.3, 1.8)


def test_silence_before_the_fault_is_not_the_faults() -> None:
    """What ended before the fault does not count, however long it was."""
    gap = longest_gap([0.0, 1.0, 1.1, 1.3], fault_s=1.05, end_s=1.35, recent_s=0.5)

    assert (gap.from_s, gap.to_s) == (1.1, 1.3)


def test_a_gap_that_nothing_ends_says_so() -> None:
    """A system that never takes writes again has no gap of finite length."""
    gap = longest_gap([1.0, 1.1], fault_s=1.2, end_s=31.1, recent_s=0.5)

    assert not gap.is_over
    assert gap.seconds == pytest.approx(30)


def test_the_end_of_the_watch_is_no_gap_where_acknowledgements_flow() -> None:
    """A gap may be shorter than the time since the last one when watching happened to end."""
    gap = longest_gap([1.0, 1.1, 1.11, 1.2], fault_s=1.105, end_s=1.25, recent_s=0.5)

    assert (gap.from_s, gap.to_s, gap.is_over) == (1.11, 1.2, True)


@pytest.mark.parametrize(
    ("acks", "resumed"),
    [
        ([], False),
        ([9.5, 9.6, 9.7, 9.8, 9.9], True),
        ([9.5, 9.6, 9.9], False),
        ([9.5, 9.6, 9.7], False),
        ([9.8, 9.9], False),
    ],
)
def test_writes_flow_again_when_no_pause_is_left(acks: list[float], resumed: bool) -> None:
    """A single acknowledgement in flight at the moment of the fault is no recovery."""
    assert has_resumed(acks, now_s=10.0, recent_s=0.2, steady_s=0.55) is resumed


def test_the_full_set_is_every_case_that_fits() -> None:
    """What may be under way is bounded; the quick subset is part of the full one."""
    full = engine_cases(full=True)

    assert set(QUICK) <= set(full)
    assert {case.window for case in full} == {1, 4, 16, 64, 256, 1024}
    assert max(c.batch * c.window * c.size_bytes for c in full) <= MAX_UNDER_WAY_BYTES
    assert all(case.batch == 1 for case in peer_cases(full=True))


def test_systems_take_turns_and_each_begins_once() -> None:
    """Drift of the machine falls on all of them alike."""
    turns = list(interleaved(["a", "b", "c"], 3))

    assert [system for _, system in turns] == list("abcbcacab")
    assert [number for number, _ in turns] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def _row(per_s: float, note: str = "") -> Row:
    return Row(
        kind="append",
        system="dledger",
        name="1 KiB, batch 64, window 4",
        size_bytes=1024,
        batch=64,
        window=4,
        figures={"per_s": per_s},
        samples=(per_s,),
        notes=(note,) if note else (),
    )


def test_rounds_become_one_row_of_medians() -> None:
    """The rounds' own figures stay beside it."""
    row = merged([_row(1), _row(9, "busy"), _row(2, "busy")])

    assert (row.figures, row.samples, row.notes) == ({"per_s": 2}, (1, 9, 2), ("busy",))


def test_a_row_that_was_measured_once_is_itself() -> None:
    """Rows keep the order in which they were first measured."""
    other = Row(kind="read", system="dledger", name="read", figures={"per_s": 5.0})

    assert [row.figures["per_s"] for row in by_identity([_row(1), other, _row(3)])] == [2, 5]


def test_a_run_comes_back_from_its_file() -> None:
    """The history is read by later versions."""
    run = Run(at="2026-01-01T00:00:00Z", commit="abc", machine={"cores": 2}, rows=(_row(1, "x"),))

    assert from_json(to_json(run), "a.json") == run


@pytest.mark.parametrize("text", ["", "{}", '{"format": 2}', '{"format": 1, "rows": [{"a": 1}]}'])
def test_a_file_that_is_no_run_is_refused_by_name(text: str) -> None:
    """A broken file of the history is not skipped."""
    with pytest.raises(MalformedRun, match=r"a\.json"):
        from_json(text, "a.json")
