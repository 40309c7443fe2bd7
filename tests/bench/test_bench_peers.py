"""What the bench reads from the machine and from its peers, without starting any of them."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest

from e2e.bench.__main__ import line
from e2e.bench.engine import usage_figures
from e2e.bench.etcd import parse_status
from e2e.bench.java import check_jars
from e2e.bench.process_group import NodeState
from e2e.bench.results import write
from e2e.bench.rows import Row, Run, from_json
from e2e.harness.nodes import Link, allocate
from e2e.harness.processes import ChildProcess, Command, Usage, parse_usage
from e2e.harness.waiting import HarnessError

STAT = "7 (a (strange) name) S 1 7 7 0 -1 4194304 9 0 0 0 150 50 0 0 20 0 4 0 100 0 0\n"
STATUS = "Name:\tx\nVmHWM:\t  2000 kB\nVmRSS:\t  1000 kB\n"
ANSWERS = "import sys\nfor line in sys.stdin: print(line.replace('ask', 'answer'), flush=True)"


def test_processor_time_and_memory_are_read_from_proc() -> None:
    """A program's name may hold brackets and blanks."""
    ticks = os.sysconf("SC_CLK_TCK")

    assert parse_usage(STAT, STATUS) == Usage(cpu_s=200 / ticks, rss_mb=1.024, peak_mb=2.048)


def test_a_process_that_ended_has_no_usage() -> None:
    """What is not yet waited for has no memory any more."""
    assert parse_usage(STAT, "Name:\tx\n") is None


def test_usage_is_what_was_added_meanwhile() -> None:
    """A node that was restarted meanwhile would give nonsense, so it gives nothing."""
    old, new = (Usage(cpu_s=s, rss_mb=10 * s, peak_mb=0) for s in (1.0, 3.0))

    figures = usage_figures([old, None, old], [new, new, new])

    assert figures == {
        "node0_cpu_s": 2.0,
        "node0_rss_mb": 30.0,
        "client_cpu_s": 2.0,
        "client_rss_mb": 30.0,
    }


def test_etcd_tells_who_leads() -> None:
    """The gateway writes 64 bit numbers as strings and leaves zeros out."""
    told = {"header": {"member_id": "8"}, "leader": "8", "raftTerm": "3", "raftIndex": "12"}

    assert parse_status(told) == NodeState(leads=True, term=3, is_ready=True, last_index=12)
    assert not parse_status({"header": {"member_id": "8"}}).is_ready


def test_a_jar_that_is_not_the_pinned_one_is_refused(tmp_path: Path) -> None:
    """Nothing runs that was not looked at: changed, missing and additional jars are named."""
    (tmp_path / "a.jar").write_bytes(b"a")
    pinned = f"{hashlib.sha256(b'a').hexdigest()}  a.jar\n"

    check_jars(tmp_path, pinned)

    for wrong in ("", pinned.replace("a.jar", "b.jar"), f"{'0' * 64}  a.jar\n"):
        with pytest.raises(HarnessError, match=r"a\.jar"):
            check_jars(tmp_path, wrong)


def test_the_jar_of_the_bench_is_pinned() -> None:
    """The version that the issue names, by its digest."""
    sources = Path(__file__).parents[2] / "e2e/bench/java"

    assert "<version>0.3.1.2</version>" in (sources / "pom.xml").read_text("utf-8")
    assert " dledger-0.3.1.2.jar" in (sources / "jars.sha256").read_text("utf-8")


def test_peers_are_led_to_the_links_and_the_node_listens_behind(tmp_path: Path) -> None:
    """By a port of its own, or by an address for a node that tells the port it listens on."""
    by_port, by_host = allocate(tmp_path, Link.BY_PORT), allocate(tmp_path, Link.BY_HOST)

    ports = [
        port for s in by_port for port in (s.client_port, s.peer_port, s.http_port, s.link_port)
    ]
    assert len(set(ports)) == 12
    assert {spec.link_host for spec in by_host} == {"127.0.1.1", "127.0.1.2", "127.0.1.3"}
    assert [spec.link_port for spec in by_host] == [spec.peer_port for spec in by_host]
    assert all(spec.link_address == spec.own_address for spec in allocate(tmp_path))


def test_a_child_answers_line_by_line_and_ends_with_its_input(tmp_path: Path) -> None:
    """The load programs of three languages speak this."""
    child = ChildProcess(Command((sys.executable, "-c", ANSWERS), answers=True), tmp_path / "log")

    try:
        assert child.ask({"ask": 1}, timeout_s=30) == {"answer": 1}
        with pytest.raises(HarnessError, match="python"):
            child.ask({"error": "it says"}, timeout_s=30)
    finally:
        child.stop()

    assert not child.is_running()


def test_the_second_run_of_a_day_does_not_replace_the_first(tmp_path: Path) -> None:
    """The history only grows."""
    row = Row(kind="read", system="dledger", name="4 readers", figures={"per_s": 1234.5})
    run = Run(at="2026-01-02T03:04:05Z", commit="abc+", machine={}, rows=(row,))

    paths = [write(run, tmp_path), write(run, tmp_path)]

    assert [path.name for path in paths] == ["2026-01-02-abc.json", "2026-01-02T030405-abc.json"]
    assert from_json(paths[1].read_text("utf-8"), "x").rows == run.rows
    assert "1,234.5 /s" in line(row)
