"""FIFO topics in the whole state: what gets in, snapshots, seeks, retention, and other replicas."""

from __future__ import annotations

from random import Random
from typing import Any, Final

import pytest

from dledger.broker import commands, group_codes
from dledger.broker.commands import CreateTopic, GrowTopic, LeaseRef, SeekGroup, UseFilter
from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.fifo_deliveries import FifoDeliveries
from dledger.broker.key_queues import codes_of_groups, queue_of_key
from dledger.broker.message import Columns, Message
from dledger.broker.produce import encode_produce
from dledger.broker.rekeep import Kept, Origin
from dledger.broker.results import GroupSought, Produced, Received
from dledger.broker.snapshot_codec import MalformedStateError, Reader
from dledger.broker.state import BrokerState
from dledger.errors import FilterInUse, IllegalGroup, InvalidArgument
from dledger.types import Typed
from tests.broker.log import Log, offsets

_QUEUES = 2


def _log(queues: int = 1) -> Log:
    log = Log()
    log.create()
    log.append(CreateTopic(name="f", type="FIFO", queues=queues).encode())
    return log


def _batch(*groups: str, queue_id: int = 0, first: int = 0, tag: str = "") -> bytes:
    rows = [
        Message(
            message_id=f"id-{first + row}" if first else "",
            body=b"b",
            tag=tag,
            typed=Typed(message_group=group) if group else None,
        )
        for row, group in enumerate(groups)
    ]
    return encode_produce(Columns.of(rows), client_id="c", topic="f", queue_id=queue_id)


def _receive(log: Log, limit: int = 32, **of: Any) -> Received:
    return log.receive(limit, topic="f", **of)


def test_what_is_not_of_its_queue_gets_in_nowhere() -> None:
    """Whoever proposes it: the order of a group would be lost for good."""
    log = _log(_QUEUES)
    name = next(n for n in map(str, range(9)) if queue_of_key(n.encode(), _QUEUES) == 1)

    (wrong,) = log.append(_batch(name, queue_id=0))
    (unnamed,) = log.append(_batch(name, queue_id=-1))
    (none,) = log.append(_batch(name, "", queue_id=1))
    (right,) = log.append(_batch(name, queue_id=1))

    assert isinstance(wrong, InvalidArgument)
    assert isinstance(unnamed, InvalidArgument)
    assert isinstance(none, IllegalGroup)
    assert isinstance(right, Produced)
    assert log.state.topics.messages("f") == 1


def test_a_fifo_topic_does_not_grow() -> None:
    """Its groups would go to other queues while their older messages wait in these."""
    log = _log()

    (refused,) = log.append(GrowTopic(name="f", queues=2).encode())

    assert isinstance(refused, InvalidArgument)
    assert "is FIFO" in str(refused)
    assert log.state.topics.named("f").queues == 1


def test_a_repeat_is_stored_once_and_has_its_group() -> None:
    """Row by row, as batches with a known id are."""
    log = _log()
    log.append(_batch("x", "y", first=1))
    log.append(_batch("x", "y", "z", first=1))

    queue = log.state.topics.queue("f", 0)
    assert queue.groups is not None
    assert queue.groups.some(0, queue.end) == codes_of_groups([b"x", b"y", b"z"])


def test_a_receive_takes_from_one_queue() -> None:
    """So it is of few groups, however many queues there are."""
    log = _log(_QUEUES)
    for number in range(40):
        name = str(number)
        log.append(_batch(name, queue_id=queue_of_key(name.encode(), _QUEUES)))

    got = _receive(log, any_queue=True)

    assert len({each.queue_id for each in got.deliveries}) == 1
    assert len(got.deliveries) == 8


def test_a_seek_forgets_what_waits() -> None:
    """And everybody's leases; the group begins at that offset."""
    log = _log()
    log.append(_batch("x"))
    _receive(log)
    log.append(_batch("x", "x"))
    _receive(log)
    topic = log.state.topics.named("f")

    (sought,) = log.append(
        SeekGroup(group="g", topic="f", generation=topic.generation, offsets=((0, 1),)).encode()
    )

    assert isinstance(sought, GroupSought)
    assert isinstance(log.state.groups.peek("g", "f", 0), FifoDeliveries)
    assert offsets(_receive(log)) == [1, 2]


def test_retention_drops_what_waits_and_wakes_who_waits_for_it() -> None:
    """A group whose lease is gone goes on."""
    log = _log()
    log.append(_batch("x"))
    _receive(log)
    log.append(_batch("x"))
    (last,) = log.append(_batch("x"))
    assert isinstance(last, Produced)
    _receive(log)
    assert log.state.groups.available("g", "f", [0], log.now_ms, enough=1) == 0
    log.state.take_changes()

    log.retain(last.index)

    assert ("g", "f", 0) in log.state.take_changes().leases
    assert log.state.groups.available("g", "f", [0], log.now_ms, enough=1) == 1
    assert offsets(_receive(log)) == [2]


def test_what_a_fifo_topic_keeps_longer_is_delivered_in_order() -> None:
    """From blocks, whose gaps are passed over."""
    log = _log()
    log.append(commands.SetRetention(name="f", hours=0).encode())
    for number in range(6):
        log.append(_batch("xy"[number % 2]))
    generation = log.state.topics.named("f").generation
    rows = [1, 2, 3]
    messages = Columns.of([Message(message_id=str(o), body=b"b") for o in rows])
    log.append(
        Kept(
            topic="f",
            generation=generation,
            queue_id=0,
            first=0,
            to=4,
            offsets=rows,
            origins=[Origin(7, 500, "host") for _ in rows],
            messages=messages,
        ).encode()
    )
    queue = log.state.topics.queue("f", 0)
    assert queue.has_gaps or queue.first == 1

    first = _receive(log, 1)
    assert offsets(first) == [1]
    assert offsets(_receive(log)) == [2, 4]
    log.ack(first)
    assert offsets(_receive(log)) == [3, 5]
    assert BrokerState.decode(log.state.encode()).digest() == log.state.digest()


def test_a_group_has_one_filter_of_a_fifo_topic() -> None:
    """Another is refused until nobody has asked with the first for ten minutes."""
    log = _log()
    log.append(_batch("x", tag="a"))
    log.append(_batch("x", tag="b"))
    assert offsets(_receive(log, tags=("b",))) == [1]

    asks = UseFilter(group="g", topic="f", tags=("a",)).encode()
    (refused,) = log.append(asks)
    assert isinstance(refused, FilterInUse)
    for _ in range(20):
        log.now_ms += 100_000
        log.append(UseFilter(group="g", topic="f", tags=("b",)).encode())
    assert isinstance(log.append(asks)[0], FilterInUse), "it is asked with all the time"
    for _ in range(7):
        log.now_ms += 100_000
        log.append(CreateTopic(name="t", type="NORMAL", queues=1).encode())

    assert not isinstance(log.append(asks)[0], Exception)
    assert not log.state.groups.is_filter_said("g", "f", ("a",), log.now_ms + 200_000)


def test_an_expression_is_refused_whoever_proposes_it() -> None:
    """No leader knows what waits for whom."""
    log = _log()

    (refused,) = log.append(UseFilter(group="g", topic="f", sql="a = 1").encode())

    assert isinstance(refused, InvalidArgument)


def test_codes_are_kept_in_pieces_that_go_with_their_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A copy of a snapshot sees what it saw, whatever is added and dropped."""
    monkeypatch.setattr(group_codes, "_BITS", 3)
    monkeypatch.setattr(group_codes, "_PIECE", 8)
    log, names = _log(), [str(number) for number in range(100)]
    frozen = []
    for number in range(0, 100, 5):
        (stored,) = log.append(_batch(*names[number : number + 5]))
        assert isinstance(stored, Produced)
        frozen.append((log.state.freeze(), log.state.encode(), log.state.digest()))
        if number > 20:
            log.retain(stored.index - 2)
        queue = log.state.topics.queue("f", 0)
        assert queue.groups is not None
        assert queue.groups.some(queue.first, queue.end) == codes_of_groups(
            [name.encode() for name in names[queue.first : queue.end]]
        )
        assert len(queue.groups._pieces) <= 6
    for one, data, digest in frozen:
        assert one.encode() == data
        assert BrokerState.decode(data).digest() == digest


def test_a_snapshot_of_a_queue_whose_groups_do_not_fit_its_type_is_refused() -> None:
    """A FIFO topic's has them, no other has."""
    for has_groups in (False, True):
        data = b"".join(ConsumeQueue(has_groups=has_groups).encoded())
        ConsumeQueue.read(Reader(data), has_groups=has_groups)
        with pytest.raises(MalformedStateError, match="message groups"):
            ConsumeQueue.read(Reader(data), has_groups=not has_groups)


class _History:
    """Random commands of a FIFO topic, and a second replica that nobody looks at."""

    def __init__(self, seed: int) -> None:
        self.rng, self.log, self.twin = Random(seed), _log(_QUEUES), BrokerState()
        self.held: list[Received] = []
        self.done = 0

    def produce(self) -> None:
        name = f"n{self.rng.randrange(6)}"
        self.log.append(_batch(name, queue_id=queue_of_key(name.encode(), _QUEUES)))

    def receive(self) -> None:
        rng, log = self.rng, self.log
        queue_id = rng.randrange(_QUEUES)
        log.state.groups.available("g", "f", [queue_id], log.now_ms, enough=rng.randrange(1, 9))
        client_id, attempt_id = rng.choice(["", "c"]), rng.choice(["", f"a{rng.randrange(7)}"])
        got = _receive(
            log,
            rng.randrange(1, 6),
            queue_id=queue_id,
            client_id=client_id,
            attempt_id=attempt_id,
        )
        if got.deliveries:
            self.held.append(got)

    def ack(self) -> None:
        if self.held:
            self.log.ack(self.held.pop(self.rng.randrange(len(self.held))))

    def change(self) -> None:
        if self.held:
            got, each = self.held[-1], self.held[-1].deliveries[-1]
            lease = LeaseRef(each.queue_id, each.offset, got.receive_id)
            ms = self.rng.choice([0, 500])
            change = commands.ChangeInvisible(group="g", topic="f", lease=lease, invisible_ms=ms)
            self.log.append(change.encode())

    def release(self) -> None:
        self.log.append(commands.Release(group="g", client_id="c").encode())

    def retain(self) -> None:
        self.log.retain(max(1, len(self.log.entries) - 30))

    def check(self, *, restores: bool) -> None:
        for entry in self.log.entries[self.done :]:
            self.twin.apply(entry)
        self.done = len(self.log.entries)
        if restores:
            restored = BrokerState.decode(self.log.state.encode())
            assert restored.digest() == self.log.state.digest() == self.twin.digest()
            self.twin = restored


_WEIGHTS: Final = {"produce": 40, "receive": 30, "ack": 10, "change": 10, "release": 3, "retain": 2}


@pytest.mark.parametrize("seed", range(12))
def test_replicas_agree_whatever_leaders_look_at(seed: int) -> None:
    """A snapshot restored anywhere goes on alike, and so does who only applies the log."""
    history = _History(seed)
    for step in range(300):
        history.log.now_ms += history.rng.choice([0, 1, 50, 700])
        (name,) = history.rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
        getattr(history, name)()
        history.check(restores=not step % 30)
    assert history.log.replay().digest() == history.log.state.digest() == history.twin.digest()
