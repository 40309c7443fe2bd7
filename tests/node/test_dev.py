"""``dledger dev`` and its ports: what two groups that are started at once do to each other."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from live_nodes import LiveNodes

from dledger.dev import own_status
from dledger.store.files import RealFiles
from dledger.store.identity import load_or_format
from e2e.devgroup import free_port_range

ROOT = Path(__file__).resolve().parents[2]


async def test_a_node_of_another_group_on_our_port_does_not_answer_for_ours(
    tmp_path: Path,
) -> None:
    """A group that lost the race for its ports announced itself by the winner's nodes."""
    nodes = LiveNodes(tmp_path / "theirs")
    await nodes.start(0)
    load_or_format(RealFiles(), tmp_path / "ours", "node-0")

    node_id = nodes.nodes[0].node_id
    async with nodes.admin(0) as admin:
        theirs = await own_status(admin, nodes.data(0))
        ours = await own_status(admin, tmp_path / "ours")
        unformatted = await own_status(admin, tmp_path / "none")
    await nodes.stop()

    assert theirs is not None
    assert theirs.node_id == node_id
    assert (ours, unformatted) == (None, None)


def test_two_runs_of_tests_get_different_ports() -> None:
    """Though nobody listens there yet."""
    ours = free_port_range()

    other = subprocess.run(
        [sys.executable, "-c", "from e2e.devgroup import free_port_range as f; print(f())"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )

    assert int(other.stdout) != ours


def test_a_run_keeps_to_the_ports_that_its_last_group_has_left() -> None:
    """Connections that were closed there count for a minute; a run took all ranges bit by bit."""
    first = free_port_range()
    with (
        socket.create_server(("127.0.0.1", first)) as server,
        socket.create_connection(("127.0.0.1", first)),
    ):
        busy = free_port_range()
        accepted, _ = server.accept()
        accepted.close()

    assert busy != first
    assert free_port_range() == first
