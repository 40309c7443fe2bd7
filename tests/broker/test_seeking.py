"""SEEK_GROUP: a group goes on from elsewhere, and nothing of what it held before counts."""

from __future__ import annotations

import pytest

from dledger.broker.beginnings import Beginning
from dledger.broker.commands import (
    ChangeInvisible,
    CreateGroup,
    CreateTopic,
    DeleteTopic,
    LeaseRef,
    Receive,
    Renew,
    Retain,
    SeekGroup,
)
from dledger.broker.results import GroupSought, Received, SoughtQueue
from dledger.broker.state import BrokerState
from dledger.errors import (
    DledgerError,
    InvalidArgument,
    InvalidReceiptHandle,
    TopicMadeAnew,
    UnknownGroup,
    UnknownTopic,
)
from tests.broker.log import Log, attempts, offsets


@pytest.fixture
def log() -> Log:
    """A topic of one queue with five messages, and the group g, which began with the oldest."""
    log = Log()
    log.create()
    log.produce(*"abcde")
    return log


def _seek(
    log: Log, *places: tuple[int, int], group: str = "g", topic: str = "t", generation: int = 0
) -> object:
    found = log.state.topics.get(topic)
    command = SeekGroup(
        group=group,
        topic=topic,
        generation=generation or (found.generation if found else 1),
        offsets=places,
    )
    (result,) = log.append(command.encode())
    return result


def _refs(received: Received) -> tuple[LeaseRef, ...]:
    return tuple(LeaseRef(d.queue_id, d.offset, received.receive_id) for d in received.deliveries)


def test_a_seek_back_delivers_again_from_there(log: Log) -> None:
    """What was acknowledged, too; and it says what it did."""
    log.ack(log.receive(4))

    assert _seek(log, (0, 1)) == GroupSought((SoughtQueue(0, before=4, offset=1, held=0),))
    assert offsets(log.receive()) == [1, 2, 3, 4]


def test_a_seek_forward_passes_over_the_rest(log: Log) -> None:
    """A backlog is skipped; what is at the end waits for what comes."""
    log.receive(1)

    assert _seek(log, (0, 5)) == GroupSought((SoughtQueue(0, before=0, offset=5, held=1),))
    log.now_ms += 10_000
    assert offsets(log.receive()) == []
    log.produce("f")
    assert offsets(log.receive()) == [5]


def test_leases_end_with_a_seek(log: Log) -> None:
    """The messages come at once, not when their leases would have ended."""
    log.receive(5, invisible_ms=3_600_000)

    _seek(log, (0, 0))

    assert log.state.groups.available("g", "t", [0], log.now_ms, enough=9) == 5
    assert offsets(log.receive()) == [0, 1, 2, 3, 4]


def test_what_is_delivered_after_a_seek_is_a_first_attempt(log: Log) -> None:
    """It was asked for; who counts failures begins anew."""
    for _ in range(3):
        log.receive(5)
        log.now_ms += 2_000

    _seek(log, (0, 0))

    assert attempts(log.receive()) == [1] * 5


def test_handles_of_before_a_seek_ack_nothing(log: Log) -> None:
    """Neither while the message waits for its delivery, nor once another has it."""
    before = log.receive(5)
    _seek(log, (0, 0))

    assert log.ack(before) == (False,) * 5
    again = log.receive(5)
    assert log.ack(before) == (False,) * 5
    assert log.ack(again) == (True,) * 5
    log.now_ms += 10_000
    assert offsets(log.receive()) == []


def test_handles_of_before_a_seek_change_and_renew_nothing(log: Log) -> None:
    """What a leader still knows of the old leases cannot hold the new ones."""
    before = log.receive(1, client_id="c")
    _seek(log, (0, 0))
    again = log.receive(1, client_id="d")
    (old,) = _refs(before)

    change = ChangeInvisible(group="g", topic="t", lease=old, invisible_ms=60_000)
    (changed,) = log.append(change.encode())
    renew = Renew(group="g", topic="t", leases=(old,), invisible_ms=60_000, arrived=True)
    log.append(renew.encode())

    assert isinstance(changed, InvalidReceiptHandle)
    found = log.state.groups.lease("g", "t", _refs(again)[0])
    assert found is not None
    assert (found.client_id, found.arrived) == ("d", False)


def test_an_attempt_that_is_repeated_after_a_seek_gets_what_lies_there(log: Log) -> None:
    """Not what its first answer had: it holds that no more."""
    first = log.receive(2, attempt_id="a")

    _seek(log, (0, 3))

    assert not log.state.groups.holds_attempt("g", "t", "a")
    again = log.receive(2, attempt_id="a")
    assert again.receive_id != first.receive_id
    assert offsets(again) == [3, 4]


def test_a_seek_leaves_other_queues_and_groups_alone() -> None:
    """Only the queues that it names."""
    log = Log()
    log.create(queues=2)
    log.append(CreateGroup(name="h").encode())
    for queue_id in (0, 1):
        log.produce("a", "b", queue_id=queue_id)
    held = log.receive(2, queue_id=1)
    of_h = log.receive(2, group="h")

    _seek(log, (0, 1))

    assert log.ack(held) == (True, True)
    assert log.ack(of_h, group="h") == (True, True)


def test_a_seek_below_what_is_kept_is_moved_up(log: Log) -> None:
    """And the answer says where it went."""
    log.produce("f", "g")
    log.append(Retain(before_index=len(log.entries)).encode())

    assert _seek(log, (0, 2)) == GroupSought((SoughtQueue(0, before=5, offset=5, held=0),))


def test_a_seek_of_what_is_not_there_is_refused_whole() -> None:
    """No queue of several is moved if one cannot be."""
    log = Log()
    log.create(queues=2)
    log.produce(*"abc")
    log.receive(3)
    before = log.state.groups.canonical()

    refused: list[tuple[object, type[DledgerError]]] = [
        (_seek(log, (0, 0), (1, 1)), InvalidArgument),
        (_seek(log, (0, 0), (2, 0)), InvalidArgument),
        (_seek(log, (0, 0), (-1, 0)), InvalidArgument),
        (_seek(log, (0, -1)), InvalidArgument),
        (_seek(log, (0, 0), group="nobody"), UnknownGroup),
        (_seek(log, (0, 0), topic="nowhere"), UnknownTopic),
        (_seek(log, (0, 0), generation=77), TopicMadeAnew),
    ]

    for result, kind in refused:
        assert isinstance(result, kind), result
    assert log.state.groups.canonical() == before


def test_a_seek_is_of_the_topic_that_it_was_meant_for(log: Log) -> None:
    """One that was made anew while the command was on its way keeps its place."""
    old = log.state.topics.named("t").generation
    log.append(
        DeleteTopic(name="t", generation=old).encode(),
        CreateTopic(name="t", type="NORMAL", queues=1).encode(),
    )
    log.produce("new")
    log.receive(1)

    assert isinstance(_seek(log, (0, 0), generation=old), TopicMadeAnew)
    assert log.state.groups.committed("g", "t", 0) == 0
    assert offsets(log.receive()) == []


def test_a_seek_wakes_who_waits(log: Log) -> None:
    """A poll that found nothing is told that there may be something."""
    log.ack(log.receive(5))
    log.state.take_changes()

    _seek(log, (0, 0))

    assert log.state.take_changes().leases == {("g", "t", 0)}


def test_what_was_kept_for_slower_filters_goes_with_a_seek(log: Log) -> None:
    """It lies behind the new place, or it is skipped; its room is free."""
    log.produce("x", "y", tag="slow")
    log.receive(1, tags=("slow",))
    log.receive(5, tags=("fast",))
    assert log.state.groups.kept_bytes > 0

    _seek(log, (0, 0))

    assert log.state.groups.kept_bytes == 0
    assert offsets(log.receive(9, tags=("slow",))) == [5, 6]


def test_a_state_of_before_a_seek_is_told_as_it_was(log: Log) -> None:
    """A snapshot that is written while the group moves on has the old place."""
    log.receive(2)
    frozen, encoded = log.state.freeze(), log.state.encode()

    _seek(log, (0, 4))

    assert frozen.encode() == encoded
    assert BrokerState.decode(encoded).groups.committed("g", "t", 0) == 0
    assert BrokerState.decode(log.state.encode()).digest() == log.state.digest()


# -- where a new group begins ----------------------------------------------------------------------


def _create(log: Log, beginning: Beginning, group: str = "new") -> object:
    (result,) = log.append(CreateGroup(name=group, beginning=beginning).encode())
    return result


def test_a_group_begins_with_what_is_stored_from_an_entry_on() -> None:
    """In each queue, also in one that comes later; whatever it reads first."""
    log = Log()
    log.create(queues=2)
    log.produce(*"abc", queue_id=0)
    log.produce(*"de", queue_id=1)
    _create(log, Beginning(len(log.entries) + 1, log.now_ms))
    assert log.state.groups.available("new", "t", [0, 1], log.now_ms, enough=9) == 0
    log.produce("f", queue_id=1)

    assert log.state.groups.available("new", "t", [0, 1], log.now_ms, enough=9) == 1
    assert [log.state.groups.committed("new", "t", each) for each in (0, 1)] == [3, 2]
    assert log.state.groups.backlog("new", "t").unread == 1
    assert offsets(log.receive(9, group="new", any_queue=True)) == [2]


def test_a_group_begins_there_after_a_restart() -> None:
    """The place is in the snapshot, and was in no queue yet."""
    log = Log()
    log.create()
    log.produce(*"abc")
    _create(log, Beginning(len(log.entries), log.now_ms))

    restored = BrokerState.decode(log.state.encode())

    assert restored.digest() == log.state.digest()
    assert restored.groups.committed("new", "t", 0) == 0
    log.state = restored
    log.produce("d")
    assert offsets(log.receive(9, group="new")) == [0, 1, 2, 3]


def test_a_group_that_exists_begins_where_it_did(log: Log) -> None:
    """Making it again only marks it as used."""
    _create(log, Beginning(len(log.entries) + 1, log.now_ms), group="g")

    assert offsets(log.receive()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("beginning", [Beginning(0, 5), Beginning(-1, 5), Beginning(3, -1)])
def test_no_group_begins_where_nothing_can_be(log: Log, beginning: Beginning) -> None:
    """An entry from 1 on, and a time from 1970 on."""
    assert isinstance(_create(log, beginning), InvalidArgument)
    assert not log.state.groups.exists("new")


def test_a_long_queue_is_asked_for_its_first_message_of_an_entry() -> None:
    """Of sealed runs as of open ones: each entry of a queue of thousands."""
    log = Log()
    log.create()
    first = len(log.entries) + 1
    for number in range(5_000):
        log.produce("x", tag="ab"[number % 2])
    queue = log.state.topics.queue("t", 0)

    for number in (0, 1, 1_023, 1_024, 1_025, 3_000, 4_999, 5_000):
        assert queue.stored_from(first + number, 0) == number


def test_a_receive_of_a_group_with_a_beginning_replays_alike(log: Log) -> None:
    """Equal logs, equal states."""
    _create(log, Beginning(len(log.entries), log.now_ms))
    log.append(
        Receive(
            group="new", topic="t", queue_id=0, any_queue=True, limit=3, invisible_ms=1
        ).encode()
    )
    again = BrokerState()
    for entry in log.entries:
        again.apply(entry)

    assert again.digest() == log.state.digest()
