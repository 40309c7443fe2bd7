"""An event loop whose clock a test turns."""

from __future__ import annotations

import asyncio


class TurnedClock(asyncio.SelectorEventLoop):
    """Its time is what the test says."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s
