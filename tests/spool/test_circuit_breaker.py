"""Which way messages go while a spool is replayed: it must become empty, and its order hold."""

from __future__ import annotations

from dledger.errors import Unavailable
from dledger.spool.circuit_breaker import BATCH_RECORDS, CircuitBreaker, Route
from dledger.spool.spool import Spool
from tests.spool.spool_harness import Disk, Group, message, replay


def spool_with(count: int) -> Spool:
    """Return a spool with that many messages of one topic."""
    spool = Disk(max_bytes=64 << 20, file_bytes=1 << 20).open()
    spool.append([message(number) for number in range(1, count + 1)])
    return spool


async def test_empty_spool_lets_messages_pass_whatever_the_group_did_last() -> None:
    """Somebody has to try it, and there is nothing to try it with but the next message."""
    gate = CircuitBreaker(spool_with(0))
    gate.closed(Unavailable("nobody listens"))

    assert gate.route("orders") is Route.DIRECT


async def test_messages_are_spooled_while_the_group_is_down() -> None:
    """Those of other topics too: waiting for a timeout each would help nobody."""
    gate = CircuitBreaker(spool_with(10))

    assert gate.down
    assert (gate.route("orders"), gate.route("bills")) == (Route.SPOOL, Route.SPOOL)


async def test_topic_without_spooled_messages_passes_when_the_group_is_up() -> None:
    """A topic with some must not overtake them, and waits for the last batch to be replayed."""
    gate = CircuitBreaker(spool_with(10))

    gate.opened()

    assert (gate.route("orders"), gate.route("bills")) == (Route.WAIT, Route.DIRECT)


async def test_each_replayed_byte_lets_half_a_byte_in() -> None:
    """While more than a batch is left; so the rest shrinks, however fast messages come."""
    gate = CircuitBreaker(spool_with(2 * BATCH_RECORDS))
    gate.opened()
    at_first = gate.route("orders")
    gate.replayed(1000)
    with_credit = gate.route("orders")
    gate.spooled(499)
    with_a_little = gate.route("orders")
    gate.spooled(1)

    assert at_first is Route.WAIT
    assert (with_credit, with_a_little) == (Route.SPOOL, Route.SPOOL)
    assert gate.route("orders") is Route.WAIT


async def test_last_batch_lets_nothing_in_behind_it() -> None:
    """Messages wait for one answer of the group instead, and then pass."""
    spool = spool_with(20)
    gate = CircuitBreaker(spool)
    gate.opened()
    gate.replayed(1_000_000)
    waiting = gate.route("orders")

    replay(spool, Group())

    assert waiting is Route.WAIT
    assert gate.route("orders") is Route.DIRECT


async def test_broken_disk_sends_messages_to_the_spool_which_refuses_them() -> None:
    """Nothing is replayed any more, so nothing may overtake what is there."""
    gate = CircuitBreaker(spool_with(10))
    gate.opened()

    gate.broke()

    assert gate.route("orders") is Route.SPOOL
