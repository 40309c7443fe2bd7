"""Consume queues: positions by offset, in runs, and rebuilt from the log at any time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.broker import log_runs
from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.filters import tag_code
from dledger.broker.queue_positions import Payload, Position, Run
from dledger.broker.snapshot_codec import Reader
from dledger.errors import OffsetOutOfRange
from tests.broker.log import Log

_TAGS = st.lists(st.sampled_from([b"", b"a", b"b"]), min_size=1, max_size=8)


_BATCHES = st.lists(st.one_of(_TAGS, st.integers(1, 5)), max_size=12)
_Model = list[tuple[Position, int]]


def _filled(batches: list[list[bytes] | int]) -> tuple[ConsumeQueue, _Model]:
    """Return a queue with *batches* in it, and the same as a list with one row a message."""
    queue = ConsumeQueue()
    model: _Model = []
    for number, batch in enumerate(batches, start=1):
        tags = None if isinstance(batch, int) else batch
        count = batch if isinstance(batch, int) else len(batch)
        payload = Payload(number, 10 * number, 10 * number + 5)
        first = queue.append(payload, range(count), tags)
        assert first == len(model)
        model += [
            (Position(payload, row), tag_code(tags[row] if tags else b"")) for row in range(count)
        ]
    return queue, model


def _check(queue: ConsumeQueue, model: _Model) -> None:
    """The queue answers as the list does, from its first offset on."""
    kept = range(queue.first, queue.end)
    assert queue.end == len(model)
    assert [queue.locate(o) for o in kept] == [model[o][0] for o in kept]
    assert [queue.code(o) for o in kept] == [model[o][1] for o in kept]
    for start in range(queue.first, queue.end + 1):
        codes = [run.code for run in queue.runs(start) for _ in range(run.first, run.end)]
        assert codes == [code for _, code in model[start:]]


@given(_BATCHES, st.integers(1, 4) | st.just(1024))
def test_every_offset_is_found_where_its_message_lies(
    batches: list[list[bytes] | int], sealed: int
) -> None:
    """Runs answer as a list with one row a message would, sealed or open."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_runs, "_SEALED", sealed)
        queue, model = _filled(batches)

        _check(queue, model)


@given(_BATCHES, st.integers(1, 4), st.lists(st.integers(0, 14), max_size=3))
def test_what_is_dropped_is_gone_and_the_rest_is_where_it_was(
    batches: list[list[bytes] | int], sealed: int, below: list[int]
) -> None:
    """Whole pieces, parts of one, all of it, and more than once; then a snapshot's way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_runs, "_SEALED", sealed)
        queue, model = _filled(batches)
        for index in below:
            gone = [o for o in range(queue.first, queue.end) if model[o][0].payload.index < index]
            assert queue.drop_before(index) == len(gone)
            _check(queue, model)

        restored = ConsumeQueue.read(Reader(b"".join(queue.encoded())))

        assert restored.canonical() == queue.canonical()
        _check(restored, model)
        again = Payload(99, 1, 2)
        assert restored.append(again, range(2), None) == queue.append(again, range(2), None)
        assert restored.canonical() == queue.canonical()
        assert [*restored.encoded()] == [*queue.encoded()]


def test_a_cut_is_found_wherever_it_is_in_a_piece() -> None:
    """A piece is looked at in parts; whether its messages came one by one or in batches."""
    for batches in ([1] * 3000, [1 + number % 3 for number in range(3000)]):
        queue, model = _filled([*batches])
        for index in (2, 255, 256, 257, 258, 700, 1023, 1024, 1025, 1026, 1300, 3000):
            queue.drop_before(index)
            assert queue.first == next(
                o for o, row in enumerate(model) if row[0].payload.index >= index
            )


@given(_BATCHES, _BATCHES, st.integers(1, 4), st.integers(0, 14))
def test_a_copy_changes_and_the_queue_does_not(
    before: list[list[bytes] | int], after: list[list[bytes] | int], sealed: int, below: int
) -> None:
    """The open runs are of both: a snapshot of the one does not show what the other got."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_runs, "_SEALED", sealed)
        queue, _ = _filled(before)
        expected = [*queue.encoded()]

        copy = queue.copy(1)
        for number, batch in enumerate(after, start=20):
            tags = None if isinstance(batch, int) else batch
            count = batch if isinstance(batch, int) else len(batch)
            copy.append(Payload(number, 0, 9), range(count), tags)
        copy.drop_before(below)

        assert [*queue.encoded()] == expected


def test_retention_opens_and_packs_nothing_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The piece that is cut stays as it is; only the first place in it moves."""
    monkeypatch.setattr(log_runs, "_SEALED", 4)
    queue, _ = _filled([1] * 20)
    pieces = list(queue._sealed)
    for name in ("seal", "opened"):
        monkeypatch.delattr(log_runs, name)

    dropped = [queue.drop_before(index) for index in (7, 5, 7, 8, 9)]

    assert dropped == [6, 0, 0, 1, 1]
    assert queue._sealed == pieces[2:]


def test_a_stretch_is_whole_wherever_runs_are_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces are cut between payloads."""
    monkeypatch.setattr(log_runs, "_SEALED", 2)
    queue = ConsumeQueue()
    for number in range(9):
        queue.append(Payload(number, 0, 9), range(5), [b"a", b"b", b"a", b"b", b"a"])

    assert [queue.stretch(5 * number)[1] for number in range(9)] == [5] * 9
    assert len(queue._sealed) > 3


def test_old_runs_take_a_fifth_of_the_room() -> None:
    """A million messages that came one by one are 7 MB, not 36."""
    queue = ConsumeQueue()
    for number in range(20_000):
        queue.append(
            Payload(number // 7, 1100 * (number % 7), 1100 * (number % 7 + 1)), range(1), None
        )

    bytes_of = [len(column) for piece in queue._sealed for column in piece._columns]

    assert len(queue._open) < 2 * 1024
    assert sum(bytes_of) < 36 * 20_000 / 5


def test_a_batch_of_one_tag_is_one_run() -> None:
    """A thousand neighbours take one row."""
    queue = ConsumeQueue()
    queue.append(Payload(1, 0, 9), range(1000), None)

    assert list(queue.runs(10)) == [Run(first=10, end=1000, code=0)]


@pytest.mark.parametrize("offset", [-1, 3, 99])
def test_an_offset_without_a_message_is_out_of_range(offset: int) -> None:
    """Asking beyond either end names the range."""
    queue = ConsumeQueue()
    queue.append(Payload(1, 0, 9), range(3), None)

    with pytest.raises(OffsetOutOfRange, match=r"outside \[0, 2\]"):
        queue.locate(offset)


def test_a_deleted_queue_is_rebuilt_from_the_log_with_the_same_answers() -> None:
    """The log is the truth: repeated and refused messages leave no trace in a rebuilt queue."""
    log = Log()
    log.create(queues=2)
    log.produce("a", "b", ids=("1", "2"))
    log.produce("b", "c", ids=("2", "3"))
    log.produce("x", queue_id=1, tag="t")
    log.append(b"broken")
    before = [log.state.topics.queue("t", queue_id) for queue_id in (0, 1)]
    answers = [[queue.locate(offset) for offset in range(queue.end)] for queue in before]

    rebuilt = [log.replay().topics.queue("t", queue_id) for queue_id in (0, 1)]

    assert [[queue.locate(o) for o in range(queue.end)] for queue in rebuilt] == answers
    assert [queue.end for queue in rebuilt] == [3, 1]


def test_a_stretch_ends_where_the_payload_or_its_rows_do() -> None:
    """Tags cut runs, not stretches; another payload or a skipped row does."""
    queue = ConsumeQueue()
    first, second = Payload(1, 5, 90), Payload(2, 5, 90)
    queue.append(first, range(4), [b"a", b"b", b"b", b"c"])
    queue.append(first, range(5, 7), None)
    queue.append(second, range(2), None)

    stretches = [queue.stretch(offset) for offset in (0, 1, 3, 4, 6)]

    assert [(place.payload, place.row, count) for place, count in stretches] == [
        (first, 0, 4),
        (first, 1, 3),
        (first, 3, 1),
        (first, 5, 2),
        (second, 0, 2),
    ]
