"""The one table from our errors to what callers are told: RocketMQ codes and gRPC codes."""

from __future__ import annotations

import sys
from typing import Any, Final, NoReturn

import grpc
import grpc.aio

from dledger import errors
from dledger.errors import DledgerError, Refused
from dledger.rpc.metadata import by_key
from dledger.rpc.rocketmq_stubs import definition

Code: Final[Any] = definition.Code
_Grpc = grpc.StatusCode
ERROR_KEY: Final = "dledger-error"
ARGUMENT_KEY: Final = "dledger-error-argument"

_TABLE: Final[dict[type[DledgerError], tuple[int, grpc.StatusCode]]] = {
    errors.Refused: (Code.BAD_REQUEST, _Grpc.FAILED_PRECONDITION),
    errors.InvalidArgument: (Code.BAD_REQUEST, _Grpc.INVALID_ARGUMENT),
    errors.Unsupported: (Code.NOT_IMPLEMENTED, _Grpc.UNIMPLEMENTED),
    errors.UnknownTopic: (Code.TOPIC_NOT_FOUND, _Grpc.NOT_FOUND),
    errors.UnknownGroup: (Code.CONSUMER_GROUP_NOT_FOUND, _Grpc.NOT_FOUND),
    errors.TopicTypeMismatch: (Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, _Grpc.FAILED_PRECONDITION),
    errors.InvalidReceiptHandle: (Code.INVALID_RECEIPT_HANDLE, _Grpc.INVALID_ARGUMENT),
    errors.MessageIdConflict: (Code.ILLEGAL_MESSAGE_ID, _Grpc.ALREADY_EXISTS),
    errors.AlreadyBootstrapped: (Code.BAD_REQUEST, _Grpc.ALREADY_EXISTS),
    errors.OffsetOutOfRange: (Code.ILLEGAL_OFFSET, _Grpc.OUT_OF_RANGE),
    errors.Unavailable: (Code.HA_NOT_AVAILABLE, _Grpc.UNAVAILABLE),
    errors.Overloaded: (Code.TOO_MANY_REQUESTS, _Grpc.RESOURCE_EXHAUSTED),
    errors.RateLimited: (Code.TOO_MANY_REQUESTS, _Grpc.RESOURCE_EXHAUSTED),
    errors.DiskFull: (Code.INTERNAL_SERVER_ERROR, _Grpc.RESOURCE_EXHAUSTED),
    errors.FeatureNotReady: (Code.VERSION_UNSUPPORTED, _Grpc.FAILED_PRECONDITION),
    errors.DledgerError: (Code.INTERNAL_ERROR, _Grpc.INTERNAL),
}
"""The nearest class of an error's own line of ancestors counts.

A full disk is the only INTERNAL_SERVER_ERROR, so that it can be told from a bug (INTERNAL_ERROR).
TOO_MANY_REQUESTS makes SDKs give up at once, so only real overload says it, never an election.
"""


_ROWS_TOLD: Final = 256
"""Rows that a status names at most: gRPC takes 8 KiB of metadata."""
_LONGEST_ARGUMENT: Final = 2048


class Rejected(Refused):
    """A request that breaks a rule of the RocketMQ protocol, with that protocol's code for it."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class Relayed(DledgerError):
    """The leader's own gRPC status, to be passed to the caller as it is."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        super().__init__(f"{error.code().name}: {error.details()}")
        self.error = error


def code_of(error: DledgerError) -> int:
    """Return the RocketMQ code for *error*."""
    return error.code if isinstance(error, Rejected) else _row(error)[0]


def code_name(code: int) -> str:
    """Return a RocketMQ code's name, such as ``OK``."""
    return _NAMES[code]


def grpc_code_of(error: DledgerError) -> grpc.StatusCode:
    """Return the gRPC code for *error*."""
    return error.error.code() if isinstance(error, Relayed) else _row(error)[1]


def status_of(error: DledgerError) -> Any:
    """Return the RocketMQ ``Status`` for *error*: its code and its sentence."""
    return definition.Status(code=code_of(error), message=str(error))


_NAMES: Final[dict[int, str]] = {code: name for name, code in Code.items()}
_OK: Final[Any] = definition.Status(code=Code.OK, message="OK")


def ok() -> Any:
    """Return the RocketMQ ``Status`` of success; to be copied into a response, not changed."""
    return _OK


async def abort(context: Any, error: DledgerError, *more: tuple[str, str]) -> NoReturn:
    """End a gRPC call with *error*: its code, its sentence, and its name in the trailing metadata.

    *more* is further metadata. gRPC keeps what ends a call until the garbage collector comes by, so
    the frames that *error* passed, with the request in them, are let go here.

    `client.error_of` makes the same error of it on the other side.
    """
    if isinstance(error, Relayed):
        code, details = error.error.code(), error.error.details() or ""
        metadata = tuple(error.error.trailing_metadata() or ())
    else:
        code, details = _row(error)[1], str(error)
        metadata = ((ERROR_KEY, type(error).__name__), (ARGUMENT_KEY, _argument(error)))
    _forget_frames(error)
    _forget_frames(sys.exception())
    await context.abort(code, details, trailing_metadata=(*metadata, *more))
    raise AssertionError("abort returned")


def _forget_frames(error: BaseException | None) -> None:
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def from_rpc(error: grpc.aio.AioRpcError) -> DledgerError:
    """Return what a failed call to the leader means here.

    Unavailable and its kin are for the caller of this to wait out; the rest is `Relayed`.
    """
    name = by_key(error.trailing_metadata()).get(ERROR_KEY)
    sentence = f"the leader did not answer ({error.code().name}): {error.details()}"
    if name == errors.Overloaded.__name__:
        return errors.Overloaded(sentence)
    if error.code() in _TRANSIENT:
        return errors.Unavailable(sentence)
    return Relayed(error)


_TRANSIENT = frozenset(
    {_Grpc.UNAVAILABLE, _Grpc.DEADLINE_EXCEEDED, _Grpc.ABORTED, _Grpc.CANCELLED, _Grpc.UNKNOWN}
)


def bug(error: BaseException) -> DledgerError:
    """Return what a caller is told of an error that is our own; the details are in the log."""
    return DledgerError(f"internal error of the node ({type(error).__name__}); see its log")


def _row(error: DledgerError) -> tuple[int, grpc.StatusCode]:
    return next(_TABLE[cls] for cls in type(error).__mro__ if cls in _TABLE)


def _argument(error: DledgerError) -> str:
    if isinstance(error, errors.MessageIdConflict):
        return ",".join(map(str, error.rows)) if len(error.rows) <= _ROWS_TOLD else ""
    if isinstance(error, errors.CorruptRecord):
        return _printable(f"{error.segment} {error.offset} {error.reason}"[:_LONGEST_ARGUMENT])
    fields = ("group_id", "leader", "topic", "group")
    value = next((getattr(error, field) for field in fields if hasattr(error, field)), None)
    return _printable(str(value or ""))


def _printable(text: str) -> str:
    """Return *text* as gRPC lets metadata be: other characters would fail the call."""
    return "".join(c if " " <= c <= "~" else "?" for c in text)
