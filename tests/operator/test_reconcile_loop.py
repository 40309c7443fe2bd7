"""The task of one group: it ends when its group is gone, whatever happens at that moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dledger_operator.controllers.reconcile_loop import RESYNC_S, SETTLED_S, GroupLoop
from dledger_operator.metrics.metrics import Metrics


class CountingReconciler:
    """Counts rounds."""

    def __init__(self) -> None:
        self.body = {"metadata": {"namespace": "shop", "name": "orders", "uid": "uid-1"}}
        self.rounds = 0
        self.began = asyncio.Event()
        self.is_settled = False
        self.is_let_alone = False
        self.wake: Callable[[], None] = lambda: None

    def call_on_news(self, wake: Callable[[], None]) -> None:
        self.wake = wake

    async def reconcile(self) -> None:
        self.rounds += 1
        self.began.set()

    async def close(self) -> None:
        """Nothing is open."""


async def test_a_task_that_is_woken_and_closed_at_once_ends() -> None:
    """The deletion of a group wakes its task and ends it in the same turn of the loop."""
    reconciler = CountingReconciler()
    loop = GroupLoop(reconciler, Metrics())  # type: ignore[arg-type]
    await reconciler.began.wait()
    await asyncio.sleep(0.01)

    loop.wake()
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await loop.close()

    rounds = reconciler.rounds
    loop.wake()
    await asyncio.sleep(0.01)
    assert reconciler.rounds == rounds


async def test_a_node_that_tells_something_causes_a_round_at_once() -> None:
    """While nothing is under way, nothing else would for a while."""
    reconciler = CountingReconciler()
    loop = GroupLoop(reconciler, Metrics())  # type: ignore[arg-type]
    assert loop.pause_s() == RESYNC_S
    reconciler.is_settled = True
    assert loop.pause_s() == SETTLED_S
    await reconciler.began.wait()
    await asyncio.sleep(0)
    reconciler.began.clear()

    reconciler.wake()

    async with asyncio.timeout(5):
        await reconciler.began.wait()
    await loop.close()
