"""``dledger dev`` and its ports: what two groups that are started at once do to each other."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from subprocess import PIPE

import pytest

from dledger.cli.dev import found, own_status
from dledger.cli.main import main
from dledger.client import AdminClient
from dledger.errors import AlreadyBootstrapped, Unavailable
from dledger.files.files import RealFiles
from dledger.store.identity import load_or_format
from dledger.types import Member
from e2e.harness.ports import free_port_range
from tests.system.live_nodes import GROUP_ID, LiveNodes

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


class Deaf(AdminClient):
    """Asks, and does not hear the first answers: its machine stood still."""

    deaf_for = 1

    async def bootstrap(self, group_id: str, members: Sequence[Member]) -> None:
        with contextlib.suppress(*((AlreadyBootstrapped,) if self.deaf_for > 0 else ())):
            await super().bootstrap(group_id, members)
        self.deaf_for -= 1
        if self.deaf_for >= 0:
            raise Unavailable("deadline exceeded")


async def test_a_founding_whose_answer_is_lost_is_asked_for_again(tmp_path: Path) -> None:
    """`dledger dev` ended with a traceback, beside a group that was founded."""
    nodes = LiveNodes(tmp_path)
    await nodes.start(0)

    async with Deaf(nodes.peer_address(0)) as admin:
        await found(admin, GROUP_ID, [nodes.member(0)], no_answer=lambda: None)

    assert nodes.status(0).group_id
    await nodes.stop()


async def test_a_group_that_somebody_else_has_founded_is_not_taken_for_ours(tmp_path: Path) -> None:
    """And who never hears anything gives up."""

    def enough() -> None:
        if deaf.deaf_for < 98:
            raise Unavailable("not founded")

    nodes = LiveNodes(tmp_path)
    await nodes.found(0)

    async with nodes.admin(0) as admin:
        with pytest.raises(AlreadyBootstrapped, match=GROUP_ID):
            await found(admin, "another", [nodes.member(0)], no_answer=lambda: None)
    async with Deaf(nodes.peer_address(0)) as deaf:
        deaf.deaf_for = 100
        with pytest.raises(Unavailable):
            await found(deaf, GROUP_ID, [nodes.member(0)], no_answer=enough)
    await nodes.stop()


def test_runs_of_tests_that_ask_at_once_get_different_ports() -> None:
    """Though nobody listens there yet, neither in this process nor in the others."""
    asks = (
        "from e2e.harness.dev_group import free_port_range as f; "
        "print(f(), f(), flush=True); input()"
    )
    command = [sys.executable, "-c", asks]
    start = partial(subprocess.Popen[str], command, cwd=ROOT, stdin=PIPE, stdout=PIPE, text=True)
    ours = [free_port_range(), free_port_range()]

    with (
        start() as one,
        start() as other,
    ):
        lines = [run.stdout.readline() for run in (one, other) if run.stdout]
        theirs = [int(word) for line in lines for word in line.split()]
        for run in (one, other):
            run.communicate("\n")

    assert len({*ours, *theirs}) == 6


def test_a_run_keeps_to_a_few_ranges() -> None:
    """A range for each group would leave none to other runs."""
    given = {free_port_range() for _ in range(10)}

    assert len(given) < 10
    assert {free_port_range() for _ in range(10)} == given


def test_ports_where_somebody_listens_are_passed_by() -> None:
    """Until he leaves; connections that were closed there count for a minute, but not here."""
    first = free_port_range()
    with (
        socket.create_server(("127.0.0.1", first)) as server,
        socket.create_connection(("127.0.0.1", first)),
    ):
        while_busy = {free_port_range() for _ in range(6)}
        accepted, _ = server.accept()
        accepted.close()

    assert first not in while_busy
    assert first in {free_port_range() for _ in range(6)}


@pytest.mark.parametrize("setting", ["bogus=1", "election_timeout_ms=soon"])
def test_a_refused_setting_leaves_no_group_behind(
    setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next try there may have another shape."""
    data = tmp_path / "data"

    assert main(["dev", "--data", str(data), "--set", setting]) == 2

    assert setting.partition("=")[0] in capsys.readouterr().err.lower()
    assert not data.exists()
