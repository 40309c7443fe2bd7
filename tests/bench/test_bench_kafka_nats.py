"""Kafka and NATS JetStream as peers: how they are asked, told, started, loaded and stopped."""

from __future__ import annotations

import json
import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.bench import kafka, nats
from e2e.bench.cases import Case
from e2e.bench.java import digest_of
from e2e.bench.kafka_metadata import MalformedAnswer, Partition, parse, request
from e2e.bench.machine import Busy
from e2e.bench.peers import PEERS, costs
from e2e.bench.process_group import NodeState, ProcessGroup
from e2e.bench.promises import Promise
from e2e.cluster import golang
from e2e.harness.nodes import allocate
from e2e.harness.waiting import HarnessError
from tests.waiting import eventually_blocking

SOURCES = Path(__file__).parents[2] / "e2e"
SYNCED, PAGE_CACHE = Promise.SYNCED, Promise.PAGE_CACHE


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _ids(*ids: int) -> bytes:
    return struct.pack(f">i{len(ids)}i", len(ids), *ids)


def _partition(number: int, leader: int, in_sync: tuple[int, ...]) -> bytes:
    return struct.pack(">hiii", 0, number, leader, 7) + _ids(1, 2, 3) + _ids(*in_sync) + _ids()


def _topic(name: str, *partitions: bytes, error: int = 0) -> bytes:
    head = struct.pack(">h", error) + _text(name) + b"\0"
    return head + struct.pack(">i", len(partitions)) + b"".join(partitions)


def _answer(*topics: bytes) -> bytes:
    broker = struct.pack(">i", 1) + _text("127.0.0.1") + struct.pack(">ih", 9092, -1)
    head = struct.pack(">iii", 0, 0, 1) + broker + _text("cluster") + struct.pack(">i", 2)
    return head + struct.pack(">i", len(topics)) + b"".join(topics)


def _whole(*, leader: int = 2, in_sync: tuple[int, ...] = (1, 2, 3)) -> bytes:
    singles = _topic("singles", _partition(0, leader, in_sync))
    batches = _topic("batches", *(_partition(number, 1, (1, 2, 3)) for number in (1, 0)))
    return _answer(singles, batches)


def test_kafka_is_asked_for_topics_and_makes_none() -> None:
    """The length stands in front, and the last byte says that a missing topic is not created."""
    asked = request(["singles"])

    assert struct.unpack(">ihh", asked[:8]) == (len(asked) - 4, 3, 7)
    assert asked.endswith(_text("singles") + b"\0")


def test_kafka_tells_the_leaders_in_order_of_the_partitions() -> None:
    """However they are ordered on the wire; a topic with an error is not there."""
    told = parse(
        _answer(_topic("t", _partition(1, 2, (2,)), _partition(0, 3, (1, 3))), _topic("x", error=3))
    )

    assert told == {
        "t": (
            Partition(leader=3, leader_epoch=7, in_sync=frozenset({1, 3})),
            Partition(leader=2, leader_epoch=7, in_sync=frozenset({2})),
        )
    }


def test_an_answer_of_kafka_that_is_cut_short_is_malformed() -> None:
    """At whichever byte; and so is one that goes on."""
    whole = _whole()

    for length in range(len(whole)):
        with pytest.raises(MalformedAnswer):
            parse(whole[:length])
    with pytest.raises(MalformedAnswer, match="1 bytes behind"):
        parse(whole + b"\0")


def test_a_node_of_kafka_is_ready_once_it_is_in_sync_with_every_leader() -> None:
    """The leader of the single records is the one that a failover kills."""
    whole, behind = parse(_whole()), parse(_whole(in_sync=(1, 2)))

    assert kafka.node_state(whole, 2) == NodeState(leads=True, term=7, is_ready=True)
    assert kafka.node_state(whole, 1) == NodeState(leads=False, term=7, is_ready=True)
    assert kafka.node_state(parse(_whole(leader=-1)), 1).is_ready is False
    assert [kafka.node_state(behind, node).is_ready for node in (1, 3)] == [True, False]
    assert kafka.node_state({}, 1) == NodeState(leads=False, term=0, is_ready=False)


def _jsz(leader: str, *, name: str, current: bool = True) -> dict[str, object]:
    others = [each for each in ("n0", "n1", "n2") if each != name]
    replicas = [{"name": each, "current": current, "active": 1} for each in others]
    cluster = {"name": "bench", "leader": leader, "replicas": replicas}
    streams = [{"name": each, "cluster": cluster} for each in ("SINGLES", "BATCHES")]
    return {"account_details": [{"name": "$G", "stream_detail": streams}]}


def test_nats_tells_who_leads_and_its_leader_who_is_current() -> None:
    """What a follower says of the others' progress is none of its business."""
    state = nats.parse_streams

    assert state(_jsz("n0", name="n0"), "n0") == NodeState(leads=True, term=0, is_ready=True)
    assert not state(_jsz("n0", name="n0", current=False), "n0").is_ready
    assert state(_jsz("n0", name="n1", current=False), "n1") == NodeState(
        leads=False, term=0, is_ready=True
    )
    assert not state(_jsz("", name="n1"), "n1").is_ready
    assert not state({}, "n1").is_ready


def test_each_peer_is_told_to_sync_or_left_as_it_is(tmp_path: Path) -> None:
    """A promise is one setting; its default is the page cache."""
    specs = allocate(tmp_path)

    synced, default = (kafka.properties(specs[0], specs, each) for each in (SYNCED, PAGE_CACHE))
    assert synced == {**default, "log.flush.interval.messages": 1}
    assert default["min.insync.replicas"] == 2

    always, not_told = (
        json.loads(nats.config(specs[1], specs, each)) for each in (SYNCED, PAGE_CACHE)
    )
    assert always["jetstream"] == {**not_told["jetstream"], "sync_interval": "always"}
    assert len(always["cluster"]["routes"]) == 3


def test_the_versions_of_the_peers_are_pinned() -> None:
    """Kafka's by the digest of every jar, NATS' by its module's sums."""
    go_mod = (golang.MODULES / "natsload/go.mod").read_text("utf-8")
    java = SOURCES / "bench/kafka_java"

    assert golang.required_version(go_mod, "github.com/nats-io/nats-server/v2") == "v2.15.2"
    assert "<version>4.4.0</version>" in (java / "pom.xml").read_text("utf-8")
    assert " kafka_2.13-4.4.0.jar" in (java / "jars.sha256").read_text("utf-8")
    assert len(digest_of(java)) == 12


def test_a_row_says_what_100000_messages_cost_and_what_others_took() -> None:
    """What was under way at the end is paid for, too; what else the cores did is others' work."""
    figures = {"messages": 49_000.0, "client_cpu_s": 0.5, "node0_cpu_s": 1.0, "node1_cpu_s": 0.5}

    assert costs(figures, late=1000, busy_s=3.0, took_s=2.0) == {
        "nodes_100k_s": 3.0,
        "client_100k_s": 1.0,
        "others_cores": 0.5,
    }
    assert costs({**figures, "messages": 0.0}, late=1, busy_s=1.0, took_s=2.0) == {
        "others_cores": 0.0
    }


def test_work_is_what_is_neither_idle_nor_waiting_nor_stolen(tmp_path: Path) -> None:
    """In the first line of /proc/stat: all cores together."""
    stat = tmp_path / "stat"
    stat.write_text("cpu 100 0 50 900 10 0 5 7 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    busy = Busy(stat)

    stat.write_text("cpu 200 0 100 2000 20 0 55 70 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")

    assert busy.seconds() == pytest.approx(2.0)


@pytest.fixture(params=list(PEERS))
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ProcessGroup]:
    """Three running nodes of each peer, and its load program."""
    made = ProcessGroup(PEERS[request.param](), allocate(tmp_path / "nodes"), tmp_path / "logs")
    try:
        made.start()
        yield made
    finally:
        made.discard()


@pytest.mark.long
def test_a_peer_takes_messages_gives_them_back_and_outlives_its_leader(group: ProcessGroup) -> None:
    """What was acknowledged is read; what is not built is refused with a word."""
    for case in (
        Case(batch=1, window=16, size_bytes=128),
        Case(batch=256, window=16, size_bytes=128),
    ):
        loaded = group.load.run(case, 4.0, node=group.wait_whole())
        found = group.load.run(Case(batch=case.batch, window=1), 30.0, mode="read")
        assert loaded.requests > 0 == loaded.failures
        assert found.requests >= loaded.requests
    with pytest.raises(HarnessError, match="open loop is not built"):
        group.load.run(Case(batch=1, window=1), 1.0, rate=10)

    victim = group.wait_whole()
    group.load.start_steady(node=(victim + 1) % 3)
    eventually_blocking(group.load.acks_s)
    group.nodes[victim].send(signal.SIGKILL)
    killed_s = time.monotonic()
    eventually_blocking(lambda: [at_s for at_s in group.load.acks_s() if at_s > killed_s + 0.5])
    group.load.stop_steady()
    assert group.leader() != victim

    group.restart(victim)
    group.wait_whole()
    pids = [node.pid for node in group.nodes]
    group.stop()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
