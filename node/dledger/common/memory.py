"""Tunes how a process takes memory from the system, and returns it.

Entries, frames and disk chunks of 100 KiB to 4 MiB are allocated and freed on several threads all
the time. A block mapped for a single use costs a page fault per 4 KiB, several times the cost of
using its bytes, so freed blocks are kept for reuse; in two arenas, or each thread would keep its
own. Free memory is returned every few seconds instead, so that a node shrinks after a busy period.
Used by nodes, and by the pipeline's processes, which end after their work.
"""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from contextlib import suppress
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
SETTINGS: Final = {
    _M_ARENA_MAX: 2,
    _M_MMAP_THRESHOLD: 8 << 20,
    _M_TRIM_THRESHOLD: 64 << 20,
}
"""By ``mallopt`` parameter: arenas, and bytes from which a block, or a free end, goes back at once.

Only snapshots are so large."""
_GIVE_BACK_S: Final = 5.0
_GC_THRESHOLDS: Final = (20_000, 20, 50)
"""Requests create little cyclic garbage; a collection every 700 allocations wastes time."""


def keep_blocks() -> None:
    """Make the allocator keep freed blocks, if it has these settings (musl does not)."""
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        for key, value in SETTINGS.items():
            library.mallopt(key, value)


def collect_seldom() -> None:
    """Have the collector leave alone what is there now, and come seldom for what is made later."""
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def give_back() -> None:
    """Return every free whole page to the system (5 ms for 100 MB)."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def give_back_now_and_then() -> None:
    """Start a thread that calls `give_back` every 5 s for as long as the process lives."""

    def run() -> None:
        while True:
            time.sleep(_GIVE_BACK_S)
            give_back()

    threading.Thread(target=run, name="give-back", daemon=True).start()
