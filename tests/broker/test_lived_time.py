"""Lived time: what a LEAP skips is nobody's age, and nothing is ever taken for older than it is."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from dledger.broker import lived_time
from dledger.broker.command_frame import CommandType, frame
from dledger.broker.commands import Leap
from dledger.broker.lived_time import LivedTime
from dledger.broker.results import Leapt
from dledger.broker.snapshot_codec import MalformedStateError, Reader, number
from dledger.broker.state import BrokerState
from dledger.errors import InvalidArgument
from tests.broker.log import Log, attempts, offsets

_DAY_MS = 86_400_000


def _leap(log: Log, skipped_ms: int) -> object:
    """Commit a LEAP over *skipped_ms*, as a leader does: alone, in an entry of the later time."""
    before_ms = log.now_ms
    log.now_ms += skipped_ms
    (result,) = log.append(Leap(from_ms=before_ms, to_ms=log.now_ms).encode())
    return result


def test_a_leap_moves_the_logs_time_and_no_lived_time() -> None:
    """From then on both go on together again."""
    log = Log()
    log.create()

    assert _leap(log, 3 * _DAY_MS) == Leapt(3 * _DAY_MS)
    log.now_ms += 700
    log.produce("a")

    assert log.state.now_ms == 1_000_700 + 3 * _DAY_MS
    assert log.state.time.lived_ms == 1_000_700
    assert log.state.leapt_ms == 3 * _DAY_MS


def test_no_lease_ends_by_a_leap() -> None:
    """A lease of a second ends after a second, before and behind it."""
    log = Log()
    log.create()
    log.produce("a")
    log.receive(invisible_ms=1_000)

    log.now_ms += 999
    _leap(log, _DAY_MS)
    assert offsets(log.receive(invisible_ms=1_000)) == []
    log.now_ms += 1
    again = log.receive(invisible_ms=1_000)

    assert (offsets(again), attempts(again)) == ([0], [2])
    assert again.visible_at_ms == log.state.time.lived_ms + 1_000


def test_what_was_stored_before_a_leap_has_its_lived_time_behind_it() -> None:
    """By the times of its entries alone it would be older by all that was skipped."""
    log = Log()
    log.create()
    stored_ms = log.now_ms
    log.produce("a")
    log.now_ms += 5_000
    _leap(log, _DAY_MS)
    log.now_ms += 2_000
    _leap(log, 30 * _DAY_MS)
    log.produce("b")
    time = log.state.time

    assert time.lived_ms - time.lived_at(stored_ms) == 7_000
    assert time.lived_ms - time.lived_at(stored_ms + 5_000 + _DAY_MS) == 2_000
    assert time.lived_ms - time.lived_at(log.now_ms) == 0


@pytest.mark.parametrize(
    ("from_ms", "to_ms", "skipped_ms"),
    [(0, 9_999_999_999, 500), (1_000_200, 1_000_500, 300), (1_000_000, 1_000_100, 100)],
)
def test_a_leap_skips_no_more_than_its_entry(from_ms: int, to_ms: int, skipped_ms: int) -> None:
    """Whatever it says: more would make the next message older than the log."""
    log = Log()
    log.create()
    log.now_ms += 500

    assert log.append(Leap(from_ms=from_ms, to_ms=to_ms).encode()) == [Leapt(skipped_ms)]


def test_a_second_leap_of_one_entry_finds_nothing_left_to_skip() -> None:
    """Lived time does not go back."""
    log = Log()
    log.create()
    log.now_ms += 500
    leap = Leap(from_ms=0, to_ms=log.now_ms).encode()

    assert log.append(leap, leap) == [Leapt(500), Leapt(0)]
    assert log.state.time.lived_ms == 1_000_000


@pytest.mark.parametrize(("from_ms", "to_ms"), [(5, 5), (6, 5), (-1, 5)])
def test_a_leap_back_is_refused(from_ms: int, to_ms: int) -> None:
    """It changes nothing, on every node alike."""
    log = Log()
    (refused,) = log.append(Leap(from_ms=from_ms, to_ms=to_ms).encode())

    assert isinstance(refused, InvalidArgument)
    assert log.state.time.leaps == ()


def test_a_leap_that_is_none_is_malformed() -> None:
    """As any command whose fields are of another type."""
    log = Log()
    (refused,) = log.append(frame(CommandType.LEAP, b'{"from": 1, "to": "2"}'))

    assert isinstance(refused, InvalidArgument)


@pytest.mark.parametrize("seed", range(60))
def test_leaps_are_bounded_and_nothing_is_taken_for_older_than_it_is(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model keeps each entry's lived time; what is forgotten may only make it younger."""
    monkeypatch.setattr(lived_time, "MAX_LEAPS", 6)
    rng, time = random.Random(seed), LivedTime()
    log_ms = lived_ms = leaps = 0
    stored: list[tuple[int, int]] = []
    for _ in range(rng.choice([5, 300])):
        passed_ms, skipped_ms = rng.choice([0, 1, 90, 4_000]), 0
        if rng.random() < 0.4:
            skipped_ms = rng.choice([1, 700, 10**7])
        log_ms, lived_ms = log_ms + passed_ms + skipped_ms, lived_ms + passed_ms
        time.advance(log_ms)
        if skipped_ms:
            assert time.leap(log_ms - skipped_ms, log_ms) == skipped_ms
            leaps += 1
        stored.append((log_ms, lived_ms))
        assert len(time.leaps) <= 6
        assert time.lived_ms == lived_ms
        twin = LivedTime()
        twin.read(Reader(b"".join(time.encoded())))
        assert twin.canonical() == time.canonical()
    for at_ms, lived in stored:
        found_ms = time.lived_at(at_ms)
        assert lived <= found_ms <= time.lived_ms
        assert leaps > 6 or found_ms == lived


def test_what_is_forgotten_first_is_what_tells_least() -> None:
    """The error is the shortest time between two leaps, not the age of the oldest."""
    time = LivedTime()
    for number_ in range(lived_time.MAX_LEAPS + 1):
        lived_ms = 3_600_000 * number_ + (1 if number_ > 50 else 0)
        time.advance(_DAY_MS * (number_ + 1) + lived_ms)
        time.leap(time.log_ms - 1_000, time.log_ms)
    ages = [later[1] - earlier[1] for earlier, later in pairwise(time.leaps)]

    assert len(time.leaps) == lived_time.MAX_LEAPS
    assert max(ages) < 3 * _DAY_MS


@pytest.mark.parametrize(
    "leaps",
    [
        [(5, 6)],
        [(5, 5)],
        [(5, -1)],
        [(5, 4), (5, 4)],
        [(9, 4), (8, 3)],
        [(5, 4), (9, 3)],
        [(5, 2), (9, 7)],
        [(102, 3)],
        [(n, 0) for n in range(1, lived_time.MAX_LEAPS + 2)],
    ],
)
def test_leaps_that_are_none_are_no_state(leaps: list[tuple[int, int]]) -> None:
    """A snapshot's bytes are input: lived time that goes back, or leaps beyond the log's end."""
    time = LivedTime()
    time.log_ms, time.leaps = 100 + len(leaps), tuple(leaps)

    with pytest.raises(MalformedStateError):
        LivedTime().read(Reader(b"".join(time.encoded())))


def test_a_column_that_is_shorter_is_no_state() -> None:
    """Both columns are of one length."""
    data = number(9) + number(1) + number(5) + number(0)

    with pytest.raises(MalformedStateError, match="beside one of 1"):
        LivedTime().read(Reader(data))


def test_leaps_are_part_of_the_state() -> None:
    """Of its digest, its bytes, and of what another state takes over."""
    log, other = Log(), Log()
    _leap(log, 5_000)
    other.now_ms += 5_000
    other.append()
    decoded, replaced = BrokerState.decode(log.state.encode()), BrokerState()
    replaced.replace(BrokerState.decode(log.state.encode()))

    assert log.state.digest() != other.state.digest()
    for state in (decoded, replaced):
        assert state.digest() == log.state.digest()
        assert (state.leapt_ms, state.now_ms) == (5_000, log.now_ms)
