"""The state machine as a whole: produce, topics, groups, and equality across nodes."""

from __future__ import annotations

import random
import time

import pytest

from dledger.broker import topic_store
from dledger.broker.command_frame import CommandType, frame
from dledger.broker.commands import (
    ChangeInvisible,
    CreateGroup,
    CreateTopic,
    LeaseRef,
    Receive,
    Release,
)
from dledger.broker.message import Columns
from dledger.broker.produce import encode_produce
from dledger.broker.results import GroupCreated, Produced, TopicCreated
from dledger.broker.state import BrokerState
from dledger.broker.state_changes import StateChanges
from dledger.broker.topics import Topic
from dledger.errors import (
    InvalidArgument,
    LimitReached,
    UnknownGroup,
    UnknownTopic,
)
from dledger.types import EntryKind
from tests.broker.log import Log, offsets


def _produce(topic: str = "t", queue_id: int = 0) -> bytes:
    return encode_produce(
        Columns(message_ids=[""], bodies=[b"x"], born_at_ms=[0]),
        client_id="c",
        topic=topic,
        queue_id=queue_id,
    )


def test_offsets_are_given_in_log_order() -> None:
    """Queue offsets are decided when an entry is applied, so they are the same everywhere."""
    log = Log()
    log.create()

    assert list(log.produce("a", "b").offsets) == [0, 1]
    assert list(log.produce("c").offsets) == [2]


def test_several_commands_of_one_entry_get_one_result_each() -> None:
    """A refused one does not disturb its neighbours."""
    log = Log()
    log.create()

    first, second, third = log.append(_produce(), _produce("unknown"), _produce())

    assert isinstance(first, Produced)
    assert isinstance(second, UnknownTopic)
    assert isinstance(third, Produced)
    assert list(third.offsets) == [1]


def test_the_queues_of_all_topics_together_are_bounded() -> None:
    """Seven hundred topics of 1,024 queues ended all nodes at their next snapshot."""
    log = Log()
    asked = [
        log.append(CreateTopic(name=f"t{n}", type="NORMAL", queues=1024).encode())
        for n in range(66)
    ]

    (again,) = log.append(CreateTopic(name="t0", type="NORMAL", queues=1024).encode())
    (small,) = log.append(CreateTopic(name="one-more", type="NORMAL", queues=1).encode())

    assert all(isinstance(result, TopicCreated) for (result,) in asked[:64])
    assert all(isinstance(result, LimitReached) for (result,) in (*asked[64:], [small]))
    assert again == TopicCreated(Topic(name="t0", type="NORMAL", queues=1024), created=False)
    assert "65536 queues together" in str(small)
    assert log.state.topics.get("one-more") is None
    assert BrokerState.decode(log.state.encode()).topics.all() == log.state.topics.all()


def test_what_the_bound_leaves_is_in_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that was restarted refuses the same topic as the others."""
    monkeypatch.setattr(topic_store, "MAX_QUEUES_IN_ALL", 10)
    log = Log()
    log.create(queues=8)
    twin = Log(state=BrokerState.decode(log.state.encode()), entries=list(log.entries))

    for each in (log, twin):
        (refused,) = each.append(CreateTopic(name="u", type="NORMAL", queues=3).encode())
        (made,) = each.append(CreateTopic(name="u", type="NORMAL", queues=2).encode())
        assert isinstance(refused, LimitReached)
        assert isinstance(made, TopicCreated)


def test_batches_without_a_queue_go_round() -> None:
    """The topic's queues are filled in turn."""
    log = Log()
    log.create(queues=3)

    queues = [log.produce("x", queue_id=-1).queue_ids[0] for _ in range(5)]

    assert queues == [0, 1, 2, 0, 1]


def test_a_retried_batch_is_stored_once_and_answered_with_its_first_place() -> None:
    """Also when the client would rather have had another queue."""
    log = Log()
    log.create(queues=4)
    first = log.produce("a", "b", queue_id=2, ids=("1", "2"))
    log.produce("c", queue_id=2)

    again = log.produce("a", "b", queue_id=-1, ids=("1", "2"))

    assert (again.queue_ids, list(again.offsets)) == (first.queue_ids, list(first.offsets))
    assert (again.stored, again.index) == (0, first.index)
    assert log.state.topics.messages("t") == 3


def test_a_partly_repeated_batch_stores_only_what_is_new() -> None:
    """New messages join the repeated ones in their queue."""
    log = Log()
    log.create(queues=4)
    log.produce("a", "b", queue_id=3, ids=("1", "2"))

    result = log.produce("b", "c", "d", "c", queue_id=-1, ids=("2", "3", "", "3"))

    assert list(result.queue_ids) == [3, 3, 3, 3]
    assert list(result.offsets) == [1, 2, 3, 2]
    assert result.stored == 2


def test_a_queue_that_the_topic_does_not_have_is_refused() -> None:
    """Both numbers are in the sentence."""
    log = Log()
    log.create(queues=2)

    for queue_id in (2, -2):
        (result,) = log.append(_produce(queue_id=queue_id))
        assert isinstance(result, InvalidArgument)
        assert "queues 0 to 1" in str(result)


def test_creating_a_topic_again_is_harmless() -> None:
    """With the same settings; with others it is refused and nothing changes."""
    log = Log()
    command = CreateTopic(name="t", type="NORMAL", queues=2)
    other = CreateTopic(name="t", type="NORMAL", queues=4)

    first, second, third = log.append(command.encode(), command.encode(), other.encode())

    topic = Topic(name="t", type="NORMAL", queues=2)
    assert first == TopicCreated(topic, created=True)
    assert second == TopicCreated(topic, created=False)
    assert isinstance(third, InvalidArgument)
    assert log.state.topics.all() == [topic]


@pytest.mark.parametrize(
    ("name", "kind", "queues"),
    [("", "NORMAL", 1), ("a b", "NORMAL", 1), ("x" * 128, "NORMAL", 1), ("t", "normal", 1),
     ("t", "NORMAL", 0), ("t", "NORMAL", 100_000)],
)  # fmt: skip
def test_malformed_topics_are_refused(name: str, kind: str, queues: int) -> None:
    """Names, types and numbers of queues have rules."""
    (result,) = Log().append(CreateTopic(name=name, type=kind, queues=queues).encode())

    assert isinstance(result, InvalidArgument)


def test_creating_a_group_again_is_harmless() -> None:
    """Only the first one is new."""
    log = Log()
    command = CreateGroup(name="g").encode()

    assert log.append(command, command) == [GroupCreated("g", True), GroupCreated("g", False)]


def test_unknown_groups_and_topics_are_named() -> None:
    """Every command that needs one refuses without it."""
    log = Log()
    log.create()
    receive = Receive(
        group="no", topic="t", queue_id=0, any_queue=False, limit=1, invisible_ms=1
    ).encode()
    change = ChangeInvisible(group="no", topic="t", lease=LeaseRef(0, 0, 0), invisible_ms=1)

    results = log.append(receive, change.encode(), Release(group="no", client_id="c").encode())

    assert [type(result) for result in results] == [UnknownGroup] * 3
    with pytest.raises(UnknownTopic, match="'no'"):
        log.state.topics.queue("no", 0)


def test_broken_commands_are_refused_and_change_nothing() -> None:
    """Every node gives the same refusal; none of them crashes."""
    log = Log()
    log.create()
    before = log.state.digest()

    results = log.append(
        frame(CommandType.PRODUCE, b"\1\0unk"),
        frame(CommandType.ACK, b"junk"),
        b"\xff\xff\xff\xff\x01",
    )

    assert [type(result) for result in results] == [InvalidArgument] * 3
    log.state.applied_index -= 1
    assert log.state.digest() == before


def test_time_never_goes_back() -> None:
    """A new leader with a slow clock does not make leases longer."""
    log = Log()
    log.create()
    log.produce("a")
    log.receive(invisible_ms=1000)
    log.now_ms += 1000
    log.append(b"", kind=EntryKind.NOOP)
    log.now_ms -= 5000

    assert offsets(log.receive()) == [0]


def test_entries_are_applied_once_and_in_order() -> None:
    """Applying one twice is a mistake of ours, not input."""
    log = Log()
    log.create()

    with pytest.raises(AssertionError):
        log.state.apply(log.entries[0])


def test_what_changed_is_reported_once() -> None:
    """Readers are woken for queues that got messages, and a group's for its leases that moved."""
    log = Log()
    log.create(queues=2)
    log.produce("a", "b", queue_id=1)
    assert log.state.take_changes() == StateChanges(arrived={("t", 1)})

    received = log.receive(2, queue_id=1, client_id="c", attempt_id="x")
    key, attempt = ("g", "t", 1), ("g", "t", "x")
    assert log.state.take_changes() == StateChanges(leases={key}, attempts={attempt})
    lease = LeaseRef(1, 0, received.receive_id)
    log.append(ChangeInvisible(group="g", topic="t", lease=lease, invisible_ms=1).encode())
    assert log.state.take_changes() == StateChanges(leases={key})
    log.append(Release(group="g", client_id="c").encode())
    assert log.state.take_changes() == StateChanges(leases={key})
    assert log.ack(received, 1) == (True,)
    assert log.state.take_changes() == StateChanges()


def test_the_same_log_gives_the_same_state() -> None:
    """Replay on another node, or after a restart, ends in the same digest."""
    rng = random.Random(7)
    log = Log()
    log.create(queues=4)
    log.create(topic="u", queues=1, group="h")
    for n in range(300):
        log.now_ms += rng.randrange(50)
        ids = tuple(str(rng.randrange(200)) for _ in range(rng.randrange(1, 5)))
        log.produce(*ids, topic=rng.choice("tu"), queue_id=-1, ids=ids, tag=rng.choice("xyz"))
        received = log.receive(
            rng.randrange(1, 6),
            group=rng.choice("gh"),
            any_queue=bool(n % 2),
            invisible_ms=rng.randrange(1, 300),
            tags=rng.choice([None, ("x",), ("y", "z")]),
            attempt_id=str(n),
        )
        if received.deliveries and n % 3:
            log.ack(received, group=rng.choice("gh"))

    assert log.replay().digest() == log.state.digest()
    assert log.state.digest() != BrokerState().digest()


def test_a_message_in_a_batch_costs_a_fraction_of_a_message_alone() -> None:
    """The cost is per batch: 256 messages of 1 KiB, beside one; CPU time, medians of 100."""
    log = Log()
    log.create(queues=8)

    alone, batch = _applying_cost_s(log, rows=1), _applying_cost_s(log, rows=256)

    assert batch / 256 < alone / 2


def _applying_cost_s(log: Log, *, rows: int) -> float:
    batches = [
        encode_produce(
            Columns(
                message_ids=[f"{rows:08d}{n:09d}{row:017d}" for row in range(rows)],
                bodies=[b"x" * 1024] * rows,
                born_at_ms=[0] * rows,
            ),
            client_id="c",
            topic="t",
        )
        for n in range(100)
    ]
    costs = []
    for batch in batches:
        started = time.thread_time()
        log.append(batch)
        costs.append(time.thread_time() - started)
    return sorted(costs)[50]
