"""``python -m e2e.chaos.node``: the shipped node on faulty files, a jumping clock, and proxies.

Takes what ``dledger node`` takes, and two variables: CHAOS_CONTROL, the control file of `shim`, and
CHAOS_ROUTES, a JSON object: by which port each port of a peer is dialled.
"""

from __future__ import annotations

import dledger.common.grpc_polling  # noqa: F401 - before gRPC, which looks when it is imported

# isort: split
import argparse
import json
import os
import sys
from functools import partial
from pathlib import Path
from unittest import mock

from dledger.cli import node_command
from dledger.peers.peers import Peers
from dledger.types import Member
from e2e.chaos.shim import Faults, FaultyFiles, JumpingClock


class RoutedPeers(Peers):
    """Peers that are dialled through proxies, whatever address they announce."""

    routes: dict[int, int] = {}  # noqa: RUF012 - set once, before there is an instance

    def address(self, member: Member) -> str:
        """Return the proxy in front of *member*."""
        host, _, port = super().address(member).rpartition(":")
        return f"{host}:{self.routes.get(int(port), port)}"

    def replication_address(self, address: str, port: int) -> tuple[str, int]:
        """Return the proxy in front of its replication port."""
        return super().replication_address(address, self.routes.get(port, port))


def main() -> int:
    """Run one node; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    node_command.add_arguments(parser)
    faults = Faults(Path(os.environ["CHAOS_CONTROL"]))
    routes = json.loads(os.environ["CHAOS_ROUTES"])
    RoutedPeers.routes = {int(port): proxy for port, proxy in routes.items()}
    with mock.patch.multiple(
        "dledger.server.node",
        RealFiles=partial(FaultyFiles, faults),
        RealClock=partial(JumpingClock, faults),
        Peers=RoutedPeers,
    ):
        return node_command.run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
