"""The parent of the sidecar: holds the listening sockets, and starts the child again that ends.

An SDK gives a send up after a fifth of a second if its address refuses connections. So the sockets
outlive the process that serves them, and this one imports nothing that could end it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import Final

from dledger.common.listening import BACKLOG, bound_address, listening
from dledger.sidecar.options import addresses_in, split_address

EXIT_USAGE: Final = 2
_CHILD: Final = "dledger.sidecar"
_PAUSES_S: Final = (0.05, 2.0)
_CALM_S: Final = 1.0
"""What lived for so long is replaced at once."""
_ALONE_S: Final = 1.0
"""A child has the CPU to itself while it begins."""


def run(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Hold the ports until a signal; return the exit code.

    Args:
        args: The parsed options.
        argv: The same as they were given, for the child.
    """
    try:
        for address in (*addresses_in(args), *args.upstream, *filter(None, [args.metrics])):
            split_address(address)
        sockets = [listening(address) for address in addresses_in(args)]
    except (OSError, ValueError) as error:
        print(f"dledger spool run: {error}", file=sys.stderr)
        return EXIT_USAGE
    for each in sockets:
        each.listen(BACKLOG)  # clients wait here while no child does
    print(f"dledger spool: serves {' '.join(map(bound_address, sockets))}", flush=True)
    return Parent(sockets, argv).run()


class Parent:
    """Keeps one child running, and a spare one that has only to be told to go.

    A child takes half a second of CPU to be imported, which is more than an SDK's patience where
    there is little of it.

    Args:
        sockets: The ports, which listen.
        argv: The child's options.
    """

    def __init__(self, sockets: Sequence[socket.socket], argv: Sequence[str]) -> None:
        self._sockets, self._argv = sockets, argv
        self._child: subprocess.Popen[bytes] | None = None
        self._spare: subprocess.Popen[bytes] | None = None
        self._is_stopping = False

    def run(self) -> int:
        """Have the next child go again and again, until a signal or until its options are wrong."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        pause_s, most_s = _PAUSES_S
        while True:
            began_s = time.monotonic()
            code = self._run_child()
            if self._has_to_stop() or code == EXIT_USAGE:
                self._end_spare()
                return 0 if self._has_to_stop() else EXIT_USAGE
            print(f"dledger spool: the child ended ({code}), the next begins", file=sys.stderr)
            if time.monotonic() - began_s > _CALM_S:
                pause_s = _PAUSES_S[0]
            else:
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, most_s)

    def _run_child(self) -> int:
        """Have a child go, start the spare once that has begun to serve, and return its code."""
        child = self._spare or self._start()
        self._child, self._spare = child, None
        _tell(child)
        if self._has_to_stop():  # the signal came before there was a child to tell
            child.terminate()
        try:
            return child.wait(_ALONE_S)
        except subprocess.TimeoutExpired:
            self._spare = self._start()
            return child.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        descriptors = [each.fileno() for each in self._sockets]
        listed = ",".join(map(str, descriptors))
        command = [sys.executable, "-m", _CHILD, "--sockets", listed, *self._argv]
        return subprocess.Popen(  # noqa: S603 - this program
            command, stdin=subprocess.PIPE, pass_fds=descriptors
        )

    def _end_spare(self) -> None:
        """Have it end: it reads the end of what it waits for."""
        if self._spare is not None:
            self._spare.communicate()

    def _has_to_stop(self) -> bool:
        return self._is_stopping

    def _stop(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._is_stopping = True
        child = self._child
        if child is not None and child.returncode is None:
            os.kill(child.pid, signal.SIGTERM)


def _tell(child: subprocess.Popen[bytes]) -> None:
    """Tell a child to go; one that has died says so when it is waited for."""
    assert child.stdin is not None  # noqa: S101 - for mypy
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(b"\n")
        child.stdin.flush()
