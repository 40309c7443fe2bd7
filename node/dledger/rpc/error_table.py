"""The table of errors on the wire: the codes of each class, and how a client restores it.

`rpc.status` encodes errors by it, `rpc.channel` decodes them. A node names the class of its error
in trailing metadata (``dledger-error``), because many classes share a gRPC code, and there sends
what the class holds besides its message (``dledger-error-argument``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, TypeVar

from grpc import StatusCode

from dledger import errors
from dledger.errors import DledgerError
from dledger.types import NodeId

_Illegal = TypeVar("_Illegal", errors.IllegalKey, errors.IllegalGroup)

ERROR_KEY: Final = "dledger-error"
ARGUMENT_KEY: Final = "dledger-error-argument"

TRANSIENT: Final = frozenset(
    {
        StatusCode.UNAVAILABLE,
        StatusCode.DEADLINE_EXCEEDED,
        StatusCode.ABORTED,
        StatusCode.CANCELLED,
    }
)
"""gRPC's own codes for errors that are not the request's fault."""

_ROWS_TOLD: Final = 256
"""The maximum number of rows that a status names: gRPC allows 8 KiB of metadata."""
_LONGEST_ARGUMENT: Final = 2048


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """How one class of errors is sent.

    Attributes:
        rocketmq: The name of its code in ``apache.rocketmq.v2.Code``.
        grpc: Its gRPC code.
        restore: Restores it in the client, from its class, message and argument. None: clients
            have no use for the class, and get the error of the gRPC code (`error_of_code`).
        argument: Returns what it holds besides the message.
    """

    rocketmq: str
    grpc: StatusCode
    restore: Callable[[Any, str, str], DledgerError] | None = None
    argument: Callable[[Any], object] = lambda _: ""


def _same(kind: Callable[[str], DledgerError], sentence: str, _: str) -> DledgerError:
    return kind(sentence)


def _by_argument(kind: Callable[[str], DledgerError], _: str, argument: str) -> DledgerError:
    return kind(argument)


def _of_topic(kind: type[errors.UnknownTopic], sentence: str, topic: str) -> errors.UnknownTopic:
    """Return the error as the node said it: it names a node that can be asked."""
    error = kind(topic)
    error.args = (sentence,)
    return error


def _illegal(kind: type[_Illegal], sentence: str, _: str) -> _Illegal:
    error = kind("", "")
    error.args = (sentence,)
    return error


def _several_queues(
    kind: type[errors.SeveralQueues], sentence: str, queues: str
) -> errors.SeveralQueues:
    return kind(sentence, queues=int(queues) if queues.isdecimal() else 0)


def _told_rows(error: errors.MessageIdConflict) -> str:
    return ",".join(map(str, error.rows)) if len(error.rows) <= _ROWS_TOLD else ""


def _corrupt_record(error: errors.CorruptRecord) -> str:
    """Return segment, offset and reason, so that clients need not parse the message."""
    return f"{error.segment} {error.offset} {error.reason}"[:_LONGEST_ARGUMENT]


def _conflict(
    kind: type[errors.MessageIdConflict], sentence: str, listed: str
) -> errors.MessageIdConflict:
    rows = [int(number) for number in listed.split(",") if number.isdecimal()]
    return kind(sentence, rows=rows)


TABLE: Final[dict[type[DledgerError], ErrorRow]] = {
    errors.Refused: ErrorRow("BAD_REQUEST", StatusCode.FAILED_PRECONDITION, _same),
    errors.InvalidArgument: ErrorRow("BAD_REQUEST", StatusCode.INVALID_ARGUMENT, _same),
    errors.LimitReached: ErrorRow("BAD_REQUEST", StatusCode.INVALID_ARGUMENT, _same),
    errors.FilterInUse: ErrorRow("ILLEGAL_FILTER_EXPRESSION", StatusCode.INVALID_ARGUMENT, _same),
    errors.IllegalKey: ErrorRow("ILLEGAL_MESSAGE_KEY", StatusCode.INVALID_ARGUMENT, _illegal),
    errors.IllegalGroup: ErrorRow("ILLEGAL_MESSAGE_GROUP", StatusCode.INVALID_ARGUMENT, _illegal),
    errors.SeveralQueues: ErrorRow(
        "BAD_REQUEST", StatusCode.INVALID_ARGUMENT, _several_queues, attrgetter("queues")
    ),
    errors.Unsupported: ErrorRow("NOT_IMPLEMENTED", StatusCode.UNIMPLEMENTED),
    errors.UnknownTopic: ErrorRow(
        "TOPIC_NOT_FOUND", StatusCode.NOT_FOUND, _of_topic, attrgetter("topic")
    ),
    errors.TopicMadeAnew: ErrorRow(
        "TOPIC_NOT_FOUND", StatusCode.NOT_FOUND, _of_topic, attrgetter("topic")
    ),
    errors.UnknownGroup: ErrorRow(
        "CONSUMER_GROUP_NOT_FOUND", StatusCode.NOT_FOUND, _by_argument, attrgetter("group")
    ),
    errors.TopicTypeMismatch: ErrorRow(
        "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE", StatusCode.FAILED_PRECONDITION
    ),
    errors.InvalidReceiptHandle: ErrorRow("INVALID_RECEIPT_HANDLE", StatusCode.INVALID_ARGUMENT),
    errors.MessageIdConflict: ErrorRow(
        "ILLEGAL_MESSAGE_ID", StatusCode.ALREADY_EXISTS, _conflict, _told_rows
    ),
    errors.AlreadyBootstrapped: ErrorRow(
        "BAD_REQUEST", StatusCode.ALREADY_EXISTS, _by_argument, attrgetter("group_id")
    ),
    errors.OffsetOutOfRange: ErrorRow("ILLEGAL_OFFSET", StatusCode.OUT_OF_RANGE),
    errors.EntryDropped: ErrorRow("ILLEGAL_OFFSET", StatusCode.OUT_OF_RANGE, _same),
    errors.Unavailable: ErrorRow("HA_NOT_AVAILABLE", StatusCode.UNAVAILABLE, _same),
    errors.OutcomeUnknown: ErrorRow("HA_NOT_AVAILABLE", StatusCode.UNAVAILABLE, _same),
    errors.NotLeader: ErrorRow(
        "HA_NOT_AVAILABLE",
        StatusCode.UNAVAILABLE,
        lambda kind, _, leader: kind(NodeId(leader) if leader else None),
        attrgetter("leader"),
    ),
    errors.NotJoined: ErrorRow("HA_NOT_AVAILABLE", StatusCode.UNAVAILABLE, lambda kind, *_: kind()),
    # TOO_MANY_REQUESTS makes SDKs give up at once: only real overload says it, never an election.
    errors.Overloaded: ErrorRow("TOO_MANY_REQUESTS", StatusCode.RESOURCE_EXHAUSTED, _same),
    errors.RateLimited: ErrorRow("TOO_MANY_REQUESTS", StatusCode.RESOURCE_EXHAUSTED, _same),
    # The only INTERNAL_SERVER_ERROR, so that it can be told from a bug (INTERNAL_ERROR).
    errors.DiskFull: ErrorRow("INTERNAL_SERVER_ERROR", StatusCode.RESOURCE_EXHAUSTED, _same),
    errors.FeatureNotReady: ErrorRow("VERSION_UNSUPPORTED", StatusCode.FAILED_PRECONDITION, _same),
    errors.CorruptRecord: ErrorRow("INTERNAL_ERROR", StatusCode.INTERNAL, argument=_corrupt_record),
    DledgerError: ErrorRow("INTERNAL_ERROR", StatusCode.INTERNAL),
}
"""An error has the row of its class, or of the nearest base class that has one."""

_BY_NAME: Final = {kind.__name__: kind for kind in TABLE}


def row_of(error: DledgerError) -> ErrorRow:
    """Return the row of *error*."""
    return next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)


def argument_of(error: DledgerError) -> str:
    """Return what *error* holds besides its message, as characters that metadata allows."""
    value = str(row_of(error).argument(error) or "")
    return "".join(c if " " <= c <= "~" else "?" for c in value)  # what gRPC allows


def error_named(name: str, sentence: str, argument: str) -> DledgerError | None:
    """Return the error that a node named; None if only its gRPC code counts."""
    kind = _BY_NAME.get(name)
    restore = TABLE[kind].restore if kind else None
    return restore(kind, sentence, argument) if restore else None


def error_of_code(code: StatusCode, sentence: str) -> DledgerError:
    """Return the error for a gRPC code without a name, as from a proxy or gRPC itself."""
    if code in (StatusCode.INVALID_ARGUMENT, StatusCode.OUT_OF_RANGE):
        return errors.InvalidArgument(sentence)
    if code is StatusCode.RESOURCE_EXHAUSTED:
        return errors.Overloaded(sentence)
    if code is StatusCode.INTERNAL:
        return DledgerError(sentence)  # the node's fault, its disk or a bug; not the request's
    return errors.Unavailable(sentence) if code in TRANSIENT else errors.Refused(sentence)
