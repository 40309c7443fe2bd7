"""Both ends of links, made anew for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.link.two_ends import Follower, Leader


@pytest.fixture
async def leader() -> AsyncIterator[Leader]:
    """One that offers links."""
    made = Leader()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def follower() -> AsyncIterator[Follower]:
    """One that follows nobody yet."""
    made = Follower()
    yield made
    await made.links.close()
    for channel in made.channels:
        await channel.close()
