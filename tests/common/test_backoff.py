"""Pauses between attempts, and attempts until a deadline."""

import pytest

from dledger.common.backoff import Backoff, doubled_s, retry
from dledger.errors import InvalidArgument, NotLeader, Unavailable


def test_pauses_double_up_to_the_longest() -> None:
    """And stay there, however long it goes on."""
    backoff = Backoff(0.5, 3.0)

    assert [backoff.next_s() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert doubled_s(10**6, first_s=60.0, most_s=3600.0) == 3600.0


def test_a_success_begins_a_new_row() -> None:
    """The next failure has nothing to do with those before."""
    backoff = Backoff(0.5, 3.0)
    backoff.next_s()
    backoff.next_s()
    backoff.reset()

    assert [backoff.next_s() for _ in range(2)] == [0.5, 1.0]


@pytest.mark.parametrize(("calm_s", "lasted_s"), [(None, 3.5), (60.0, 61.0)])
def test_what_lasted_begins_a_new_row(calm_s: float | None, lasted_s: float) -> None:
    """A link that held for a while was not in vain; one that broke at once was."""
    backoff = Backoff(0.5, 3.0, calm_s=calm_s)

    assert [backoff.next_s(lasted_s=1.0) for _ in range(3)] == [0.5, 1.0, 2.0]
    assert backoff.next_s(lasted_s=lasted_s) == 0.5


def test_a_row_may_begin_at_once() -> None:
    """What fails once in a long while is replaced without a pause."""
    backoff = Backoff(0.5, 3.0, at_once=True)

    assert [backoff.next_s() for _ in range(4)] == [0.0, 0.5, 1.0, 2.0]
    backoff.reset()
    assert backoff.next_s() == 0.0


async def test_attempts_are_repeated_while_there_is_no_leader() -> None:
    """The caller gets the first answer, and hears of no failure before it."""
    left_s: list[float] = []

    async def attempt(seconds: float) -> str:
        left_s.append(seconds)
        if len(left_s) < 3:
            raise NotLeader(None)
        return "done"

    assert await retry(attempt, timeout_s=600.0, pause_s=0.01) == "done"
    assert left_s == sorted(left_s, reverse=True)
    assert left_s[0] <= 600.0


async def test_the_last_attempts_error_is_raised_when_time_is_up() -> None:
    """It is the one that says how things are now; the first attempt is made in any case."""
    attempts: list[float] = []

    async def attempt(left_s: float) -> None:
        attempts.append(left_s)
        if len(attempts) > 1:
            raise InvalidArgument("nobody waits any more")
        raise Unavailable(f"attempt {len(attempts)}")

    with pytest.raises(Unavailable, match=r"attempt 1$"):
        await retry(attempt, timeout_s=0.0, pause_s=0.5)
    assert attempts == [0.5]


async def test_another_error_ends_the_attempts_at_once() -> None:
    """Trying again would change nothing."""
    attempts: list[float] = []

    async def attempt(left_s: float) -> None:
        attempts.append(left_s)
        raise InvalidArgument("no such thing")

    with pytest.raises(InvalidArgument):
        await retry(attempt, timeout_s=600.0, pause_s=0.01)
    assert len(attempts) == 1
