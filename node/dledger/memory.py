"""How this process takes memory from the system, and gives it back. For the node's process only.

Requests, entries and disk chunks of 100 KiB and more come and go on several threads. By default
glibc gives each thread an arena of its own, and learns from what is freed to keep ever larger
blocks: both grow with load and never shrink. Fixed, a node that was busy is small again after.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
SETTINGS: Final = {
    _M_ARENA_MAX: 2,
    _M_MMAP_THRESHOLD: 128 << 10,
    _M_TRIM_THRESHOLD: 1 << 20,
}
"""By ``mallopt`` parameter: arenas, and bytes from which a block, or a free end, goes back."""


def give_back() -> bool:
    """Have the allocator return what is free; False where it knows no such settings (musl)."""
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        return all(library.mallopt(key, value) == 1 for key, value in SETTINGS.items())
    return False
