"""The token bucket: bursts, and a rate in the long run."""

from dledger.common.token_bucket import TokenBucket


def test_it_gives_so_much_at_once_and_then_at_its_rate() -> None:
    """Nothing is saved up beyond what it holds, however long nobody asks."""
    bucket = TokenBucket(at_once=3, per_s=2.0)

    assert [bucket.take(100.0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(100.6) for _ in range(2)] == [True, False]
    assert [bucket.take(1000.0) for _ in range(4)] == [True, True, True, False]


def test_a_refused_one_costs_nothing() -> None:
    """Who asks all the time gets as much as who asks at the right time."""
    bucket = TokenBucket(at_once=1, per_s=1.0)

    assert sum(bucket.take(tenth / 10) for tenth in range(101)) == 11


def test_a_token_that_is_owed_is_waited_for() -> None:
    """The pause grows with the debt, and the long run is at the rate."""
    bucket = TokenBucket(at_once=2, per_s=4.0)

    assert [bucket.owe(0.0) for _ in range(4)] == [0.0, 0.25, 0.5, 0.75]
    assert bucket.owe(0.5) == 0.5  # two were owed and have come back, this one is owed


def test_a_filled_one_gives_a_whole_burst_again() -> None:
    """As a door does once its client takes answers."""
    bucket = TokenBucket(at_once=2, per_s=0.0)

    assert [bucket.take(5.0) for _ in range(3)] == [True, True, False]
    bucket.fill()
    assert [bucket.take(5.0) for _ in range(3)] == [True, True, False]
