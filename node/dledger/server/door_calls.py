"""The client services at the door: each handler gets its call in the form that it knows.

The handlers are written for `grpc.aio`, and read their requests themselves. At the door a request
has arrived whole when its handler starts, or is a stream, and there are the same few things to ask.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final, NoReturn, TypeAlias

import grpc
import grpc.aio

from dledger.door.contract import (
    Answer,
    Arrival,
    BidiStream,
    Cancel,
    Code,
    Fail,
    Failed,
    Handler,
    Handlers,
    Headers,
    Stream,
    Unary,
    UnaryCoroutine,
)
from dledger.door_process.refusals import refused_answer
from dledger.errors import DledgerError, LeadershipLost
from dledger.link.calls_in import Resumed
from dledger.rpc.metadata import pairs
from dledger.rpc.methods import ByCallback, Methods
from dledger.rpc.requests import limit_of

_Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]
_BINARY: Final = b"-bin"
_OF_THE_TRANSPORT: Final = (b":", b"grpc-")
"""How the names of fields begin that gRPC does not show to handlers either."""


def handlers_of(services: Iterable[Methods]) -> Handlers:
    """Return the methods of all *services*, by path."""
    return {
        path: _handler(path.rpartition("/")[2], handler, service)
        for service in services
        for path, handler in service.by_path.items()
    }


def resumed_of(services: Iterable[Methods]) -> Mapping[str, Resumed]:
    """Return by path what serves calls whose batch was not carried out, or nobody knows."""
    return {
        path: _resumed(method)
        for service in services
        for path in service.by_path
        if (method := service.by_callback.get(path.rpartition("/")[2])) is not None
    }


def _handler(name: str, handler: Any, service: Methods) -> Handler:
    refusal = partial(refused_answer, name, service.refusal)
    by_callback = service.by_callback.get(name)
    if by_callback is not None:
        return Unary(
            partial(_begun, by_callback), max_request_bytes=limit_of(name), refusal=refusal
        )
    if handler.stream_unary is not None:
        return UnaryCoroutine(
            partial(_unary, handler.stream_unary),
            max_request_bytes=limit_of(name),
            refusal=refusal,
        )
    if handler.stream_stream is None:
        raise TypeError(f"{name} does not read its requests itself")
    serve = _yielded if inspect.isasyncgenfunction(handler.stream_stream) else _written
    return BidiStream(
        partial(serve, handler.stream_stream), max_request_bytes=limit_of(name), refusal=refusal
    )


def _resumed(method: ByCallback) -> Resumed:
    def resume(headers: Headers, body: bytes, answer: Answer, fail: Fail, unknown: bool) -> Cancel:
        call = _CallbackCall(method.resume, headers, body, answer, fail)
        call.resume(LeadershipLost("its batch may have been carried out") if unknown else None)
        return call.cancel

    return resume


def _begun(method: ByCallback, headers: Headers, body: bytes, answer: Answer, fail: Fail) -> Cancel:
    call = _CallbackCall(method.resume, headers, body, answer, fail)
    give_up = method.begin(call, body, answer, call.resume)
    if give_up is None:
        call.resume(None)
    else:
        call.give_up = give_up
    return call.cancel


async def _unary(serve: Any, headers: Headers, body: bytes) -> bytes:
    answer: bytes = await serve(None, _UnaryCall(headers, body))
    return answer


async def _written(serve: Any, headers: Headers, stream: Stream) -> None:
    await serve(None, _StreamCall(headers, stream))


async def _yielded(serve: Any, headers: Headers, stream: Stream) -> None:
    async with aclosing(serve(None, _StreamCall(headers, stream))) as answers:
        async for answer in answers:
            await stream.send(answer)


class _Given(Mapping[str, str | bytes]):
    """A call's metadata, decoded where it is asked for: of some twenty fields, two or three."""

    __slots__ = ("_headers",)

    def __init__(self, headers: Headers) -> None:
        self._headers = headers

    def __getitem__(self, key: str) -> str | bytes:
        value: str | bytes | None = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def get(self, key: str, default: Any = None) -> Any:
        """Return a field's last value; of one that HTTP/2 or gRPC made, the default."""
        name = key.encode()
        value = self._headers.raw(name)
        if value is None or name.startswith(_OF_THE_TRANSPORT):
            return default
        if name.endswith(_BINARY):
            return self._headers.binary(name) or b""
        return value.decode("ascii", "ignore")  # nothing else may be passed on

    def __iter__(self) -> Iterator[str]:
        names = dict.fromkeys(name for name, _ in self._headers.pairs)
        return (name.decode() for name in names if not name.startswith(_OF_THE_TRANSPORT))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _Call:
    """What our handlers use of `grpc.aio.ServicerContext`."""

    __slots__ = ("_headers",)

    def __init__(self, headers: Headers) -> None:
        self._headers = headers

    def peer(self) -> str:
        return self._headers.peer

    def invocation_metadata(self) -> Mapping[str, str | bytes]:
        return _Given(self._headers)

    def time_remaining(self) -> float | None:
        """Return the seconds until the client's deadline; None if it set none."""
        deadline_s = self._headers.deadline_s
        if deadline_s is None:
            return None
        return max(deadline_s - asyncio.get_running_loop().time(), 0.0)

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: _Metadata = ()
    ) -> NoReturn:
        """End the call. Raises Failed."""
        raise Failed(_code(code), details, pairs(trailing_metadata))


class _UnaryCall(_Call):
    """Its one message is read once."""

    __slots__ = ("_body",)

    def __init__(self, headers: Headers, body: bytes) -> None:
        super().__init__(headers)
        self._body: bytes | None = body

    async def read(self) -> Any:
        body, self._body = self._body, None
        return grpc.aio.EOF if body is None else body


class _CallbackCall(_UnaryCall):
    """It has no task until it needs one."""

    __slots__ = ("_answer", "_fail", "_resume", "give_up")
    give_up: Callable[[], object]

    def __init__(
        self,
        resume: Callable[[Any, DledgerError | None], Awaitable[bytes]],
        headers: Headers,
        body: bytes,
        answer: Answer,
        fail: Fail,
    ) -> None:
        super().__init__(headers, body)
        self._resume, self._answer, self._fail = resume, answer, fail

    def resume(self, tried: DledgerError | None) -> None:
        """Serve it by its coroutine from now on."""
        task = asyncio.get_running_loop().create_task(self._run(tried))
        _TASKS.add(task)
        task.add_done_callback(_TASKS.discard)
        self.give_up = task.cancel

    def cancel(self) -> None:
        """Stop what serves it: nobody waits for the answer."""
        self.give_up()

    async def _run(self, tried: DledgerError | None) -> None:
        try:
            self._answer(await self._resume(self, tried))
        except Failed as error:
            self._fail(error.code, error.message, error.trailers)
        except asyncio.CancelledError:
            self._fail(Code.CANCELLED, "the handler was cancelled")
            raise


_TASKS: Final[set[asyncio.Task[None]]] = set()
"""Those of all ports; the event loop alone would not keep them."""


class _StreamCall(_Call):
    __slots__ = ("_stream",)

    def __init__(self, headers: Headers, stream: Stream) -> None:
        super().__init__(headers)
        self._stream = stream

    async def read(self) -> Any:
        message = await self._stream.read()
        return grpc.aio.EOF if message is None else message

    async def write(self, message: bytes) -> None:
        await self._stream.send(message)

    def prove(self, arrival: Arrival) -> None:
        self._stream.prove(arrival)


def _code(code: grpc.StatusCode) -> Code:
    return Code(code.value[0])
