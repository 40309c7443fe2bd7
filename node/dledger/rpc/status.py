"""Turns our errors into RocketMQ statuses and gRPC statuses, by `error_table`.

Used by every service, and by nodes that forward requests to the leader.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, NoReturn

import grpc
import grpc.aio

from dledger import errors
from dledger.errors import DledgerError, Refused
from dledger.rpc.error_table import ARGUMENT_KEY, ERROR_KEY, TRANSIENT, argument_of, row_of
from dledger.rpc.metadata import by_key
from dledger.rpc.rocketmq_stubs import definition

Code = definition.Code


class Rejected(Refused):
    """A request breaks a rule of the RocketMQ protocol; *code* is the protocol's code for it."""

    def __init__(self, code: Code.ValueType, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class Relayed(DledgerError):
    """The leader's gRPC status, to be returned to the caller unchanged."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        super().__init__(f"{error.code().name}: {error.details()}")
        self.error = error


def code_of(error: DledgerError) -> Code.ValueType:
    """Return the RocketMQ code for *error*."""
    return error.code if isinstance(error, Rejected) else _CODES[row_of(error).rocketmq]


def code_name(code: int) -> str:
    """Return a RocketMQ code's name, such as ``OK``."""
    return _NAMES[code]


def grpc_code_of(error: DledgerError) -> grpc.StatusCode:
    """Return the gRPC code for *error*."""
    return error.error.code() if isinstance(error, Relayed) else row_of(error).grpc


def status_of(error: DledgerError) -> definition.Status:
    """Return the RocketMQ ``Status`` for *error*: its code and its message."""
    return definition.Status(code=code_of(error), message=str(error))


_CODES: Final[dict[str, Code.ValueType]] = dict(Code.items())
_NAMES: Final[dict[int, str]] = {code: name for name, code in _CODES.items()}
_OK: Final = definition.Status(code=Code.OK, message="OK")


def ok() -> definition.Status:
    """Return the RocketMQ ``Status`` of success, which is shared: copy it, do not change it."""
    return _OK


async def abort(context: grpc.aio.ServicerContext[bytes, bytes], error: DledgerError) -> NoReturn:
    """End a gRPC call with *error*, as `ending` has it.

    gRPC keeps the exception that ends a call alive until the next garbage collection. So its
    traceback is cleared here: the frames in it hold the request.
    """
    code, details, metadata = ending(error)
    forget_frames(error)
    forget_frames(sys.exception())
    await context.abort(code, details, trailing_metadata=metadata)
    raise AssertionError("abort returned")


def ending(error: DledgerError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str | bytes], ...]]:
    """Return how a gRPC call ends with *error*: code, message, and its class as trailing metadata.

    The client restores the error by `channel.error_of`.
    """
    if isinstance(error, Relayed):
        metadata = tuple(error.error.trailing_metadata() or ())
        return error.error.code(), error.error.details() or "", metadata
    named = ((ERROR_KEY, type(error).__name__), (ARGUMENT_KEY, argument_of(error)))
    return row_of(error).grpc, str(error), named


def forget_frames(error: BaseException | None) -> None:
    """Clear the tracebacks of an error that is kept; the frames in them hold the request.

    If one of these frames holds the error in its turn, all of it stays until the next garbage
    collection, which is minutes away.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def from_rpc(error: grpc.aio.AioRpcError) -> DledgerError:
    """Return the error of a failed call to the leader.

    It is Unavailable, Overloaded, NotTaken or FaultyEntry if the call may be retried; RateLimited
    or DiskFull, which say that nothing was done, and so are no answer behind an attempt that may
    have been; else `Relayed`.
    """
    name, said = by_key(error.trailing_metadata()).get(ERROR_KEY, ""), error.details() or ""
    if name in _AS_SAID:
        return _AS_SAID[name](said)
    sentence = f"the leader did not answer ({error.code().name}): {said}"
    if name in _RETRIED:
        return _RETRIED[name](sentence)
    if error.code() in TRANSIENT or error.code() is grpc.StatusCode.UNKNOWN:
        return errors.Unavailable(sentence)
    return Relayed(error)


def _faulty(said: str) -> errors.FaultyEntry:
    """Return what the leader says of an entry on its disk, in its words."""
    error = errors.FaultyEntry(0)
    error.args = (said,)
    return error


_AS_SAID: Final[dict[str, Callable[[str], DledgerError]]] = {
    errors.RateLimited.__name__: errors.RateLimited,
    errors.DiskFull.__name__: errors.DiskFull,
    errors.FaultyEntry.__name__: _faulty,
}
_RETRIED: Final[dict[str, Callable[[str], DledgerError]]] = {
    errors.Overloaded.__name__: errors.Overloaded,
    errors.NotTaken.__name__: errors.NotTaken,
}


def bug(error: BaseException) -> DledgerError:
    """Return the error that a caller gets for a bug of ours; the details are in the log."""
    return DledgerError(f"internal error of the node ({type(error).__name__}); see its log")
