"""Finds which faults a failure needs: turns them off one by one, as long as the run still fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def shrink(faults: Sequence[str], fails: Callable[[tuple[str, ...]], bool]) -> tuple[str, ...]:
    """Return which of *faults* can be off, all together, in a run that still fails.

    Args:
        faults: Those that are on.
        fails: Whether the run fails with these turned off. The failure may be another one.
    """
    off: tuple[str, ...] = ()
    for fault in faults:
        if fails((*off, fault)):
            off = (*off, fault)
    return off
