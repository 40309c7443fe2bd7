"""What batches of streams may take before they are in the log."""

from __future__ import annotations

import asyncio

from dledger.requests.production import Production


async def test_a_connection_waits_for_its_own_batches_and_holds_up_nobody_else() -> None:
    """However many streams it has; what was given back goes to who waits."""
    production = Production(30, of_connection=10)
    first = await production.room("loud", 8)
    second = asyncio.create_task(production.room("loud", 8))
    await asyncio.sleep(0)  # it has asked
    other = await production.room("other", 10)
    assert (second.done(), production.taken) == (False, 18)

    first.give()
    (await second).give()
    other.give()

    assert (production.taken, production._connections) == (0, {})


async def test_who_goes_away_while_it_waits_has_taken_nothing() -> None:
    """For its connection's room, and for the room of all."""
    production = Production(10, of_connection=10)
    held = await production.room("a", 8)
    waiting = [asyncio.create_task(production.room(name, 8)) for name in ("a", "b")]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    held.give()

    assert (production.taken, production._connections) == (0, {})
