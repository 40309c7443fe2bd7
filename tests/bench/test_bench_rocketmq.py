"""RocketMQ beside ours: its own calls, its processes, and the rows of its Java SDK."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.bench import beside_rocketmq, remoting, report
from e2e.bench.__main__ import parser
from e2e.bench.beside_rocketmq import sdk_contestants
from e2e.bench.contest import Turns, contest
from e2e.bench.java_sdk import ASYNC_256, JAVA_SDK, STEPS, cost_figures
from e2e.bench.machine import Busy
from e2e.bench.process_group import NodeState, ProcessGroup
from e2e.bench.remoting import Brokers, RemotingError, brokers_of, decoded, encoded
from e2e.bench.rocketmq import NAME, RocketMQ, broker_settings, placed, properties
from e2e.bench.rows import OURS, Row, Run
from e2e.bench.targets import TARGETS
from e2e.cluster.shell import run
from e2e.harness.ports import HOST

CLUSTER = (
    b'{"brokerAddrTable":{"bench":{"brokerAddrs":{0:"127.0.0.1:3",2:"127.0.0.1:5"},'
    b'"brokerName":"bench","cluster":"bench"}},"clusterAddrTable":{"bench":["bench"]}}'
)


@pytest.fixture
def names() -> Iterator[tuple[str, list[bytes]]]:
    """A name server that gives each caller the next answer; "" ends the connection."""
    answers: list[bytes] = []
    with closing(socket.create_server((HOST, 0))) as server:
        threading.Thread(target=_serve, args=(server, answers), daemon=True).start()
        yield f"{HOST}:{server.getsockname()[1]}", answers


def _serve(server: socket.socket, answers: list[bytes]) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection, connection.makefile("rb") as asked:
            asked.read(int.from_bytes(asked.read(4), "big"))
            connection.sendall(answers.pop(0))


def _answer(body: bytes, code: int = 0) -> bytes:
    """Return a frame as RocketMQ writes it: a request's without its fields, and a body."""
    frame = encoded(code, {})
    return (len(frame) - 4 + len(body)).to_bytes(4, "big") + frame[4:] + body


def test_a_frame_says_how_much_of_it_is_header() -> None:
    """The first byte of the header's length is its kind: 0 for JSON."""
    frame = encoded(17, {"topic": "a", "perm": 6})

    header, body = decoded(frame[4:] + b"body")

    assert len(frame) == 4 + int.from_bytes(frame[:4], "big")
    assert (header["code"], header["extFields"]) == (17, {"topic": "a", "perm": "6"})
    assert body == b"body"
    assert decoded(b"\x01" + frame[5:])[0] == header
    assert decoded(encoded(200, {}, b"settings")[4:])[1] == b"settings"


def test_the_master_has_number_0_and_keys_have_no_quotes() -> None:
    """Between elections there is none; in quotes is fine as well."""
    everyone = frozenset({"127.0.0.1:3", "127.0.0.1:5"})

    assert brokers_of(CLUSTER) == Brokers("127.0.0.1:3", everyone)
    assert brokers_of(CLUSTER.replace(b"0:", b'"0":')) == Brokers("127.0.0.1:3", everyone)
    assert brokers_of(CLUSTER.replace(b"2:", b"-1:")) == Brokers("127.0.0.1:3", everyone)
    assert brokers_of(CLUSTER.replace(b"{0:", b"{1:")) == Brokers(None, everyone)
    assert brokers_of(b'{"brokerAddrTable":{}}') == Brokers(None, frozenset())


def test_a_name_server_that_does_not_answer_knows_nobody(names: tuple[str, list[bytes]]) -> None:
    """Neither one that is not there, nor one that refuses or ends in the middle."""
    address, answers = names
    answers += [_answer(CLUSTER), _answer(b"", code=1), b"", b"\0"]

    told = [remoting.brokers(address) for _ in range(4)]

    assert told == [brokers_of(CLUSTER), None, None, None]
    assert remoting.brokers(f"{HOST}:1") is None


def test_a_refused_topic_or_group_is_an_error(names: tuple[str, list[bytes]]) -> None:
    """As of a broker that is no master any more."""
    address, answers = names
    answers += [_answer(b""), _answer(b"", code=16)]

    remoting.make_topic(address, "topic", 8, "FIFO")

    with pytest.raises(RemotingError, match="code 16"):
        remoting.make_ordered_group(address, "group")


def test_a_proxy_becomes_itself_once_its_brokers_are_there(names: tuple[str, list[bytes]]) -> None:
    """It would end at once if it were alone: so it waits, and keeps the process id."""
    address, answers = names
    answers += [_answer(b"{}"), _answer(CLUSTER.replace(b"{0:", b"{1:")), _answer(CLUSTER)]

    said = run(sys.executable, "-m", "e2e.bench.remoting", address, "2", "echo", "started")

    assert said == "started\n"
    assert answers == []


def test_each_process_has_three_ports_beside_each_other(tmp_path: Path) -> None:
    """A broker listens two below its own port as well, whatever is set."""
    specs = placed(tmp_path)

    assert [spec.name for spec in specs] == ["n0", "n1", "n2", "names", "proxy"]
    assert all(s.client_port - 2 == s.http_port == s.peer_port - 1 for s in specs)
    assert len({port for s in specs for port in (s.client_port, s.peer_port, s.http_port)}) == 15


def test_brokers_are_one_dledger_group(tmp_path: Path) -> None:
    """Each by its own name, all by the same list."""
    specs = placed(tmp_path)

    settings = broker_settings(specs[1], specs[:3], "127.0.0.1:9")

    peers = ";".join(f"{s.name}-127.0.0.1:{s.peer_port}" for s in specs[:3])
    assert "dLegerSelfId=n1\n" in properties(settings)
    assert f"dLegerPeers={peers}\n" in properties(settings)
    assert f"listenPort={specs[1].client_port}\n" in properties(settings)


@pytest.mark.parametrize(
    ("folder", "jar"),
    [("rocketmq", "rocketmq-broker-5.5.0"), ("java_sdk", "rocketmq-client-java-5.2.0")],
)
def test_the_jars_are_pinned(folder: str, jar: str) -> None:
    """By version where they are named, and by digest."""
    sources = Path(__file__).parents[2] / "e2e/bench" / folder

    assert f"<version>{jar.rpartition('-')[2]}</version>" in (sources / "pom.xml").read_text(
        "utf-8"
    )
    assert f" {jar}.jar\n" in (sources / "jars.sha256").read_text("ascii")


def test_what_a_message_costs_is_that_of_all_servers() -> None:
    """What the cores did beside is of others; a row in which nothing came has no cost."""
    figures = {
        "per_s": 1000.0,
        "seconds": 10.0,
        "node0_cpu_s": 2.0,
        "node4_cpu_s": 1.0,
        "node4_rss_mb": 99.0,
        "client_cpu_s": 4.0,
    }

    assert cost_figures(figures, 12.0) == {"others_cores": 0.5, "server_us": 300, "client_us": 400}
    assert cost_figures(figures | {"per_s": 0.0}, 6.0) == {"others_cores": 0.0}


def test_cores_that_wait_or_were_stolen_did_not_work(tmp_path: Path) -> None:
    """Of user, nice, system, idle, wait, interrupts (two) and stolen time."""
    stat = tmp_path / "stat"
    stat.write_text("cpu  1 1 1 1 1 1 1 1 9 9\n")
    busy = Busy(stat)

    stat.write_text("cpu  101 101 101 901 901 101 101 901 9 9\n")

    assert busy.seconds() == 500 / 100


def _row(system: str, **figures: float) -> Row:
    return Row(
        kind=JAVA_SDK,
        system=system,
        name=f"1 KiB, {ASYNC_256.name}",
        figures={"failures": 0.0, "others_cores": 0.25, **figures},
    )


def test_ours_is_compared_with_rocketmq_of_the_same_run() -> None:
    """By rate, and by what a message costs; what failed is no figure of ours."""
    ours = _row(OURS, per_s=3000, server_us=150)
    theirs = _row(NAME, per_s=2000, server_us=500)
    both = Run(at="", commit="", machine={}, rows=(theirs, ours))
    failed = replace(both, rows=(theirs, replace(ours, figures={**ours.figures, "failures": 1.0})))
    lines = [
        target for target in TARGETS if ASYNC_256.name in target.line and "RocketMQ" in target.line
    ]

    assert [(line.value(both), line.verdict(both)) for line in lines] == [(0.3, "yes"), (1.5, "no")]
    assert [line.value(failed) for line in lines] == [None, None]


def test_the_page_says_what_each_promises_and_how_busy_others_were() -> None:
    """A run of this part alone is shown beside the newest one of the rest."""
    machine = {
        "cpu": "x",
        "cores": 2,
        "memory_gib": 4,
        "kernel": "6",
        "python": "3",
        "load_before": 7.5,
    }
    rows = (replace(_row(OURS, per_s=1234.0), notes=("synced",)),)
    own = Run(at="2026-01-02T03:04:05Z", commit="abc", machine=machine, rows=rows)
    append = Row(kind="append", system=OURS, name="1 KiB", size_bytes=1024, figures={"per_s": 9.0})
    newest = replace(own, commit="def", rows=(append,))

    text = report.figures_text(newest, [own, newest])

    assert "commit `abc`: load 7.5 before it began" in text
    assert "others took 0.25" in text
    assert "RocketMQ acknowledges from the page cache of a majority" in text
    assert "| dledger | async sends, 256 under way | 1,234 | 0.25 | 0 |\n" in text
    assert beside_rocketmq.about(newest) == ""


def test_both_take_part_under_a_name_of_the_command_line() -> None:
    """RocketMQ alone would be beside nothing."""
    turns = Turns(full=False, seconds=1, rounds=1)

    assert parser().parse_args(["--only", "rocketmq"]).only == ["rocketmq"]
    assert list(sdk_contestants(turns)) == ["ours-by-java-sdk", "rocketmq"]


@pytest.mark.long
def test_rocketmq_starts_serves_its_sdk_and_ends(tmp_path: Path) -> None:
    """Five real processes, from Maven Central; nothing is left, whatever was frozen."""
    specs = placed(tmp_path / "disk")
    group = ProcessGroup(RocketMQ(), specs, tmp_path / "logs")
    try:
        group.start()
        sent = group.load.ask(
            "fill", group="push", messages=50, size_bytes=10, window=4, seconds=60
        )
        group.pause()
        group.resume()
        states = group.states()
        nodes = list(group.nodes)
        group.pause()
    finally:
        group.discard()

    assert (sent["requests"], sent["failures"]) == (50, 0)
    assert sum(state.leads for state in states if state) == 1
    assert states[3:] == 2 * [NodeState(leads=False, term=0, is_ready=True)]
    assert not any(node.is_running() for node in nodes)
    assert all(not any(spec.directory.iterdir()) for spec in specs)


@pytest.mark.long
def test_every_row_of_ours_comes_through_the_java_sdk(tmp_path: Path) -> None:
    """One short turn of real nodes and the real SDK: nothing fails, and each has its price."""
    turns = Turns(full=False, seconds=1, rounds=1, warm_up_s=1)
    ours = {name: each for name, each in sdk_contestants(turns).items() if name != "rocketmq"}

    rows = list(contest(ours, turns, tmp_path / "disk", tmp_path / "logs"))

    assert [row.name for row in rows] == [f"1 KiB, {step.name}" for step in STEPS]
    for row in rows:
        assert row.figures["per_s"] > 0
        assert row.figures["failures"] == 0
        assert row.figures["server_us"] > 0
        assert row.notes == ("acknowledged when a majority has synced it",)
