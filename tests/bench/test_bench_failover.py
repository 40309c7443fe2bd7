"""Failover rows: links that can be cut, and what is said of a set of gaps."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from e2e.bench.catch_up import CatchUp
from e2e.bench.failover import TrialOutcome, deaths, gap_figures, phase_figures
from e2e.bench.figures import Gap
from e2e.harness.nodes import Link, NodeSpec, allocate
from e2e.harness.ports import HOST
from e2e.harness.processes import socket_inode
from e2e.harness.proxy import Links

TABLE = """\
   0: 0100007F:C383 0100007F:59D9 01 00000000:00000000 00:00000000 00000000 0 0 4711 1 0 20 4 30 10
   1: 0100007F:59D9 0100007F:C383 01 00000000:00000000 00:00000000 00000000 0 0 4712 1 0 20 4 30 10
"""


@pytest.fixture
def echoing(tmp_path: Path) -> Iterator[tuple[NodeSpec, Links]]:
    """Two specs; the node of the second one echoes, and this process is the first one's node."""
    specs = allocate(tmp_path, Link.BY_PORT, count=2)
    links = Links(specs, lambda: [os.getpid(), -1])
    links.start()
    with socket.create_server((HOST, specs[1].peer_port)) as server:
        threading.Thread(target=_echo, args=(server,), daemon=True).start()
        yield specs[1], links
        links.stop()


def _echo(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=_echo_one, args=(connection,), daemon=True).start()


def _echo_one(connection: socket.socket) -> None:
    with connection, contextlib.suppress(ConnectionError):  # the test may cut it off
        while piece := connection.recv(100):
            connection.sendall(piece)


def test_a_cut_link_is_silent_and_a_healed_one_delivers(echoing: tuple[NodeSpec, Links]) -> None:
    """As with a switch that fails: the connection stays, and TCP repeats what was lost."""
    spec, links = echoing
    with closing(socket.create_connection((HOST, spec.link_port), timeout=10)) as peer:
        peer.sendall(b"a")
        assert peer.recv(1) == b"a"

        links.cut(0)
        peer.sendall(b"b")
        peer.settimeout(0.2)
        with pytest.raises(TimeoutError):
            peer.recv(1)

        links.heal()
        peer.settimeout(10)
        assert peer.recv(1) == b"b"


def test_a_connection_made_during_the_cut_hangs_until_it_heals(
    echoing: tuple[NodeSpec, Links],
) -> None:
    """A peer that dials anew gets no answer, and no refusal either."""
    spec, links = echoing
    links.cut(1)
    with closing(socket.create_connection((HOST, spec.link_port), timeout=10)) as peer:
        peer.sendall(b"a")
        peer.settimeout(0.2)
        with pytest.raises(TimeoutError):
            peer.recv(1)

        links.heal()
        peer.settimeout(10)
        assert peer.recv(1) == b"a"


def test_the_kernels_table_tells_whose_a_socket_is() -> None:
    """Ports are in hexadecimal; each connection on loopback is there twice, once for each end."""
    lines = TABLE.splitlines()

    assert socket_inode(lines, 0xC383, 0x59D9) == "4711"
    assert socket_inode(lines, 0x59D9, 0xC383) == "4712"
    assert socket_inode(lines, 1, 2) is None


def test_a_gap_that_did_not_end_counts_as_long_as_it_was_watched() -> None:
    """Leaving it out would make a system look better the worse it is."""
    gaps = [Gap(from_s=0, to_s=s, is_over=s < 10) for s in (0.3, 0.1, 0.2, 30)]

    figures = gap_figures(gaps)

    assert (figures["trials"], figures["unrecovered"]) == (4, 1)
    assert (figures["p50_ms"], figures["max_ms"]) == (200, 30_000)


def test_a_victim_that_died_of_a_cut_link_is_told_of() -> None:
    """It is started again for the next trial, and its gap is not that of a cut."""
    gap = Gap(from_s=0, to_s=1, is_over=True)
    ends = ("", "ended with 4", "", "ended with 4", "ended with -11")

    assert deaths([TrialOutcome(gap, True, {}, amiss) for amiss in ends]) == (
        "1 of 5 ended with -11",
        "2 of 5 ended with 4",
    )
    assert deaths([TrialOutcome(gap, True, {})]) == ()


def test_phases_are_medians_of_the_trials_that_have_them() -> None:
    """Not every system tells how its election went."""
    assert phase_figures([{"elected_ms": 1}, {}, {"elected_ms": 3}]) == {"elected_ms": 2}


def test_a_course_without_load_meanwhile_has_no_p99() -> None:
    """A follower may be back before a single request was answered."""
    course = CatchUp(
        behind_bytes=80_000_000,
        caught_up_bytes=50_000_000,
        start_s=1,
        catch_up_s=0.5,
        calm_us=[2000],
        start_us=[5000],
        busy_us=[],
    )

    figures = course.figures()

    assert (figures["mb_s"], figures["calm_p99_ms"], figures["start_p99_ms"]) == (100, 2, 5)
    assert "busy_p99_ms" not in figures
