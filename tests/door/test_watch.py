"""What time asks for, without waiting for it: handshakes, silence, floods."""

from __future__ import annotations

from dledger.door.bounds import Bounds
from dledger.door.watch import Verdict, Watch

BOUNDS = Bounds(handshake_s=5, ping_after_s=10, ping_s=5, idle_s=300, stall_s=60, pings=(3, 1))


def settled(now_s: float = 0) -> Watch:
    watch = Watch(BOUNDS, now_s)
    watch.settled = True
    return watch


def test_a_handshake_has_its_time_whatever_arrives() -> None:
    """A byte now and then does not lengthen it."""
    watch = Watch(BOUNDS, 0)
    watch.heard(4.9)

    assert watch.look(0, 4.9) is Verdict.NOTHING
    assert watch.look(0, 5) is Verdict.LATE


def test_silence_is_answered_by_a_ping_and_then_by_the_end() -> None:
    """Calls under way or not."""
    watch = settled()

    assert watch.look(1, 9) is Verdict.NOTHING
    assert watch.look(1, 10) is Verdict.PING
    assert watch.look(1, 14) is Verdict.NOTHING
    assert watch.look(1, 15) is Verdict.GONE


def test_any_byte_is_an_answer() -> None:
    """A client that is heard is there, be its PONG late or not."""
    watch = settled()
    watch.look(1, 10)
    watch.heard(14)

    assert watch.look(1, 16) is Verdict.NOTHING
    assert watch.look(1, 24) is Verdict.PING


def test_a_connection_without_calls_is_asked_to_go() -> None:
    """It is idle from its last call on, though it answers."""
    watch = settled()
    watch.look(1, 100)
    watch.heard(399)

    assert watch.look(0, 399) is Verdict.NOTHING
    assert watch.look(0, 400) is Verdict.LEAVE


def test_a_socket_that_takes_nothing_is_stuck() -> None:
    """Though its client goes on to send."""
    watch = settled()
    watch.paused(1)
    watch.heard(61)

    assert watch.look(1, 61) is Verdict.STUCK
    watch.paused(None)
    assert watch.look(1, 61) is Verdict.NOTHING


def test_pings_are_allowed_with_time_and_with_answers() -> None:
    """Three at once, one a second, and a whole burst for an answer."""
    watch = settled()

    assert [watch.may_ping(0, 0.0) for _ in range(4)] == [True, True, True, False]
    assert [watch.may_ping(0, 1.0) for _ in range(2)] == [True, False]
    assert [watch.may_ping(1, 1.0) for _ in range(4)] == [True, True, True, False]
