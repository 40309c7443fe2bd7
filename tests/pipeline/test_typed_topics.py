"""Topics of every type in a backup: replay, places, bases and restores have what nodes have."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from dledger.broker.commands import (
    CancelHeld,
    CheckHeld,
    CreateGroup,
    CreateTopic,
    GrowTopic,
    SeekGroup,
    SetGroup,
)
from dledger.broker.dead_letter import encode_dead_letter
from dledger.broker.held_commands import What, encode_produce_held, encode_release_held
from dledger.broker.held_refs import Kind, Ref
from dledger.broker.key_queues import queue_of_key
from dledger.broker.message import Columns, Message
from dledger.broker.priorities import queue_of_priority
from dledger.broker.produce import ProduceFrame, encode_produce
from dledger.broker.redelivery import Retries
from dledger.broker.results import DeadLettered, HeldReleased, Produced, Received
from dledger.broker.state import BrokerState
from dledger.types import MovedFrom, Typed
from dledger_pipeline.archive.queue_offsets import message_ranges
from dledger_pipeline.archive.restore import restore
from dledger_pipeline.archive.verify import verify
from dledger_pipeline.object_store.store import Store
from tests.broker.log import Log
from tests.pipeline.entry_batches import Held
from tests.pipeline.logs import GROUP_ID, backup, batches
from tests.pipeline.message_logs import checked_entries, consumed, place, rows
from tests.pipeline.placing import Run, placed_backup
from tests.pipeline.test_restore import opened_entries

_TYPES: Final = {"o": "FIFO", "p": "PRIORITY", "d": "DELAY", "t": "TRANSACTION", "n": "NORMAL"}
_DUE_MS: Final = 5_000_000


def _batch(topic: str, name: str, *typed: Typed, queue_id: int = -1) -> bytes:
    messages = [
        Message(message_id=f"{name}-{row}", body=f"{topic} {name} {row}".encode(), typed=each)
        for row, each in enumerate(typed)
    ]
    return encode_produce(Columns.of(messages), client_id="c", topic=topic, queue_id=queue_id)


def _send_each_type(log: Log, number: int) -> list[Ref]:
    """Send to each topic; return what is held."""
    group, priority = f"group {number % 3}", number * 5 % 6
    queues = log.state.topics.named("p").queues
    home = queue_of_key(group.encode(), 2)
    log.append(_batch("o", f"o{number}", *[Typed(message_group=group)] * 2, queue_id=home))
    queue_id = queue_of_priority(priority, queues)
    log.append(_batch("p", f"p{number}", Typed(priority=priority), queue_id=queue_id))
    log.append(_batch("n", f"n{number}", Typed(), Typed()))
    timed = _batch("d", f"d{number}", *[Typed(deliver_at_ms=_DUE_MS)] * 3)
    held = log.append(
        encode_produce_held(Kind.TIMER, [_DUE_MS] * 3, timed),
        encode_produce_held(Kind.HALF, [_DUE_MS] * 2, _batch("t", f"t{number}", Typed(), Typed())),
    )
    refs = []
    for each in held:
        assert isinstance(each, Produced)
        refs += [Ref.unpack(offset) for offset in each.offsets]
    return refs


def _release(log: Log, ref: Ref, what: What = What.DELIVER) -> None:
    """Deliver what is held, or let it lie elsewhere, as leaders do."""
    found = log.state.held.find(ref)
    assert found is not None
    data = log.entries[found.payload.index - 1].data
    frame = ProduceFrame(data, found.payload.start, found.payload.end)
    command = encode_release_held(
        what,
        [ref],
        Columns.of([frame.message(found.row)]),
        topic=frame.topic,
        generation=found.generation,
    )
    (result,) = log.append(command)
    assert what is What.MOVE or isinstance(result, HeldReleased)


def _let_die(log: Log, topic: str) -> None:
    """Receive what nobody can take until it is a dead letter."""
    for _ in range(2):
        received = log.receive(1, topic=topic, any_queue=True)
        log.now_ms += 2_000
    received = log.receive(1, topic=topic, any_queue=True)
    assert isinstance(received, Received)
    (spent,) = received.spent
    queue = log.state.topics.queue(topic, spent.lease.queue_id)
    row = queue.locate(spent.lease.offset)
    moved = MovedFrom(
        topic=topic,
        generation=log.state.topics.named(topic).generation,
        queue_id=spent.lease.queue_id,
        offset=spent.lease.offset,
        stored_at_ms=log.entries[row.payload.index - 1].timestamp_ms,
        born_host="",
        attempts=spent.attempts,
    )
    dead = Message(message_id=f"dead {topic}", body=b"poison", typed=Typed(moved_from=moved))
    command = encode_dead_letter("g", spent.lease.receive_id, dead, born_host="")
    (result,) = log.append(command)
    assert isinstance(result, DeadLettered)


@pytest.fixture(scope="module")
def log() -> Log:
    """Return a log of topics of every type, in which all happens that types are for."""
    log = Log()
    for name, kind in _TYPES.items():
        log.append(CreateTopic(name=name, type=kind, queues=2).encode())
    log.append(CreateGroup(name="g").encode())
    log.append(SetGroup(name="g", retries=Retries(2, (1,))).encode())
    held: list[Ref] = []
    for number in range(8):
        log.now_ms += 1_000
        held += _send_each_type(log, number)
        if number == 3:
            log.append(GrowTopic(name="p", queues=4).encode())
        if number == 4:
            _let_die(log, "p")
            _let_die(log, "o")
        if number % 2:
            _release(log, held.pop(0), What.MOVE)
            _release(log, held.pop(number % len(held)))
            log.append(CancelHeld(refs=(held.pop(),)).encode())
    halves = [ref for ref in held if log.state.held.kind(ref) is Kind.HALF]
    log.append(CheckHeld(refs=tuple(halves[:2]), next_ms=_DUE_MS).encode())
    _release(log, halves[0])
    generation = log.state.topics.named("o").generation
    log.append(SeekGroup(group="g", topic="o", generation=generation, offsets=((0, 0),)).encode())
    return log


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return an empty store."""
    return Store.open(f"file://{tmp_path}/store")


def test_replay_and_places_have_what_consumers_get(log: Log, store: Store, tmp_path: Path) -> None:
    """Each message of each type once, with its columns, where the state has it."""
    entries, queues = checked_entries(log), consumed(log)
    replayed = backup(store, entries, (20, 20, len(entries) - 40))
    other = Store.open(f"file://{tmp_path}/placed")
    placed = placed_backup(
        other, entries, [Run(last_index=len(entries), applied=len(entries))], size=7
    )

    assert rows(store, replayed) == queues
    assert rows(other, placed) == queues
    assert {row["topic"] for row in queues} == {*_TYPES, "%DLQ%g"}
    assert {row["queue_id"] for row in queues if row["topic"] == "p"} == {0, 1, 2, 3}
    assert {row["message_group"] for row in queues if row["topic"] == "o"} >= {"group 1"}


@pytest.mark.parametrize("last", [9, 30, 45])
def test_what_lies_behind_a_base_is_what_consumers_get(log: Log, last: int) -> None:
    """Also of what was held, leased or grown before it."""
    entries = checked_entries(log)
    base = BrokerState()
    for entry in entries[:last]:
        base.apply(entry)
    part = Held(batches(entries[last:])[0])

    (found,) = message_ranges([part], BrokerState.decode(base.encode()))
    behind = [row for batch in found.read() for row in batch.to_pylist()]

    there = [row for row in consumed(log) if row["index"] > last]
    assert sorted(
        ({**row, "properties": dict(row["properties"])} for row in behind), key=place
    ) == (there)


def test_a_checked_backup_is_restored_to_the_same_state(
    log: Log, store: Store, tmp_path: Path
) -> None:
    """With what is held, open halves, leases and seeks: a node that applies it has the digest."""
    entries = checked_entries(log)
    published = backup(store, entries, (30, len(entries) - 30))
    checked = verify(store, GROUP_ID, scratch=tmp_path / "scratch")

    restore(store, None, tmp_path / "restored", name="orders/orders-0")

    restored = BrokerState()
    for entry in opened_entries(tmp_path / "restored"):
        restored.apply(entry)
    assert (checked.records, checked.compared_bytes) == (len(entries), published.record_bytes)
    assert restored.digest() == log.state.digest()
    assert restored.held.count == log.state.held.count > 0
