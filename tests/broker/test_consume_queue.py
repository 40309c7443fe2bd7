"""Consume queues: positions by offset, in runs, and rebuilt from the log at any time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.broker.consume_queue import ConsumeQueue, Payload, Position, Run
from dledger.broker.filters import tag_code
from dledger.errors import OffsetOutOfRange
from tests.broker.log import Log

_TAGS = st.lists(st.sampled_from([b"", b"a", b"b"]), min_size=1, max_size=8)


@given(st.lists(st.one_of(_TAGS, st.integers(1, 5)), max_size=12))
def test_every_offset_is_found_where_its_message_lies(batches: list[list[bytes] | int]) -> None:
    """Runs answer as a list with one row a message would."""
    queue = ConsumeQueue()
    model: list[tuple[Position, int]] = []

    for number, batch in enumerate(batches, start=1):
        tags = None if isinstance(batch, int) else batch
        count = batch if isinstance(batch, int) else len(batch)
        payload = Payload(number, 10 * number, 10 * number + 5)
        first = queue.append(payload, range(count), tags)
        assert first == len(model)
        model += [
            (Position(payload, row), tag_code(tags[row] if tags else b"")) for row in range(count)
        ]

    assert queue.end == len(model)
    assert [queue.locate(o) for o in range(queue.end)] == [position for position, _ in model]
    assert [queue.code(o) for o in range(queue.end)] == [code for _, code in model]
    for start in range(queue.end + 1):
        codes = [run.code for run in queue.runs(start) for _ in range(run.first, run.end)]
        assert codes == [code for _, code in model[start:]]


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
