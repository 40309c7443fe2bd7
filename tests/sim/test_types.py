"""Topics of every type in a simulated group: the world `types`, and the model beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from crc32c import crc32c

from dledger.broker.commands import (
    Ack,
    ChangeInvisible,
    CreateGroup,
    CreateTopic,
    LeaseRef,
    Receive,
    SeekGroup,
    SetGroup,
)
from dledger.broker.key_queues import queue_of_key
from dledger.broker.message import Columns
from dledger.broker.produce import encode_produce
from dledger.broker.redelivery import Retries
from dledger.broker.results import Acked, GroupSought, Received, Spent
from dledger.broker.state import BrokerState
from dledger.types import Entry, EntryKind, Typed
from dledger_sim.checkers import ViolationError
from dledger_sim.consumed import Consumed
from dledger_sim.options import Options
from dledger_sim.process import START_MS
from dledger_sim.run import Run

_LEASE_MS = 1_000
_TYPES = {"plain": "NORMAL", "ordered": "FIFO", "urgent": "PRIORITY"}
_HOME = queue_of_key(b"a", 2)


class _Log:
    """A log that is applied and checked as it grows."""

    def __init__(self) -> None:
        self.state, self.model, self.now_ms = BrokerState(), Consumed(), START_MS
        self.model.watched.update(_TYPES)
        for name, kind in _TYPES.items():
            self.apply(CreateTopic(name=name, type=kind, queues=2).encode())
        self.apply(CreateGroup(name="g").encode())
        self.apply(SetGroup(name="g", retries=Retries(2, (1,))).encode())

    def apply(self, command: bytes, lie: Callable[[Any], Any] = lambda result: result) -> Any:
        """Apply an entry; *lie* makes of its result what a node says that is wrong."""
        entry = Entry(
            term=1,
            index=self.state.applied_index + 1,
            kind=EntryKind.DATA,
            timestamp_ms=self.now_ms,
            crc32c=crc32c(command),
            data=command,
        )
        (result,) = self.state.apply(entry)
        self.model.apply(entry, [lie(result)], self.state.time.lived_ms)
        return result

    def send(self, topic: str, queue_id: int, *, count: int = 3, group: str = "") -> None:
        typed = Typed(message_group=group, priority=queue_id if topic == "urgent" else -1)
        ids = [f"{self.now_ms}.{topic}.{queue_id}.{row}" for row in range(count)]
        batch = Columns(
            message_ids=ids, bodies=[b"."] * count, born_at_ms=[0] * count, typed=[typed] * count
        )
        self.apply(encode_produce(batch, client_id="c", topic=topic, queue_id=queue_id))

    def receive(self, topic: str, limit: int = 2, **more: Any) -> Received:
        lie = more.pop("lie", lambda result: result)
        command = Receive(
            group="g",
            topic=topic,
            queue_id=0,
            any_queue=True,
            limit=limit,
            invisible_ms=_LEASE_MS,
            **more,
        )
        received = self.apply(command.encode(), lie)
        assert isinstance(received, Received)
        return received

    def lease(self, received: Received, at: int = 0) -> LeaseRef:
        each = received.deliveries[at]
        return LeaseRef(each.queue_id, each.offset, received.receive_id)


def _told(**changes: Any) -> Callable[[Any], Any]:
    return lambda result: replace(result, **changes)


def _turned(result: Received) -> Received:
    return replace(result, deliveries=result.deliveries[::-1])


def _short(result: Received) -> Received:
    return replace(result, deliveries=result.deliveries[:-1])


def _once_more(result: Received) -> Received:
    tried = [replace(each, attempt=each.attempt + 1) for each in result.deliveries]
    return replace(result, deliveries=tuple(tried))


def _leased_to_two(log: _Log) -> None:
    log.send("plain", 0)
    first = log.receive("plain")
    log.receive("plain", 1, lie=_told(deliveries=first.deliveries[:1]))


def _left(log: _Log) -> None:
    log.send("plain", 0)
    log.receive("plain", lie=_short)


def _newest_first(log: _Log) -> None:
    log.send("plain", 0)
    log.receive("plain", lie=_turned)


def _counted_twice(log: _Log) -> None:
    log.send("plain", 0)
    log.receive("plain", lie=_once_more)


def _lowest_first(log: _Log) -> None:
    log.send("urgent", 0, count=1)
    log.send("urgent", 1, count=1)
    log.receive("urgent", lie=_turned)


def _highest_left(log: _Log) -> None:
    log.send("urgent", 0, count=1)
    log.send("urgent", 1, count=1)
    log.receive("urgent", 1, lie=lambda got: replace(got, deliveries=(_of_queue(got, 0),)))


def _of_queue(got: Received, queue_id: int) -> Any:
    return replace(got.deliveries[0], queue_id=queue_id, offset=0)


def _overtaken(log: _Log) -> None:
    log.send("ordered", _HOME, group="a")
    log.receive("ordered", 2, lie=_turned)


def _group_with_two(log: _Log) -> None:
    log.send("ordered", _HOME, group="a")
    first = log.receive("ordered", 1)
    log.receive("ordered", 1, lie=_told(deliveries=(replace(first.deliveries[0], offset=1),)))


def _done_without_a_lease(log: _Log) -> None:
    log.send("plain", 0)
    lease = log.lease(log.receive("plain"))
    wrong = replace(lease, receive_id=99)
    log.apply(Ack(group="g", topic="plain", leases=(wrong,)).encode(), lambda _: Acked((True,)))


def _stale_while_it_lasts(log: _Log) -> None:
    log.send("plain", 0)
    lease = log.lease(log.receive("plain"))
    log.apply(Ack(group="g", topic="plain", leases=(lease,)).encode(), lambda _: Acked((False,)))


def _spent_early(log: _Log) -> None:
    log.send("plain", 0, count=1)
    received = log.receive("plain")
    log.now_ms += _LEASE_MS
    each = received.deliveries[0]
    spent = Spent(lease=log.lease(received), attempts=1, payload=each.payload, row=0)
    log.receive("plain", lie=_told(deliveries=(), spent=(spent,)))


def _sought_elsewhere(log: _Log) -> None:
    log.send("plain", 0)
    log.receive("plain")
    generation = log.state.topics.named("plain").generation
    command = SeekGroup(group="g", topic="plain", generation=generation, offsets=((0, 1),))
    log.apply(command.encode(), lambda got: GroupSought((replace(got.queues[0], offset=2),)))


def _attempt_of_another(log: _Log) -> None:
    log.send("plain", 0)
    log.receive("plain", 1, attempt_id="x")
    log.receive("plain", 1, attempt_id="x", lie=_told(receive_id=77))


@pytest.mark.parametrize(
    "wrong",
    [
        _leased_to_two,
        _left,
        _newest_first,
        _counted_twice,
        _lowest_first,
        _highest_left,
        _overtaken,
        _group_with_two,
        _done_without_a_lease,
        _stale_while_it_lasts,
        _spent_early,
        _sought_elsewhere,
        _attempt_of_another,
    ],
)
def test_what_a_node_says_wrong_is_a_violation(wrong: Callable[[_Log], None]) -> None:
    """Or the worlds would show nothing."""
    log = _Log()

    with pytest.raises(ViolationError):
        wrong(log)


@pytest.mark.parametrize("topic", _TYPES)
def test_a_group_that_seeks_gets_what_is_kept_from_there_on(topic: str) -> None:
    """After each end of a delivery that there is; and the model says when nothing is left."""
    log, queue_id = _Log(), _HOME if topic == "ordered" else 1
    log.send(topic, queue_id, group="a" if topic == "ordered" else "")
    received = log.receive(topic, 3)
    lease = log.lease(received)
    log.apply(Ack(group="g", topic=topic, leases=(lease,)).encode())
    changed = ChangeInvisible(
        group="g", topic=topic, lease=log.lease(received, 1), invisible_ms=1, suspend=True
    )
    log.apply(changed.encode())
    log.now_ms += _LEASE_MS
    log.receive(topic, 3)
    generation = log.state.topics.named(topic).generation
    seek = SeekGroup(group="g", topic=topic, generation=generation, offsets=((queue_id, 0),))
    log.apply(seek.encode())

    again = log.receive(topic, 3)
    leases = tuple(log.lease(again, at) for at in range(3))
    left = len(list(log.model.undone()))
    log.apply(Ack(group="g", topic=topic, leases=leases).encode())

    assert (len(again.deliveries), left, list(log.model.undone())) == (3, 3, [])


def test_the_world_has_all_that_may_go_wrong_with_types() -> None:
    """Wrong clocks of a minority, two leaders, retention; and held messages of both kinds."""
    worlds = [Options.of(seed, "types") for seed in range(40)]

    assert all(one.typed and one.timed and one.halves for one in worlds)
    assert all(one.depose_s and one.has_right_clocks for one in worlds)
    assert {bool(one.kept_kib) for one in worlds} == {False, True}


@pytest.mark.parametrize("seed", [3, 16])
def test_groups_get_what_the_model_has(seed: int) -> None:
    """Through crashes, seeks, dead letters, pauses, and questions about transactions."""
    outcome = Run(seed, Options.of(seed, "types")).run()

    assert min(outcome.consumed, outcome.sought, outcome.asked, outcome.ended, outcome.timed) > 0
