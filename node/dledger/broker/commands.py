"""Every command whose payload is JSON, compact and in UTF-8: frozen values.

They are few compared to messages, so the format favours readability over size. `decode` is the one
place that checks their shape; `state` defines what they do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import ge
from typing import Final, NoReturn, TypeAlias

from dledger.broker.beginnings import OLDEST, Beginning
from dledger.broker.command_frame import (
    CommandType,
    MalformedCommandError,
    UnknownCommandError,
    frame,
)
from dledger.broker.held_refs import HOUR_BITS, SLOT_BITS, Ref
from dledger.broker.redelivery import Retries
from dledger.broker.topics import Compaction
from dledger.common.features import FEATURES, Features

_Json: TypeAlias = Mapping[str, object]
NUMBER_BOUND: Final = 1 << 62
"""Numbers in commands are below this, so that the sum of two fits a snapshot's i64 columns."""
SECRET_BYTES: Final = 32
MAX_EXPRESSION_BYTES: Final = 4 << 10
"""The longest SQL92 expression, in UTF-8."""
MAX_PAUSE_ID: Final = 64
"""Characters of what a pause of held messages is called."""
_OF_COMPACTION: Final = ("minLagMs", "tombstoneMs")
"""The fields of a CREATE_TOPIC's ``compaction``, in the order of `Compaction`'s."""
_SECRET = re.compile(rf"[0-9a-f]{{{2 * SECRET_BYTES}}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    """Create a topic; does nothing if it exists with the same settings.

    *compaction* is in the command only if it is set.
    """

    name: str
    type: str
    queues: int
    compaction: Compaction | None = None

    def encode(self) -> bytes:
        """Return the framed command."""
        row: dict[str, object] = {"name": self.name, "type": self.type, "queues": self.queues}
        if self.compaction is not None:
            times = self.compaction.min_lag_ms, self.compaction.tombstone_ms
            row["compaction"] = dict(zip(_OF_COMPACTION, times, strict=True))
        return _framed(CommandType.CREATE_TOPIC, row)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateGroup:
    """Create a consumer group; if it exists, only mark it as in use.

    *beginning* is in the command only if it is not the oldest message.
    """

    name: str
    beginning: Beginning = OLDEST

    def encode(self) -> bytes:
        """Return the framed command."""
        row: dict[str, object] = {"name": self.name}
        if self.beginning != OLDEST:
            row |= {"entry": self.beginning.entry, "stored": self.beginning.stored_ms}
        return _framed(CommandType.CREATE_GROUP, row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Receive:
    """Hand out up to *limit* messages of a topic to a member of a group.

    Attributes:
        queue_id: The queue to take from first.
        any_queue: Continue with the topic's other queues until *limit* is reached.
        invisible_ms: How long the messages stay hidden from other members.
        tags: Only messages with one of these tags; None for all.
        attempt_id: Repeating the id returns the same messages; empty: the result is not remembered.
        client_id: The client whose leases the leader renews; empty: they are not renewed.
    """

    group: str
    topic: str
    queue_id: int
    any_queue: bool
    limit: int
    invisible_ms: int
    tags: tuple[str, ...] | None = None
    attempt_id: str = ""
    client_id: str = ""

    def encode(self) -> bytes:
        """Return the framed command."""
        return _framed(
            CommandType.RECEIVE,
            {
                "group": self.group,
                "topic": self.topic,
                "queue": self.queue_id,
                "any": self.any_queue,
                "limit": self.limit,
                "invisible": self.invisible_ms,
                "tags": None if self.tags is None else list(self.tags),
                "attempt": self.attempt_id,
                "client": self.client_id,
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiveAt:
    """Hand out what the leader found with an SQL92 expression; pass over the rest of a range.

    Attributes:
        generation: The topic's: offsets are of one topic.
        sql: The expression; another one of the group may be in use by now.
        start, stop: The range [*start*, *stop*) of the queue that was looked at.
        take: What matches there, ascending.
        again: Messages whose lease had ended and which match.
        done: Messages whose lease had ended and which do not: a tag filter took them.
        invisible_ms: How long the messages stay hidden from other members.
        attempt_id: As of `Receive`.
        client_id: Likewise.
    """

    group: str
    topic: str
    generation: int
    queue_id: int
    sql: str
    start: int
    stop: int
    take: tuple[int, ...]
    again: tuple[int, ...]
    done: tuple[int, ...]
    invisible_ms: int
    attempt_id: str = ""
    client_id: str = ""

    def encode(self) -> bytes:
        """Return the framed command."""
        return _framed(
            CommandType.RECEIVE_AT,
            {
                "group": self.group,
                "topic": self.topic,
                "generation": self.generation,
                "queue": self.queue_id,
                "sql": self.sql,
                "from": self.start,
                "to": self.stop,
                "take": list(self.take),
                "again": list(self.again),
                "done": list(self.done),
                "invisible": self.invisible_ms,
                "attempt": self.attempt_id,
                "client": self.client_id,
            },
        )


@dataclass(frozen=True, slots=True)
class LeaseRef:
    """One delivered message: its position, and the receive that delivered it."""

    queue_id: int
    offset: int
    receive_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """These messages were consumed."""

    group: str
    topic: str
    leases: tuple[LeaseRef, ...]

    def encode(self) -> bytes:
        """Return the framed command."""
        return _framed(
            CommandType.ACK,
            {"group": self.group, "topic": self.topic, "leases": _rows(self.leases)},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeInvisible:
    """Make a delivered message visible *invisible_ms* from now, unless it is acked by then.

    With *suspend* the delivery does not count as an attempt.
    """

    group: str
    topic: str
    lease: LeaseRef
    invisible_ms: int
    suspend: bool = False

    def encode(self) -> bytes:
        """Return the framed command."""
        return _framed(
            CommandType.CHANGE_INVISIBLE,
            {
                "group": self.group,
                "topic": self.topic,
                "leases": _rows((self.lease,)),
                "invisible": self.invisible_ms,
                "suspend": self.suspend,
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """Keep messages that live clients have, or are still being sent, invisible for longer.

    Attributes:
        group, topic: Whose they are.
        leases: What is extended.
        invisible_ms: For how long from now on.
        arrived: Whether their clients are known to have them; else they are still under way.
    """

    group: str
    topic: str
    leases: tuple[LeaseRef, ...]
    invisible_ms: int
    arrived: bool

    def encode(self) -> bytes:
        """Return the framed command."""
        return _framed(
            CommandType.RENEW,
            {
                "group": self.group,
                "topic": self.topic,
                "leases": _rows(self.leases),
                "invisible": self.invisible_ms,
                "arrived": self.arrived,
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A client of *group* has gone: the messages renewed for it become visible now."""

    group: str
    client_id: str

    def encode(self) -> bytes:
        """Return the framed command."""
        return _framed(CommandType.RELEASE, {"group": self.group, "client": self.client_id})


@dataclass(frozen=True, slots=True, kw_only=True)
class Retain:
    """Drop the messages in entries below *before_index*, on every node."""

    before_index: int

    def encode(self) -> bytes:
        """Return the framed command."""
        return _framed(CommandType.RETAIN, {"before": self.before_index})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireGroups:
    """Delete consumer groups that were last used before *before_ms*.

    Measured by `ConsumerGroups.active_ms`, the log's time without its gaps (`active_time`).
    """

    before_ms: int

    def encode(self) -> bytes:
        """Return the framed command."""
        return _framed(CommandType.EXPIRE_GROUPS, {"before_ms": self.before_ms})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopic:
    """Delete a topic with its messages, its deliveries and its remembered message ids.

    *generation* tells topics of one name apart: a repeated command never deletes a topic that was
    created since.
    """

    name: str
    generation: int

    def encode(self) -> bytes:
        """Return the framed command."""
        return _framed(CommandType.DELETE_TOPIC, {"name": self.name, "generation": self.generation})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup:
    """Delete a consumer group with its progress; a member that returns starts a new group."""

    name: str

    def encode(self) -> bytes:
        """Return the framed command."""
        return _framed(CommandType.DELETE_GROUP, {"name": self.name})


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSecret:
    """Set the key that signs receipt handles, `SECRET_BYTES` long; only the first one counts."""

    secret: bytes = field(repr=False)

    def encode(self) -> bytes:
        """Return the framed command."""
        return _framed(CommandType.SET_SECRET, {"secret": self.secret.hex()})


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowTopic:
    """Give a topic *queues* queues in all; the new ones are empty. Does nothing if it has them."""

    name: str
    queues: int

    def encode(self) -> bytes:
        """Return the framed command."""
        return _framed(CommandType.GROW_TOPIC, {"name": self.name, "queues": self.queues})


@dataclass(frozen=True, slots=True, kw_only=True)
class Leap:
    """The log's time moved from *from_ms* to *to_ms*, the entry's own; nobody lived through that.

    Alone in its entry: whatever stood before it there would be older by the leap.
    """

    from_ms: int
    to_ms: int

    def encode(self) -> bytes:
        """Return the framed command."""
        return _framed(CommandType.LEAP, {"from": self.from_ms, "to": self.to_ms})


@dataclass(frozen=True, slots=True, kw_only=True)
class UseFilter:
    """A member of *group* waits for messages of a topic that have one of *tags*; None: for all.

    Or for what matches the expression *sql*, which is in the command only if there is one. RECEIVE
    says as much, but a poll that finds nothing proposes none.
    """

    group: str
    topic: str
    tags: tuple[str, ...] | None = None
    sql: str = ""

    def encode(self) -> bytes:
        """Return the framed command."""
        tags = None if self.tags is None else list(self.tags)
        row: dict[str, object] = {"group": self.group, "topic": self.topic, "tags": tags}
        return _framed(CommandType.USE_FILTER, row | ({"sql": self.sql} if self.sql else {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class SetRetention:
    """Keep a topic's messages for *hours* lived ones, 0: for ever; None: as long as the group's.

    None also drops what was kept for longer.
    """

    name: str
    hours: int | None

    def encode(self) -> bytes:
        """Return the framed command."""
        return _framed(CommandType.SET_RETENTION, {"name": self.name, "hours": self.hours})


@dataclass(frozen=True, slots=True, kw_only=True)
class SeekGroup:
    """A group goes on from other offsets, in queues of one topic; all its leases there end.

    Attributes:
        group: It exists.
        topic: The topic's name.
        generation: Which topic of that name.
        offsets: (queue id, the offset that is delivered next); one below what the queue keeps is
            moved up to that.
    """

    group: str
    topic: str
    generation: int
    offsets: tuple[tuple[int, int], ...]

    def encode(self) -> bytes:
        """Return the framed command."""
        return _framed(
            CommandType.SEEK_GROUP,
            {
                "group": self.group,
                "topic": self.topic,
                "generation": self.generation,
                "offsets": [list(each) for each in self.offsets],
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SetGroup:
    """Set how often a group's messages are delivered, and how long they wait after each failure.

    *retries* replaces what was set before as a whole.
    """

    name: str
    retries: Retries

    def encode(self) -> bytes:
        """Return the framed command."""
        return _framed(
            CommandType.SET_GROUP,
            {
                "name": self.name,
                "attempts": self.retries.max_attempts,
                "backoff": list(self.retries.backoff_ms),
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelHeld:
    """Cancel held messages: recall them, roll them back, or drop what a deleted topic left."""

    refs: tuple[Ref, ...]

    def encode(self) -> bytes:
        """Return the framed command."""
        return _framed(CommandType.CANCEL_HELD, {"refs": [list(ref) for ref in self.refs]})


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseHeld:
    """Let all that is held now wait for a word; the newest pause, said again, does nothing.

    *pause_id* has 1 to `MAX_PAUSE_ID` characters: a restored log has that of its restore.
    """

    pause_id: str

    def encode(self) -> bytes:
        """Return the framed command."""
        return _framed(CommandType.PAUSE_HELD, {"id": self.pause_id})


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeHeld:
    """End the pause: what waits is delivered when it is due, or *cancels* it."""

    cancels: bool

    def encode(self) -> bytes:
        """Return the framed command."""
        return _framed(CommandType.RESUME_HELD, {"cancels": self.cancels})


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckHeld:
    """Note that producers are asked now what became of these halves, before they are.

    *next_ms*: When they are to be asked next, by the group's date, Unix milliseconds.
    """

    refs: tuple[Ref, ...]
    next_ms: int

    def encode(self) -> bytes:
        """Return the framed command."""
        row = {"refs": [list(ref) for ref in self.refs], "next": self.next_ms}
        return _framed(CommandType.CHECK_HELD, row)


Command: TypeAlias = (
    CreateTopic
    | CreateGroup
    | Receive
    | ReceiveAt
    | Ack
    | ChangeInvisible
    | Renew
    | Release
    | Retain
    | ExpireGroups
    | DeleteTopic
    | DeleteGroup
    | SetSecret
    | GrowTopic
    | Leap
    | UseFilter
    | SetRetention
    | SeekGroup
    | SetGroup
    | CancelHeld
    | PauseHeld
    | ResumeHeld
    | CheckHeld
)


def decode(
    kind: int,
    payload: bytes,
    *,
    features: Features = FEATURES,
    decoders: Decoders | None = None,
) -> object:
    """Parse the payload of a frame of type *kind* (any but PRODUCE).

    Args:
        kind: The type byte.
        payload: The bytes after the type byte.
        features: What this version knows; an unknown type or field is an error, never skipped.
        decoders: The decoder of each known type; those of this module by default.

    Raises:
        UnknownCommandError: The type, or a field, is of a newer version.
        MalformedCommandError: Not JSON, or a field is missing or of the wrong type.
    """
    form = features.commands.get(kind)
    if form is None:
        raise UnknownCommandError(f"a command of type {kind}")
    try:
        row = json.loads(payload)
        if isinstance(row, dict) and (unknown := form.unknown(row.keys())):
            raise UnknownCommandError(f"{form.name} with {', '.join(map(repr, unknown))}")
        return (DECODERS if decoders is None else decoders)[kind](row)
    except UnknownCommandError:
        raise
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        if kind == CommandType.SET_SECRET:
            raise MalformedCommandError(f"command of type {kind} is no secret") from None
        raise MalformedCommandError(f"command of type {kind}: {error}: {payload[:80]!r}") from error


def _create_topic(row: _Json) -> CreateTopic:
    return CreateTopic(
        name=_text(row["name"]),
        type=_text(row["type"]),
        queues=_number(row["queues"]),
        compaction=_compaction(row["compaction"]) if "compaction" in row else None,
    )


def _compaction(value: object) -> Compaction:
    if not isinstance(value, dict):
        _wrong("an object", value)
    if unknown := sorted(value.keys() - set(_OF_COMPACTION)):
        raise UnknownCommandError(f"a compaction with {', '.join(map(repr, unknown))}")
    min_lag_ms, tombstone_ms = (_number(value[name]) for name in _OF_COMPACTION)
    return Compaction(min_lag_ms=min_lag_ms, tombstone_ms=tombstone_ms)


def _create_group(row: _Json) -> CreateGroup:
    beginning = OLDEST
    if "entry" in row or "stored" in row:
        beginning = Beginning(_number(row["entry"]), _number(row["stored"]))
    return CreateGroup(name=_text(row["name"]), beginning=beginning)


def _receive(row: _Json) -> Receive:
    return Receive(
        group=_text(row["group"]),
        topic=_text(row["topic"]),
        queue_id=_number(row["queue"]),
        any_queue=bool(row["any"]),
        limit=_number(row["limit"]),
        invisible_ms=_number(row["invisible"]),
        tags=_tags(row["tags"]),
        attempt_id=_text(row["attempt"]),
        client_id=_text(row["client"]),
    )


def _receive_at(row: _Json) -> ReceiveAt:
    start, stop, take = _number(row["from"]), _number(row["to"]), _offsets(row["take"])
    if not (0 <= start <= stop and all(start <= offset < stop for offset in take)):
        raise MalformedCommandError(f"offsets outside of [{start}, {stop})")
    if any(map(ge, take, take[1:])):
        raise MalformedCommandError("offsets that do not ascend")
    return ReceiveAt(
        group=_text(row["group"]),
        topic=_text(row["topic"]),
        generation=_number(row["generation"]),
        queue_id=_number(row["queue"]),
        sql=_sql(row["sql"]),
        start=start,
        stop=stop,
        take=take,
        again=_offsets(row["again"]),
        done=_offsets(row["done"]),
        invisible_ms=_number(row["invisible"]),
        attempt_id=_text(row["attempt"]),
        client_id=_text(row["client"]),
    )


def _ack(row: _Json) -> Ack:
    return Ack(group=_text(row["group"]), topic=_text(row["topic"]), leases=_leases(row["leases"]))


def _change_invisible(row: _Json) -> ChangeInvisible:
    (lease,) = _leases(row["leases"])
    return ChangeInvisible(
        group=_text(row["group"]),
        topic=_text(row["topic"]),
        lease=lease,
        invisible_ms=_number(row["invisible"]),
        suspend=_truth(row["suspend"]),
    )


def _renew(row: _Json) -> Renew:
    return Renew(
        group=_text(row["group"]),
        topic=_text(row["topic"]),
        leases=_leases(row["leases"]),
        invisible_ms=_number(row["invisible"]),
        arrived=_truth(row["arrived"]),
    )


def _release(row: _Json) -> Release:
    return Release(group=_text(row["group"]), client_id=_text(row["client"]))


def _retain(row: _Json) -> Retain:
    return Retain(before_index=_number(row["before"]))


def _expire_groups(row: _Json) -> ExpireGroups:
    return ExpireGroups(before_ms=_number(row["before_ms"]))


def _delete_topic(row: _Json) -> DeleteTopic:
    return DeleteTopic(name=_text(row["name"]), generation=_number(row["generation"]))


def _delete_group(row: _Json) -> DeleteGroup:
    return DeleteGroup(name=_text(row["name"]))


def _set_secret(row: _Json) -> SetSecret:
    secret = _text(row["secret"])
    if _SECRET.fullmatch(secret) is None:
        raise MalformedCommandError("not so many bytes in hexadecimal")
    return SetSecret(secret=bytes.fromhex(secret))


def _grow_topic(row: _Json) -> GrowTopic:
    return GrowTopic(name=_text(row["name"]), queues=_number(row["queues"]))


def _leap(row: _Json) -> Leap:
    return Leap(from_ms=_number(row["from"]), to_ms=_number(row["to"]))


def _use_filter(row: _Json) -> UseFilter:
    return UseFilter(
        group=_text(row["group"]),
        topic=_text(row["topic"]),
        tags=_tags(row["tags"]),
        sql=_sql(row["sql"]) if "sql" in row else "",
    )


def _set_retention(row: _Json) -> SetRetention:
    hours = row["hours"]
    return SetRetention(name=_text(row["name"]), hours=None if hours is None else _number(hours))


def _seek_group(row: _Json) -> SeekGroup:
    return SeekGroup(
        group=_text(row["group"]),
        topic=_text(row["topic"]),
        generation=_number(row["generation"]),
        offsets=tuple([_offset_in_queue(each) for each in _list(row["offsets"])]),
    )


def _set_group(row: _Json) -> SetGroup:
    backoff_ms = tuple([_number(each) for each in _list(row["backoff"])])
    retries = Retries(max_attempts=_number(row["attempts"]), backoff_ms=backoff_ms)
    return SetGroup(name=_text(row["name"]), retries=retries)


def _cancel_held(row: _Json) -> CancelHeld:
    return CancelHeld(refs=tuple([_ref(each) for each in _list(row["refs"])]))


def _pause_held(row: _Json) -> PauseHeld:
    pause_id = _text(row["id"])
    if not 0 < len(pause_id) <= MAX_PAUSE_ID:
        raise MalformedCommandError(f"a pause whose id has {len(pause_id)} characters")
    return PauseHeld(pause_id=pause_id)


def _resume_held(row: _Json) -> ResumeHeld:
    return ResumeHeld(cancels=_truth(row["cancels"]))


def _check_held(row: _Json) -> CheckHeld:
    next_ms = _number(row["next"])
    if next_ms < 0:
        raise MalformedCommandError(f"a check at {next_ms}, before 1970")
    return CheckHeld(refs=tuple([_ref(each) for each in _list(row["refs"])]), next_ms=next_ms)


Decoders: TypeAlias = Mapping[int, Callable[[_Json], object]]
DECODERS: Final[Decoders] = {
    CommandType.CREATE_TOPIC: _create_topic,
    CommandType.CREATE_GROUP: _create_group,
    CommandType.RECEIVE: _receive,
    CommandType.RECEIVE_AT: _receive_at,
    CommandType.ACK: _ack,
    CommandType.CHANGE_INVISIBLE: _change_invisible,
    CommandType.RENEW: _renew,
    CommandType.RELEASE: _release,
    CommandType.RETAIN: _retain,
    CommandType.EXPIRE_GROUPS: _expire_groups,
    CommandType.DELETE_TOPIC: _delete_topic,
    CommandType.DELETE_GROUP: _delete_group,
    CommandType.SET_SECRET: _set_secret,
    CommandType.GROW_TOPIC: _grow_topic,
    CommandType.LEAP: _leap,
    CommandType.USE_FILTER: _use_filter,
    CommandType.SET_RETENTION: _set_retention,
    CommandType.SEEK_GROUP: _seek_group,
    CommandType.SET_GROUP: _set_group,
    CommandType.CANCEL_HELD: _cancel_held,
    CommandType.PAUSE_HELD: _pause_held,
    CommandType.RESUME_HELD: _resume_held,
    CommandType.CHECK_HELD: _check_held,
}


def _framed(kind: CommandType, row: _Json) -> bytes:
    return frame(kind, json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode())


def _rows(leases: Sequence[LeaseRef]) -> list[list[int]]:
    return [[lease.queue_id, lease.offset, lease.receive_id] for lease in leases]


def _leases(value: object) -> tuple[LeaseRef, ...]:
    return tuple([LeaseRef(*map(_number, _list(row))) for row in _list(value)])


def _offset_in_queue(value: object) -> tuple[int, int]:
    queue_id, offset = map(_number, _list(value))
    return queue_id, offset


def _ref(value: object) -> Ref:
    hour, slot = map(_number, _list(value))
    if not (0 <= hour < 1 << HOUR_BITS and 0 <= slot < 1 << SLOT_BITS):
        raise MalformedCommandError(f"no message is called {hour}, {slot}")
    return Ref(hour, slot)


def _offsets(value: object) -> tuple[int, ...]:
    return tuple(map(_number, _list(value)))


def _sql(value: object) -> str:
    """Return an expression: neither empty, nor longer than its users may write it."""
    text = _text(value)
    if not 0 < len(text) <= MAX_EXPRESSION_BYTES:
        raise MalformedCommandError(f"an expression of {len(text)} characters")
    return text


def _tags(value: object) -> tuple[str, ...] | None:
    return None if value is None else tuple(map(_text, _list(value)))


def _text(value: object) -> str:
    return value if isinstance(value, str) else _wrong("text", value)


def _number(value: object) -> int:
    if type(value) is int and abs(value) < NUMBER_BOUND:
        return value
    return _wrong("a whole number of 62 bits", value)


def _truth(value: object) -> bool:
    return value if isinstance(value, bool) else _wrong("true or false", value)


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else _wrong("a list", value)


def _wrong(wanted: str, value: object) -> NoReturn:
    raise MalformedCommandError(f"{value!r} is not {wanted}")
