"""A bound on what is under way: who waits for room, and in which order they go on."""

from __future__ import annotations

import asyncio

from dledger.common.window import Window


async def taken(window: Window, size_bytes: int, name: str, order: list[str]) -> None:
    await window.take(size_bytes)
    order.append(name)


async def test_who_waits_goes_on_before_who_comes_later() -> None:
    """Also when a later one would fit, and when it asks in the moment in which room is made."""
    window, order = Window(10), list[str]()
    await window.take(8)
    first = asyncio.create_task(taken(window, 5, "first", order))
    await asyncio.sleep(0)
    second = asyncio.create_task(taken(window, 1, "second", order))
    await asyncio.sleep(0)

    window.give(8)
    await taken(window, 1, "third", order)
    await asyncio.gather(first, second)

    assert order == ["first", "second", "third"]
    assert window.taken == 7


async def test_one_that_is_larger_than_the_bound_goes_alone() -> None:
    """It would wait for ever otherwise."""
    window = Window(10)

    await window.take(11)
    other = asyncio.create_task(window.take(1))
    await asyncio.sleep(0)

    assert (window.taken, other.done()) == (11, False)
    window.give(11)
    await other
    assert window.taken == 1


async def test_who_gives_up_waiting_lets_the_next_one_in() -> None:
    """And takes nothing with it, not even when its turn came in the same moment."""
    window, order = Window(10), list[str]()
    await window.take(9)
    large = asyncio.create_task(taken(window, 5, "large", order))
    small = asyncio.create_task(taken(window, 1, "small", order))
    await asyncio.sleep(0)

    large.cancel()
    await small
    late = asyncio.create_task(taken(window, 10, "late", order))
    await asyncio.sleep(0)
    window.give(10)
    late.cancel()
    await asyncio.gather(large, late, return_exceptions=True)

    assert order == ["small"]
    assert window.taken == 0
