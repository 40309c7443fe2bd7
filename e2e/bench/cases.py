"""Which rows are measured, and in which order. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

BATCHES: Final = (1, 16, 64, 256)
WINDOWS: Final = (1, 4, 16, 64, 256, 1024)
SIZES: Final = (128, 1024, 16 * 1024)
PEER_WINDOWS: Final = (1, 64, 256, 1024)

MAX_REQUEST_BYTES: Final = 4 << 20
"""Above this a batch is a burst, not a request; nodes take up to 16 MiB."""
MAX_UNDER_WAY_BYTES: Final = 64 << 20
"""Three nodes and the client share the machine's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A closed loop: *window* requests of *batch* messages of *size_bytes* under way at once."""

    batch: int
    window: int
    size_bytes: int = 1024

    @property
    def name(self) -> str:
        """The case in words, the same for all systems."""
        size = f"{self.size_bytes >> 10} KiB" if self.size_bytes >= 1024 else f"{self.size_bytes} B"
        return f"{size}, batch {self.batch}, window {self.window}"

    @property
    def is_bounded(self) -> bool:
        """Whether it keeps within what may be under way."""
        request = self.batch * self.size_bytes
        return request <= MAX_REQUEST_BYTES and request * self.window <= MAX_UNDER_WAY_BYTES


QUICK: Final = (
    Case(batch=1, window=1),
    Case(batch=1, window=64),
    Case(batch=1, window=256),
    Case(batch=16, window=16),
    Case(batch=16, window=64),
    Case(batch=64, window=4),
    Case(batch=64, window=16),
    Case(batch=256, window=4),
    Case(batch=256, window=16),
    Case(batch=64, window=16, size_bytes=128),
    Case(batch=64, window=16, size_bytes=16 * 1024),
)


def engine_cases(*, full: bool) -> tuple[Case, ...]:
    """Return the cases of our own engine: a telling few, or all that are bounded."""
    if not full:
        return QUICK
    every = product(SIZES, BATCHES, WINDOWS)
    cases = (Case(batch=b, window=w, size_bytes=s) for s, b, w in every)
    return tuple(case for case in cases if case.is_bounded)


def peer_cases(*, full: bool) -> tuple[Case, ...]:
    """Return the cases of a peer, which has no batches on its wire."""
    sizes = SIZES if full else (1024,)
    return tuple(Case(batch=1, window=w, size_bytes=s) for s, w in product(sizes, PEER_WINDOWS))


def interleaved(systems: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Yield (round, system): every system once in each round, each round from another one on.

    What changes on the machine during the run falls on all systems alike.
    """
    for number in range(rounds):
        shift = number % len(systems)
        for system in (*systems[shift:], *systems[:shift]):
            yield number, system
