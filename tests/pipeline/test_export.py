"""Export: committed records as they are on a node's disk, cut alike by every node."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from dledger.errors import CorruptRecord
from dledger.services import export
from dledger.store.format import encode_records
from dledger.types import Entry
from dledger_pipeline.errors import (
    ExportError,
    ForeignGroup,
    NodeUnavailable,
    RangeNotAvailable,
)
from dledger_pipeline.log import export_client
from dledger_pipeline.log.export_client import ExportClient, choose_nodes
from dledger_pipeline.log.records import RecordBytes, parse
from tests.pipeline.export_server import export_server
from tests.pipeline.logs import GROUP_ID, data_directory, entries, entry
from tests.waiting import eventually_blocking

ENTRIES = entries(200)
CHUNK_BYTES = 5000


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_CHUNK_BYTES", CHUNK_BYTES)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return the data directory of a log in several segments."""
    return data_directory(tmp_path / "data", ENTRIES)


@pytest.fixture
def exporter(directory: Path) -> Iterator[ExportClient]:
    """Return a client of a node that has committed all of it."""
    with export_server(directory) as address, ExportClient(address) as exporter:
        yield exporter


def expected_bytes(log_entries: list[Entry]) -> bytes:
    """Return what the shipped store writes for a log from entry 1 on."""
    return b"".join(encode_records(log_entries, chain=0, position=0).buffers)


def sizes(log_entries: list[Entry]) -> list[int]:
    """Return what each entry's record takes."""
    return [
        len(b"".join(encode_records([one], chain=0, position=0).buffers)) for one in log_entries
    ]


def test_records_arrive_as_they_are_on_disk(exporter: ExportClient) -> None:
    """Byte for byte, in bounded chunks, each of which parses behind the one before."""
    chunks = list(exporter.read(GROUP_ID, 1, 200))

    assert b"".join(bytes(chunk.data) for chunk in chunks) == expected_bytes(ENTRIES)
    assert max(len(chunk.data) for chunk in chunks) <= CHUNK_BYTES
    assert len(chunks) > 10
    indexes = [row["index"] for chunk in chunks for row in parse(chunk).to_pylist()]
    assert indexes == list(range(1, 201))


@pytest.mark.parametrize(("first", "last"), [(1, 1), (200, 200), (37, 141), (5, 6)])
def test_any_range_can_be_read(exporter: ExportClient, first: int, last: int) -> None:
    """Inclusive at both ends."""
    rows = [
        row for chunk in exporter.read(GROUP_ID, first, last) for row in parse(chunk).to_pylist()
    ]

    assert [row["index"] for row in rows] == list(range(first, last + 1))
    assert [row["body"] for row in rows] == [one.data for one in ENTRIES[first - 1 : last]]


@pytest.mark.parametrize("seed", range(8))
def test_every_node_cuts_a_log_alike(tmp_path: Path, seed: int) -> None:
    """Wherever its segments begin: each range as large as it can be, like an obvious loop does."""
    rng = random.Random(seed)
    target, first = rng.randint(1, 30_000), rng.randint(1, 150)
    plans = []
    for number, segment_bytes in enumerate((6000, 16 << 10, 1 << 20)):
        data = data_directory(tmp_path / str(number), ENTRIES, segment_bytes=segment_bytes)
        with export_server(data) as address, ExportClient(address) as exporter:
            plans.append(exporter.plan(first_index=first, target_bytes=target))

    assert plans[0] == plans[1] == plans[2]
    found = [(each.first_index, each.last_index, each.size_bytes) for each in plans[0].ranges]
    assert found == _cut(first, target)
    assert (plans[0].group, plans[0].group_id, plans[0].term) == ("orders", GROUP_ID, 11)
    assert (plans[0].first_available, plans[0].commit_index) == (1, 200)


def _cut(first: int, target: int) -> list[tuple[int, int, int]]:
    ranges: list[tuple[int, int, int]] = []
    for index, size in enumerate(sizes(ENTRIES[first - 1 :]), first):
        if ranges and ranges[-1][2] + size <= target:
            ranges[-1] = (ranges[-1][0], index, ranges[-1][2] + size)
        else:
            ranges.append((index, index, size))
    return ranges


def test_a_range_continues_the_chain_of_the_one_before(exporter: ExportClient) -> None:
    """What a plan says of it is what its records say."""
    chain = 0
    for each in exporter.plan(target_bytes=10_000).ranges:
        parsed = [parse(c) for c in exporter.read(GROUP_ID, each.first_index, each.last_index)]

        assert each.previous_chain == chain
        chain = parsed[-1]["chain_crc32c"][-1].as_py()


def test_a_record_larger_than_a_range_has_one_of_its_own(tmp_path: Path) -> None:
    """And a chunk of its own."""
    log = [entry(1, data=b"a"), entry(2, data=bytes(20_000)), entry(3, data=b"b")]
    with (
        export_server(data_directory(tmp_path, log)) as address,
        ExportClient(address) as exporter,
    ):
        plan = exporter.plan(target_bytes=1000)
        chunks = list(exporter.read(GROUP_ID, 1, 3))

    assert [(r.first_index, r.last_index) for r in plan.ranges] == [(1, 1), (2, 2), (3, 3)]
    assert b"".join(bytes(chunk.data) for chunk in chunks) == expected_bytes(log)


def test_only_committed_entries_are_exported(directory: Path) -> None:
    """The commit index is the end; an empty plan starts right behind it."""
    with export_server(directory, committed=100) as address, ExportClient(address) as exporter:
        plan = exporter.plan()
        empty = exporter.plan(first_index=101)

        assert plan.commit_index == 100
        assert plan.ranges[-1].last_index == 100
        assert (empty.ranges, empty.term) == ((), 0)
        for ask in (
            lambda: exporter.plan(last_index=101),
            lambda: exporter.plan(first_index=102),
            lambda: list(exporter.read(GROUP_ID, 1, 101)),
            lambda: list(exporter.read(GROUP_ID, 102, 102)),
        ):
            with pytest.raises(RangeNotAvailable, match=r"offset 10[12] is outside \[1, 100\]"):
                ask()


def test_entries_below_the_retained_log_are_not_available(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says where the log begins."""
    with export_server(directory) as address, ExportClient(address) as exporter:
        monkeypatch.setattr("dledger.store.commit_log.CommitLog.first_index", 50)

        with pytest.raises(RangeNotAvailable, match=r"offset 49 is outside \[50, 200\]"):
            exporter.plan(first_index=49)
        with pytest.raises(RangeNotAvailable, match=r"offset 1 is outside \[50, 200\]"):
            list(exporter.read(GROUP_ID, 1, 60))


def test_another_group_is_refused(exporter: ExportClient) -> None:
    """With both ids."""
    for ask in (
        lambda: exporter.plan(group_id="other"),
        lambda: list(exporter.read("other", 1, 2)),
    ):
        with pytest.raises(ForeignGroup, match=f"belongs to group '{GROUP_ID}', not to 'other'"):
            ask()


@pytest.mark.parametrize(
    ("first", "last", "target"), [(-1, 5, 0), (7, 5, 0), (1, -1, 0), (1, 5, -1)]
)
def test_what_is_no_range_is_refused(
    exporter: ExportClient, first: int, last: int, target: int
) -> None:
    """With a sentence that names it."""
    with pytest.raises(ExportError, match=r"is not a range|must not be negative"):
        exporter.plan(first_index=first, last_index=last, target_bytes=target)


def test_a_node_without_a_group_is_unavailable() -> None:
    """It may join one; another node may have."""
    with (
        export_server(None) as address,
        ExportClient(address) as exporter,
        pytest.raises(NodeUnavailable, match="Unjoined"),
    ):
        exporter.plan()


def test_a_node_that_is_gone_is_unavailable() -> None:
    """By name."""
    with (
        ExportClient("127.0.0.1:1") as exporter,
        pytest.raises(NodeUnavailable, match=r"127\.0\.0\.1:1"),
    ):
        exporter.plan()
    with pytest.raises(NodeUnavailable, match=r"no node can be read from: 127\.0\.0\.1:1"):
        choose_nodes(["127.0.0.1:1"])


def test_rot_on_the_nodes_disk_is_named_by_segment_and_offset(
    directory: Path, exporter: ExportClient
) -> None:
    """The receiver has the CRCs; the node is named, too."""
    path = sorted((directory / "log").glob("*.seg"))[1]
    with path.open("r+b") as file:
        file.seek(6000)
        flipped = file.read(1)[0] ^ 1
        file.seek(6000)
        file.write(bytes([flipped]))

    with pytest.raises(CorruptRecord, match=f"{path.name} of {exporter.address}") as raised:
        _parse_all(exporter)

    assert 4096 <= raised.value.offset <= 6000


def test_a_segment_cut_short_on_the_nodes_disk_is_named(
    directory: Path, exporter: ExportClient
) -> None:
    """The node says which, and from which byte on."""
    path = sorted((directory / "log").glob("*.seg"))[1]
    with path.open("r+b") as file:
        file.truncate(6000)

    with pytest.raises(CorruptRecord, match=f"{path.name} of {exporter.address}") as raised:
        _parse_all(exporter)

    assert raised.value.offset == 6000
    assert str(raised.value).count("corrupt record") == 1


class _OldNodesAnswer:
    """A gRPC error of a node that says which record is corrupt in its sentence only."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.INTERNAL

    def details(self) -> str:
        return "corrupt record in segment 1.seg at byte offset 4096: cannot be read: EIO"

    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("dledger-error", "CorruptRecord"), ("dledger-error-argument", ""))


def test_the_sentence_of_an_older_node_is_passed_on() -> None:
    """It is not taken apart: no other try would help, and the sentence names the record."""
    meant = export_client._meaning(_OldNodesAnswer(), "10.0.0.1:20911")

    assert type(meant) is ExportError
    assert str(meant).startswith("10.0.0.1:20911: corrupt record in segment 1.seg at byte offset")


def _parse_all(exporter: ExportClient) -> None:
    for chunk in exporter.read(GROUP_ID, 1, 200):
        parse(chunk)


def test_too_many_exports_at_once_are_told_to_come_back(
    exporter: ExportClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node's memory is bounded; an ended one makes room."""
    monkeypatch.setattr(export, "_MAX_STREAMS", 1)
    monkeypatch.setattr(export, "_CHUNK_BYTES", 1)
    under_way = exporter.read(GROUP_ID, 1, 200)
    next(under_way)

    with pytest.raises(NodeUnavailable, match="1 exports are under way"):
        list(exporter.read(GROUP_ID, 1, 1))
    assert len(list(under_way)) == 199
    assert len(list(exporter.read(GROUP_ID, 1, 1))) == 1


def test_a_reader_that_stops_early_makes_room(
    exporter: ExportClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node is told, and serves the next one."""
    monkeypatch.setattr(export, "_MAX_STREAMS", 1)
    monkeypatch.setattr(export, "_CHUNK_BYTES", 1)
    for _ in range(5):
        abandoned = exporter.read(GROUP_ID, 1, 200)
        next(abandoned)

        abandoned.close()  # type: ignore[attr-defined]

        assert eventually_blocking(lambda: _first_chunk(exporter), "there is room", 10)


def _first_chunk(exporter: ExportClient) -> RecordBytes | None:
    try:
        (chunk,) = exporter.read(GROUP_ID, 1, 1)
    except NodeUnavailable:
        return None
    return chunk


@pytest.mark.parametrize("garbage", [b"\x2a\x05abc", b"\x32\x01\xff", b"\x0b"])
def test_a_chunk_that_is_no_message_is_an_error_of_the_nodes(
    exporter: ExportClient, monkeypatch: pytest.MonkeyPatch, garbage: bytes
) -> None:
    """Cut short, with a name that is not UTF-8, or of a kind that we do not have."""
    monkeypatch.setattr(export, "_chunk", lambda _log, first, _last: (first, garbage))

    with pytest.raises(ExportError, match=r"127\.0\.0\.1:\d+ sent a chunk that cannot be read"):
        list(exporter.read(GROUP_ID, 1, 1))


def test_a_follower_that_has_most_is_read_from(tmp_path: Path) -> None:
    """The leader has other work; nodes that are down or in no group do not count."""
    data = [data_directory(tmp_path / str(number), ENTRIES) for number in range(3)]
    with (
        export_server(data[0], role="leader") as leader,
        export_server(data[1], committed=100) as behind,
        export_server(data[2], committed=150) as ahead,
        export_server(None) as unjoined,
    ):
        gone = "127.0.0.1:1"

        assert choose_nodes([leader, behind, ahead]).addresses[0] == ahead
        assert choose_nodes([gone, behind, unjoined, leader]).addresses[0] == behind
        assert choose_nodes([gone, leader]).addresses[0] == leader
        with pytest.raises(NodeUnavailable, match=r"has not joined a group"):
            choose_nodes([unjoined])


def test_nodes_of_different_groups_are_refused(tmp_path: Path) -> None:
    """A mistake in the addresses must not end up in a backup."""
    ours = data_directory(tmp_path / "ours", ENTRIES)
    theirs = data_directory(tmp_path / "theirs", ENTRIES, group_id="other")
    with (
        export_server(ours) as one,
        export_server(theirs) as other,
        pytest.raises(ForeignGroup, match="different groups"),
    ):
        choose_nodes([one, other])
