"""Tasks that run beside a block of code, and their end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and return when all have ended; what they raised is dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def meanwhile(*work: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Run coroutines while the block lasts; those that still run at its end are cancelled."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield
    finally:
        await cancelled(*tasks)
