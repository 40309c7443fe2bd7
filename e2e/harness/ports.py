"""Free ports on loopback: single ones, and ranges that no other process takes meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
from collections.abc import Iterator
from typing import Final

HOST: Final = "127.0.0.1"
_FIRST_PORT: Final = 20_000
_END_PORT: Final = 32_000
"""Below the range from which the kernel takes the ports of outgoing connections."""
_RANGES: Final = range(21_000, 32_500, 500)
"""First ports of the ranges of `dledger dev`, below those of outgoing connections, too."""
_GUARD: Final = 499
_KEPT: Final = 3
"""How many groups of a process may start at once; more would leave too few ranges to others."""
_guards: dict[int, None] = {}
"""The first ports of this process's ranges; the one that was given last stands last."""


def free_ports(count: int) -> list[int]:
    """Return *count* ports on which nobody listens; two processes begin at different ones."""
    span = _END_PORT - _FIRST_PORT
    start = os.getpid() * 97 % span
    ports = (_FIRST_PORT + (start + offset) % span for offset in range(span))
    return list(itertools.islice((port for port in ports if _is_free(port)), count))


def free_port_range() -> int:
    """Return a client port whose whole range is free, and this process's until it ends.

    That nobody listens there is not enough: another run's group may be starting, or be down for
    a moment because its test killed it. So no other process gets the range, and in this one the
    next calls get others: of the few that it keeps, the one that was given longest ago. A range
    for each call would take all of them bit by bit.
    """
    new = [first for first in _RANGES if first not in _guards]
    for first in [*new, *_guards] if len(_guards) < _KEPT else [*_guards, *new]:
        ports = [first + offset + node for offset in (0, 100, 200, 300) for node in range(3)]
        with _guarded(first) as ours:
            if ours and all(_is_free(port) for port in ports):
                _guards.pop(first, None)
                _guards[first] = None
                return first
    raise AssertionError("no free ports")


@contextlib.contextmanager
def _guarded(first: int) -> Iterator[bool]:
    """Whether no other process has the range: who has it keeps its last port bound.

    It is given back unless it is among `_guards` in the end.
    """
    if first in _guards:
        yield True
        return
    guard = socket.socket()
    try:
        guard.bind((HOST, first + _GUARD))
    except OSError:
        yield False
    else:
        yield True
        if first in _guards:
            guard.detach()  # bound until the process ends
    finally:
        guard.close()


def _is_free(port: int) -> bool:
    """Whether nobody listens there; what is left of closed connections does not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
