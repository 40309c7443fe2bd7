"""What batches of streams may take before they are in the log."""

from __future__ import annotations

import asyncio

from dledger.requests.production import MAX_BYTES, Production
from dledger.requests.production import MAX_BYTES_OF_CONNECTION as OWN


async def test_a_connection_waits_for_its_own_batches_and_holds_up_nobody_else() -> None:
    """However many streams it has; what was given back goes to who waits."""
    production = Production()
    first = await production.room("loud", OWN - 1)
    second = asyncio.create_task(production.room("loud", OWN - 1))
    await asyncio.sleep(0)  # it has asked
    other = await production.room("other", OWN)
    assert (second.done(), production.taken) == (False, 2 * OWN - 1)

    first.give()
    (await second).give()
    other.give()

    assert (production.taken, production._connections) == (0, {})


async def test_who_goes_away_while_it_waits_has_taken_nothing() -> None:
    """For its connection's room, and for the room of all."""
    production = Production()
    held = [await production.room(name, OWN) for name in "abc"]
    assert production.taken == MAX_BYTES
    waiting = [asyncio.create_task(production.room(name, OWN)) for name in ("a", "d")]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for room in held:
        room.give()

    assert (production.taken, production._connections) == (0, {})
