"""Checks a batch that its producer encoded: once, after which it is passed through as bytes.

The rules are those of `checks.messages`, of single messages; here each checks a whole column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dledger.broker.command_frame import (
    CommandType,
    MalformedCommandError,
    UnknownCommandError,
    split,
)
from dledger.broker.held_commands import encode_produce_held
from dledger.broker.held_refs import Kind
from dledger.broker.produce import NO_QUEUE, ProduceFrame, with_queue
from dledger.broker.queue_choice import chooses_queues, queue_of_batch
from dledger.broker.topics import DELAY, FIFO, NORMAL, PRIORITY, TRANSACTION, TYPES, Topic
from dledger.checks.messages import (
    check_body_sizes,
    check_born_host,
    check_count,
    check_id_size,
    check_properties,
    check_tag,
    check_times,
    check_total,
    check_trace,
    check_typed,
)
from dledger.checks.names import check_client_id, check_may_be_sent_to, check_name
from dledger.common.features import FEATURES
from dledger.common.limits import FIRST_CHECK_MS, MAX_CHECK_AFTER_MS
from dledger.errors import DiskFull, FeatureNotReady, InvalidArgument, TopicTypeMismatch
from dledger.requests.delivery_times import is_to_wait
from dledger.requests.engine import Engine

_BATCHED: Final = (FIFO, DELAY, PRIORITY)
"""The types beside NORMAL whose messages say of themselves of which type they are."""


def checked_batch(command: bytes) -> ProduceFrame:
    """Return the batch in a framed PRODUCE command.

    Its packed bodies are still to be looked into (`requests.unpacking`), which may take long.

    Raises:
        TopicTypeMismatch: It has what only types of topics know that are not served yet.
        Refused: It is not a PRODUCE command, or a message in it breaks a rule; the text says which.
        FeatureNotReady: A newer producer encoded it with features unknown to this node, which
            therefore must not let it into the log.
    """
    try:
        batch = _only_batch(command)
        _check_names(batch)
        _check_columns(batch)
        if not batch.is_plain:
            _check_each(batch)
    except UnknownCommandError as error:
        raise FeatureNotReady(
            f"{error} is unknown to this node (feature level {FEATURES.level}): upgrade the group "
            "before its producers; nothing was stored",
            needed=FEATURES.level + 1,
        ) from error
    except (MalformedCommandError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"not a valid batch: {error}") from error
    return batch


def prepare(command: bytes, topic: Topic, engine: Engine, *, is_typed: bool) -> bytes:
    """Return a checked batch as it may be proposed for its topic; see `for_topic` and `for_later`.

    Before those of a topic of type DELAY are proposed the group has to have its secret: the answer
    to what is held has handles.
    """
    if topic.type == DELAY.name:
        return for_later(command, engine)
    return for_topic(command, topic, is_typed=is_typed)


def for_topic(command: bytes, topic: Topic, *, is_typed: bool) -> bytes:
    """Return the PRODUCE command of a checked batch as it may be proposed for its topic.

    That is as it is; if its topic chooses the queue (by key, message group, or priority), it names
    that. A batch is of one queue, as its answer is: its producer can tell which, and is told of how
    many queues.

    Args:
        command: The batch, framed.
        topic: Its topic, which is not of type DELAY.
        is_typed: Whether any message has what only some types of topics know.

    Raises:
        TopicTypeMismatch: The topic takes messages of another type.
        IllegalKey, IllegalGroup: The topic chooses the queue by what a message has not.
        SeveralQueues: Its messages are of several queues.
        InvalidArgument: The batch asks for another queue.
    """
    if topic.type == NORMAL.name and topic.compaction is None and not is_typed:
        return command
    try:
        batch = _only_batch(command)
        kind = kind_of_batch(batch)
        if kind != topic.type:
            TYPES[topic.type].check(kind, ())
        return (
            with_queue(command, queue_of_batch(batch, topic)) if chooses_queues(topic) else command
        )
    except MalformedCommandError as error:
        raise InvalidArgument(f"not a valid batch: {error}") from error


def for_later(command: bytes, engine: Engine) -> bytes:
    """Return a checked batch for a topic of type DELAY as it may be proposed.

    That is as it is if all its messages are due, else one that holds them.

    Raises:
        TopicTypeMismatch: A message has no delivery time, or the batch is of another type.
        Rejected: One is to be delivered too late.
        Unavailable: What time it is is not known.
        DiskFull: No more are held.
    """
    batch = _only_batch(command)
    DELAY.check(kind_of_batch(batch), ())
    due_ms = batch.typed.deliver_at_ms() if batch.typed is not None else ()
    if 0 in due_ms:
        raise TopicTypeMismatch(
            f"topic {batch.topic!r} takes messages with a delivery time, and row {due_ms.index(0)} "
            "has none: give each one, which may have passed"
        )
    if not is_to_wait(due_ms, engine.date_ms()):
        return command
    if why := engine.holding_refusal():
        raise DiskFull(why)
    return encode_produce_held(Kind.TIMER, due_ms, command)


def for_transactions(command: bytes, topic: Topic, engine: Engine, check_after_ms: int) -> bytes:
    """Return a checked batch of halves as it may be proposed: each is held until somebody ends it.

    Before it is proposed the group has to have its secret, as for `prepare`.

    Args:
        command: The batch, framed.
        topic: Its topic.
        engine: The leader.
        check_after_ms: For how long nobody is asked what became of them; 0: as usual.

    Raises:
        TopicTypeMismatch: The topic, or the batch, is of another type.
        InvalidArgument: *check_after_ms* is out of range.
        DiskFull: No more are held.
    """
    batch = _only_batch(command)
    TYPES[topic.type].check(TRANSACTION.name, [] if batch.typed is None else batch.typed.fields)
    if not 0 <= check_after_ms <= MAX_CHECK_AFTER_MS:
        raise InvalidArgument(
            f"a transaction is asked about after 0 to {MAX_CHECK_AFTER_MS} ms, not {check_after_ms}"
        )
    if why := engine.state.held.full:
        raise DiskFull(why)
    due_ms = (engine.date_ms() or engine.now_ms()) + (check_after_ms or FIRST_CHECK_MS)
    return encode_produce_held(Kind.HALF, [due_ms] * batch.count, command)


def _only_batch(command: bytes) -> ProduceFrame:
    frames = list(split(command))
    if len(frames) != 1 or frames[0][0] != CommandType.PRODUCE:
        raise MalformedCommandError(f"the {len(frames)} commands are not exactly one PRODUCE")
    _, start, end = frames[0]
    return ProduceFrame(command, start, end)


def _check_names(batch: ProduceFrame) -> None:
    check_name("topic", batch.topic)
    check_may_be_sent_to(batch.topic)
    check_client_id(batch.client_id)
    check_born_host(batch.born_host)
    check_count(batch.count)
    if batch.queue_id < NO_QUEUE:
        raise InvalidArgument(f"queue id {batch.queue_id} is neither a queue's nor {NO_QUEUE}")
    if batch.replay is not None:  # a producer knows no keys of lanes; the edge makes them of tokens
        raise InvalidArgument("a batch has the mark of a replay, which only SendMessage takes")


def _check_columns(batch: ProduceFrame) -> None:
    sizes = batch.body_sizes()
    check_body_sizes(min(sizes), max(sizes))
    check_total(sum(sizes))
    check_id_size(max(batch.id_sizes()))
    check_times(batch.born_at_ms())
    batch.check_texts()
    for tag in set(batch.tags() or ()):
        check_tag(tag.decode())


def _check_each(batch: ProduceFrame) -> None:
    for row in range(batch.count):
        message = batch.message(row)
        check_properties(message.properties, message.keys)
        check_trace(message.trace_context)
        if message.typed is not None:
            check_typed(message.typed)
    if batch.typed is not None:
        kind_of(batch.typed.fields)


def kind_of_batch(batch: ProduceFrame) -> str:
    """Return the type of the messages of a checked batch."""
    return NORMAL.name if batch.typed is None else kind_of(batch.typed.fields)


def kind_of(fields: Sequence[str]) -> str:
    """Return the type of the messages that have these fields. Raises TopicTypeMismatch."""
    for each in _BATCHED:
        if each.fields.issuperset(fields):
            return each.name
    NORMAL.check(NORMAL.name, fields)
    return NORMAL.name
