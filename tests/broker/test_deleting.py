"""Topics and groups that are deleted: they are gone with all that was done, and nothing comes back.

found: S9.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.broker.command_frame import CommandType, frame
from dledger.broker.commands import (
    Ack,
    ChangeInvisible,
    CreateGroup,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    LeaseRef,
    Receive,
    Renew,
    SetSecret,
)
from dledger.broker.message import Columns, Message
from dledger.broker.produce import encode_produce
from dledger.broker.results import (
    Acked,
    GroupCreated,
    GroupDeleted,
    InvisibilityChanged,
    Produced,
    Received,
    SecretSet,
    TopicCreated,
    TopicDeleted,
)
from dledger.broker.state import BrokerState, FrozenState
from dledger.broker.topics import MAX_QUEUES, MAX_QUEUES_IN_ALL
from dledger.errors import (
    InvalidArgument,
    InvalidReceiptHandle,
    LimitReached,
    UnknownGroup,
    UnknownTopic,
)
from tests.broker.deletion_model import Model
from tests.broker.log import Log, offsets

pytestmark = pytest.mark.found


def _delete(log: Log, name: str = "t") -> TopicDeleted:
    (result,) = log.append(
        DeleteTopic(name=name, generation=log.state.topics.named(name).generation).encode()
    )
    assert isinstance(result, TopicDeleted), result
    return result


def _lease(received: Received, row: int = 0) -> LeaseRef:
    delivery = received.deliveries[row]
    return LeaseRef(delivery.queue_id, delivery.offset, received.receive_id)


# -- a topic -------------------------------------------------------------------------------------


def test_a_topic_goes_with_its_messages_and_what_was_done_with_them() -> None:
    """Nothing of it is left to be seen, in the state or in its bytes."""
    log, never = Log(), Log()
    log.create()
    never.create()
    log.produce("a", "b", ids=("1", "2"))
    log.receive(1, attempt_id="x")

    deleted = _delete(log)

    assert (deleted.topic.name, deleted.messages) == ("t", 2)
    assert log.state.topics.all() == []
    assert log.state.topics.remembered_ids == 0
    assert log.state.groups.topics_of("g") == []
    assert not log.state.groups.holds_attempt("g", "t", "x")
    with pytest.raises(UnknownTopic, match="dledger topic create t"):
        log.state.topics.queue("t", 0)


def test_a_topic_made_anew_begins_at_the_beginning() -> None:
    """Offset 0, no old message, no old id, no old attempt."""
    log = Log()
    log.create(queues=2)
    log.produce("old", "older", ids=("1", "2"))
    log.receive(1, attempt_id="x")
    _delete(log)

    log.create(queues=1)
    again = log.produce("new", ids=("1",))
    received = log.receive(attempt_id="x")

    assert (again.offsets[0], again.stored) == (0, 1)
    assert offsets(received) == [0]
    assert received.deliveries[0].attempt == 1
    assert received.generation == 2


def test_what_is_held_of_a_deleted_topic_does_not_hit_its_successor() -> None:
    """Acks, renewals and changes of before find a lease of the same place, and leave it alone."""
    log = Log()
    log.create()
    log.produce("old")
    held = log.receive(client_id="c")
    _delete(log)
    log.create()
    log.produce("new")
    fresh = log.receive(client_id="c")
    lease = _lease(held)

    acked, renewed, changed = log.append(
        Ack(group="g", topic="t", leases=(lease,)).encode(),
        Renew(group="g", topic="t", leases=(lease,), invisible_ms=5, arrived=True).encode(),
        ChangeInvisible(group="g", topic="t", lease=lease, invisible_ms=0).encode(),
    )

    assert acked == Acked((False,))
    assert renewed == InvisibilityChanged(0)
    assert isinstance(changed, InvalidReceiptHandle)
    assert log.ack(fresh) == (True,)


def test_a_repeated_delete_leaves_what_was_made_since() -> None:
    """Its answer was lost, and somebody has made the topic again."""
    log = Log()
    log.create()
    command = DeleteTopic(name="t", generation=1).encode()

    first, again = log.append(command, command)
    log.create()
    (late,) = log.append(command)

    assert isinstance(first, TopicDeleted)
    assert isinstance(again, UnknownTopic)
    assert isinstance(late, UnknownTopic)
    assert log.state.topics.get("t") is not None


def test_what_was_on_its_way_to_a_deleted_topic_is_refused_by_name() -> None:
    """A batch and a poll that stand behind the delete in the log; acks are stale."""
    log = Log()
    log.create()
    batch = Columns.of([Message(message_id="1", body=b"x")])
    produce = encode_produce(batch, client_id="c", topic="t", queue_id=0)
    receive = Receive(
        group="g", topic="t", queue_id=0, any_queue=False, limit=1, invisible_ms=1
    ).encode()
    ack = Ack(group="g", topic="t", leases=(LeaseRef(0, 0, 1),)).encode()

    results = log.append(DeleteTopic(name="t", generation=1).encode(), produce, receive, ack)

    assert [type(result) for result in results] == [
        TopicDeleted,
        UnknownTopic,
        UnknownTopic,
        Acked,
    ]
    assert results[-1] == Acked((False,))


def test_a_deleted_topic_gives_its_queues_back() -> None:
    """The bound on all queues counts those that there are."""
    log = Log()
    for number in range(MAX_QUEUES_IN_ALL // MAX_QUEUES):
        command = CreateTopic(name=f"t{number}", type="NORMAL", queues=MAX_QUEUES)
        log.append(command.encode())
    one_more = CreateTopic(name="one-more", type="NORMAL", queues=1).encode()

    (refused,) = log.append(one_more)
    _delete(log, "t7")
    (made,) = log.append(one_more)

    assert isinstance(refused, LimitReached)
    assert isinstance(made, TopicCreated)


def test_retention_passes_over_what_is_gone() -> None:
    """The log still has its messages, and drops them as any."""
    log = Log()
    log.create()
    log.produce("a")
    log.receive()
    _delete(log)
    log.create()
    log.produce("b")

    log.retain(len(log.entries))

    assert log.state.topics.messages("t") == 1
    assert log.replay().digest() == log.state.digest()


@pytest.mark.found
def test_what_a_topic_grew_by_is_forgotten_with_it() -> None:
    """found: E8. Twenty thousand topics made, written to and deleted left a row each, for ever."""
    log = Log()
    for number in range(20):
        log.create(topic=f"t{number}")
        log.produce("a", topic=f"t{number}")
        if number:
            _delete(log, f"t{number}")

    assert list(log.state.topics.grown_bytes) == ["t0"]


def test_a_state_that_is_replaced_tells_which_topics_and_groups_are_gone() -> None:
    """A snapshot took the place of the entries with the delete: who waits must hear of it."""
    log, ahead = Log(), Log()
    for each in (log, ahead):
        each.create(queues=3)
        each.create(group="gone")
    _delete(ahead)
    ahead.create(queues=1)
    ahead.append(DeleteGroup(name="gone").encode())
    log.state.take_changes()

    log.state.replace(BrokerState.decode(ahead.state.encode()))

    changes = log.state.take_changes()
    assert changes.topics_gone == {("t", 3)}
    assert changes.groups_gone == {"gone"}


# -- a group -------------------------------------------------------------------------------------


def test_a_group_made_anew_begins_at_the_oldest_message() -> None:
    """What the old one held means nothing to it."""
    log = Log()
    log.create()
    log.produce("a", "b")
    held = log.receive(1, client_id="c")

    (deleted,) = log.append(DeleteGroup(name="g").encode())
    (unknown,) = log.append(DeleteGroup(name="g").encode())
    (made,) = log.append(CreateGroup(name="g").encode())
    fresh = log.receive(2, client_id="c")

    assert deleted == GroupDeleted("g")
    assert isinstance(unknown, UnknownGroup)
    assert made == GroupCreated("g", created=True)
    assert offsets(fresh) == [0, 1]
    assert log.append(Ack(group="g", topic="t", leases=(_lease(held),)).encode()) == [
        Acked((False,))
    ]


# -- the secret ----------------------------------------------------------------------------------


def test_only_the_first_secret_counts() -> None:
    """Two leaders that drew one agree by the log; handles that are out stay good."""
    log = Log()
    one, other = bytes(range(32)), bytes(32)

    first, second = log.append(SetSecret(secret=one).encode(), SetSecret(secret=other).encode())

    assert (first, second) == (SecretSet(first=True), SecretSet(first=False))
    assert log.state.secret == one
    assert BrokerState.decode(log.state.encode()).secret == one


@pytest.mark.parametrize("secret", ["", "00" * 31, "00" * 33, "AB" * 32, "0 " * 32, 7])
def test_another_kind_of_secret_is_refused_and_not_repeated(secret: object) -> None:
    """Nobody who reads an error or a log line learns it."""
    log = Log()
    data = frame(CommandType.SET_SECRET, b'{"secret":"%s"}' % str(secret).encode())

    (refused,) = log.append(data)

    assert isinstance(refused, InvalidArgument)
    assert str(refused) == "command of type 13 is no secret"
    assert log.state.secret == b""


def test_a_secret_is_in_no_repr() -> None:
    """Commands are shown when something goes wrong."""
    assert "0102" not in repr(SetSecret(secret=bytes(range(32))))


# -- all of it, against a model ------------------------------------------------------------------


def _produced(result: object) -> list[tuple[int, int]] | None:
    if not isinstance(result, Produced):
        return None
    return list(zip(result.queue_ids, result.offsets, strict=True))


def _received(result: object) -> tuple[int, int, list[int]] | None:
    if not isinstance(result, Received):
        return None
    return result.generation, result.receive_id, offsets(result)


def _step(log: Log, model: Model, rng: random.Random) -> None:
    """Commit one random command; the model says what comes of it."""
    topic, group = rng.choice("tu"), rng.choice("gh")
    queue_id, kind = rng.randrange(3), rng.randrange(12)
    expected: Any
    found: Any
    if kind == 0:
        queues = rng.randint(1, 3)
        (result,) = log.append(CreateTopic(name=topic, type="NORMAL", queues=queues).encode())
        found = result.created if isinstance(result, TopicCreated) else None
        expected = model.create_topic(topic, queues)
    elif kind == 1:
        generation = rng.randint(max(1, model.made - 1), model.made + 1)
        (result,) = log.append(DeleteTopic(name=topic, generation=generation).encode())
        found = result.messages if isinstance(result, TopicDeleted) else None
        expected = model.delete_topic(topic, generation)
    elif kind == 2:
        (result,) = log.append(CreateGroup(name=group).encode())
        found, expected = result, GroupCreated(group, model.create_group(group))
    elif kind == 3 and rng.random() < 0.5:
        (result,) = log.append(DeleteGroup(name=group).encode())
        found, expected = isinstance(result, GroupDeleted), model.delete_group(group)
    elif kind < 7:
        client, first = rng.choice("ab"), rng.randrange(12)
        ids = tuple(str(row) for row in range(first, first + rng.randint(1, 4)))
        batch = Columns.of([Message(message_id=each, body=b"x") for each in ids])
        command = encode_produce(batch, client_id=client, topic=topic, queue_id=queue_id)
        (result,) = log.append(command)
        found = _produced(result)
        expected = model.produce(topic, queue_id, client, ids)
    elif kind < 10:
        limit = rng.randint(1, 4)
        (result,) = log.append(
            Receive(
                group=group,
                topic=topic,
                queue_id=queue_id,
                any_queue=False,
                limit=limit,
                invisible_ms=1 << 40,
                attempt_id=rng.choice(["", f"{model.made} {model.receives}"]),
            ).encode()
        )
        found, expected = _received(result), model.receive(group, topic, queue_id, limit)
    else:
        lease = LeaseRef(queue_id, rng.randrange(6), rng.randint(0, model.receives))
        (result,) = log.append(Ack(group=group, topic=topic, leases=(lease,)).encode())
        found = result.outcomes[0] if isinstance(result, Acked) else None
        expected = model.ack(group, topic, lease.queue_id, lease.offset, lease.receive_id)
    assert found == expected, (kind, result)


def _agrees(log: Log, model: Model) -> None:
    state = log.state
    assert [topic.name for topic in state.topics.all()] == sorted(model.topics)
    for name, topic in model.topics.items():
        assert state.topics.named(name).generation == topic.generation
        assert [queue.end for queue in state.topics.queues(name)] == list(map(len, topic.queues))
        assert state.topics.messages(name) == sum(map(len, topic.queues))
    assert state.topics.remembered_ids == sum(len(t.places) for t in model.topics.values())
    assert state.groups.names() == sorted(model.groups)
    for group in model.groups:
        for name in model.topics:
            backlog = state.groups.backlog(group, name)
            assert (backlog.unread, backlog.held) == model.backlog(group, name)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32))
def test_the_state_does_what_a_model_does(seed: int) -> None:
    """With snapshots in between: one goes on as it was taken, whatever is deleted meanwhile."""
    rng = random.Random(seed)
    log, model = Log(), Model()
    taken: list[tuple[FrozenState, bytes]] = []
    for _ in range(rng.randint(10, 120)):
        _step(log, model, rng)
        if rng.random() < 0.05:
            taken.append((log.state.freeze(), log.state.encode()))
        if rng.random() < 0.05:
            log.state = BrokerState.decode(log.state.encode())

    _agrees(log, model)
    assert log.replay().digest() == log.state.digest()
    assert all(frozen.encode() == data for frozen, data in taken)
