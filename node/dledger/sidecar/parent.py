"""The parent of the sidecar: holds the listening sockets, and starts the child again that ends.

An SDK gives a send up after a fifth of a second if its address refuses connections. So the sockets
outlive the process that serves them, and this one imports nothing that could end it.
"""

from __future__ import annotations

import argparse
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
_CALM_S: Final = 10.0


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
    """Keeps one child running.

    Args:
        sockets: The ports, which listen.
        argv: The child's options.
    """

    def __init__(self, sockets: Sequence[socket.socket], argv: Sequence[str]) -> None:
        self._sockets, self._argv = sockets, argv
        self._child: subprocess.Popen[bytes] | None = None
        self._is_stopping = False

    def run(self) -> int:
        """Start the child again and again, until a signal or until its options are wrong."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        pause_s, most_s = _PAUSES_S
        while True:
            began_s = time.monotonic()
            code = self._run_child()
            if self._has_to_stop():
                return 0
            if code == EXIT_USAGE:
                return EXIT_USAGE
            if time.monotonic() - began_s > _CALM_S:
                pause_s = _PAUSES_S[0]
            print(f"dledger spool: the child ended ({code}), the next begins", file=sys.stderr)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, most_s)
            if self._has_to_stop():
                return 0

    def _run_child(self) -> int:
        descriptors = [each.fileno() for each in self._sockets]
        listed = ",".join(map(str, descriptors))
        command = [sys.executable, "-m", _CHILD, "--sockets", listed, *self._argv]
        with subprocess.Popen(command, pass_fds=descriptors) as child:  # noqa: S603 - this program
            self._child = child
            if self._has_to_stop():  # the signal came before there was a child to tell
                child.terminate()
            return child.wait()

    def _has_to_stop(self) -> bool:
        return self._is_stopping

    def _stop(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._is_stopping = True
        child = self._child
        if child is not None and child.returncode is None:
            os.kill(child.pid, signal.SIGTERM)
