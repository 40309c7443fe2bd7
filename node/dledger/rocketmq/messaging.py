"""``apache.rocketmq.v2.MessagingService``: takes raw bytes, calls the part that serves the method.

Every call gets its response, or a status with a code and a message. Methods that this version does
not have get NOT_IMPLEMENTED with the method's name. Built by `server.gateway`, one per port.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import grpc

from dledger.calls.caller import Caller
from dledger.errors import DledgerError, NotLeader, Unavailable, Unsupported
from dledger.requests.context import RequestContext
from dledger.rocketmq.acking import Acker
from dledger.rocketmq.callbacks import CallbackMethod, CallbackPort, Submit
from dledger.rocketmq.client_registry import ClientRegistry
from dledger.rocketmq.polls import HeldPolls
from dledger.rocketmq.receiving import Receiver, nothing_new
from dledger.rocketmq.refused import refused_response
from dledger.rocketmq.routes import Router
from dledger.rocketmq.sending import Sender
from dledger.rocketmq.telemetry import Telemetry
from dledger.rpc.methods import ByCallback, Methods
from dledger.rpc.requests import parsed
from dledger.rpc.rocketmq_stubs import SERVICE_NAME, service
from dledger.rpc.status import Relayed, abort, bug, code_name

logger = logging.getLogger(__name__)

_Serve: TypeAlias = Callable[[Any, Caller], Awaitable[Any]]
_RECEIVE: Final = "ReceiveMessage"
_LATER_UNARY: Final = (
    "ForwardMessageToDeadLetterQueue",
    "UpdateOffset",
    "GetOffset",
    "QueryOffset",
    "EndTransaction",
    "RecallMessage",
    "SyncLiteSubscription",
)
_LATER_STREAM: Final = ("PullMessage",)
_RETRY_S: Final = 0.1
_T = TypeVar("_T")
_RELAYED_BYTES: Final = 1 << 20
"""Room reserved for the messages of one relayed response; few responses are larger."""
_USUAL_POLL_BYTES: Final = 1 << 10


@dataclass(frozen=True, slots=True)
class _Method:
    """How one unary method is served.

    Attributes:
        name: Its name.
        serve: Serves it on the leader.
        here: Whether this node may answer a request although it does not lead.
        submit: Submits its command on the leader without awaiting anything, or returns None.
    """

    name: str
    serve: _Serve
    here: Callable[[Any], bool] | None = None
    submit: Submit | None = None

    @property
    def path(self) -> str:
        return f"/{SERVICE_NAME}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagingParts:
    """The objects that serve the methods: one of each per node, shared by its ports."""

    router: Router
    clients: ClientRegistry
    sender: Sender
    acker: Acker
    receiver: Receiver
    telemetry: Telemetry
    polls: HeldPolls


class MessagingHandlers:
    """The service at one port of a node. It counts the responses made on this node."""

    def __init__(
        self, context: RequestContext, parts: MessagingParts, *, tls: bool, peer_port: bool
    ) -> None:
        self._context, self._parts = context, parts
        self._tls, self._peer_port = tls, peer_port
        self._admission = context.intake_of(peer_port=peer_port)
        here = parts.router.is_known
        self._methods = (
            _Method("QueryRoute", parts.router.route, here),
            _Method("QueryAssignment", parts.router.assignment, here),
            _Method("Heartbeat", parts.clients.heartbeat),
            _Method("SendMessage", parts.sender.send, submit=parts.sender.begin),
            _Method("AckMessage", parts.acker.ack, submit=parts.acker.begin_ack),
            _Method(
                "ChangeInvisibleDuration",
                parts.acker.change_invisible,
                submit=parts.acker.begin_change,
            ),
            _Method("NotifyClientTermination", parts.clients.terminate),
        )

    def generic_handler(self) -> Methods:
        """Return the handler to add to a server."""
        handlers = {
            method.name: grpc.stream_unary_rpc_method_handler(self._unary(method))
            for method in self._methods
        }
        handlers[_RECEIVE] = grpc.stream_stream_rpc_method_handler(self._receive)
        handlers["Telemetry"] = grpc.stream_stream_rpc_method_handler(self._parts.telemetry.serve)
        for name in _LATER_UNARY:
            handlers[name] = grpc.stream_unary_rpc_method_handler(self._later_unary(name))
        for name in _LATER_STREAM:
            handlers[name] = grpc.stream_stream_rpc_method_handler(self._later_stream(name))
        return Methods(
            SERVICE_NAME,
            handlers,
            refusal=self._failed,
            by_callback=self._by_callback(),
        )

    def _unary(self, method: _Method) -> Callable[[Any, Any], Awaitable[bytes]]:
        async def handle(_: Any, context: Any) -> bytes:
            return await self._served(method, context)

        return handle

    def _by_callback(self) -> Mapping[str, ByCallback]:
        port = CallbackPort(
            context=self._context,
            admission=self._admission,
            clients=self._parts.clients,
            caller=self._caller,
            answer=self._answer,
            failed=self._failed,
        )
        return {
            method.name: ByCallback(
                CallbackMethod(
                    port, method.name, method.path, _kind(method.name), method.submit
                ).begin,
                partial(self._served, method),
            )
            for method in self._methods
            if method.submit is not None
        }

    async def _served(
        self, method: _Method, context: Any, tried: DledgerError | None = None
    ) -> bytes:
        """Return the response; *tried* is how a first attempt failed, if there was one."""
        caller = self._caller(context)
        try:
            async with self._admission.request(context, method.name) as raw:
                attempt: Callable[[], Awaitable[bytes]]
                attempt = partial(self._unary_once, method, raw, caller)
                if tried is not None:
                    attempt = _after(tried, attempt)
                return await self._context.relay.run(caller, len(raw), attempt)
        except DledgerError as error:
            await self._abort_if_relayed(context, caller, error)
            return self._failed(method.name, error)
        except Exception as error:
            logger.exception("group %s: %s failed", self._context.engine.group, method.name)
            return self._failed(method.name, bug(error))

    async def _unary_once(self, method: _Method, raw: bytes, caller: Caller) -> bytes:
        context = self._context
        leads = context.engine.is_leader()
        if leads or method.here is not None:
            request = _parsed(method.name, raw)
            if leads or (method.here is not None and method.here(request)):
                self._parts.clients.seen(caller)
                context.locality.note(caller.through)
                return self._answer(method.name, await method.serve(request, caller))
        return await context.relay.unary(method.path, raw, caller)

    async def _receive(self, _: Any, context: Any) -> None:
        caller = self._caller(context)
        started = False
        try:
            async with self._admission.request(context, _RECEIVE) as raw:
                kept = _kept(raw)
            del raw
            with self._parts.polls.held(caller.connection, len(kept)):
                async with aclosing(self._receive_held(kept, caller)) as responses:
                    async for response in responses:
                        started = True
                        await context.write(response)
        except DledgerError as error:
            await self._abort_if_relayed(context, caller, error, started=started)
            await context.write(self._failed(_RECEIVE, error))
        except Exception as error:
            logger.exception("group %s: %s failed", self._context.engine.group, _RECEIVE)
            await self._abort_if_relayed(context, caller, bug(error), started=started)
            await context.write(self._failed(_RECEIVE, bug(error)))

    async def _receive_held(self, raw: bytes, caller: Caller) -> AsyncGenerator[bytes]:
        """Retry while no leader can answer, but not after part of a response was sent.

        A client that gets an empty response never repeats its attempt. So a node that is shutting
        down sends one only if it knows that the log delivered nothing for this attempt.
        """
        started = in_doubt = False
        while True:
            try:
                async with aclosing(self._receive_once(raw, caller)) as responses:
                    async for response in responses:
                        started = True
                        yield response
                return
            except Unavailable as error:
                in_doubt |= not isinstance(error, NotLeader)
                if started or caller.forwarded or caller.remaining_s() <= 0:
                    raise
                if in_doubt and self._context.queue_followers.closed:
                    raise
            if self._context.queue_followers.closed:
                yield self._answer(_RECEIVE, nothing_new())
                return
            await self._context.relay.pause(caller, _RETRY_S)

    async def _receive_once(self, raw: bytes, caller: Caller) -> AsyncGenerator[bytes]:
        context = self._context
        if context.engine.is_leader():
            self._parts.clients.seen(caller)
            context.locality.note(caller.through)
            answers = self._parts.receiver.receive(_parsed(_RECEIVE, raw), caller)
            async with aclosing(answers) as responses:
                async for response in responses:
                    if response.HasField("status"):
                        yield self._answer(_RECEIVE, response)
                    else:
                        yield bytes(response.SerializeToString())
            return
        path = f"/{SERVICE_NAME}/{_RECEIVE}"
        async with aclosing(context.relay.stream(path, raw, caller)) as relayed:
            async for answer in relayed:  # the first tells whether there is anything
                yield answer
                break
            async with context.outflow.room(caller.connection, _RELAYED_BYTES):
                async for answer in relayed:
                    yield answer

    def _answer(self, method: str, response: Any) -> bytes:
        self._context.metrics.requests.answered(method, code_name(response.status.code))
        return bytes(response.SerializeToString())

    def _failed(self, method: str, error: DledgerError) -> bytes:
        return self._answer(method, refused_response(method, error))

    def _later_unary(self, method: str) -> Callable[[Any, Any], Awaitable[bytes]]:
        async def handle(_: Any, context: Any) -> bytes:
            del context  # and what it carries is not read
            return self._failed(method, _later(method))

        return handle

    def _later_stream(self, method: str) -> Callable[[Any, Any], Awaitable[None]]:
        async def handle(_: Any, context: Any) -> None:
            await context.write(self._failed(method, _later(method)))

        return handle

    def _caller(self, context: Any) -> Caller:
        return Caller.of(
            context,
            tls=self._tls,
            peer_port=self._peer_port,
            runs_telemetry=self._parts.telemetry.runs_on,
        )

    async def _abort_if_relayed(
        self, context: Any, caller: Caller, error: DledgerError, *, started: bool = False
    ) -> None:
        """Abort the call of a follower, which must see errors to retry; clients get a status."""
        again = caller.forwarded and isinstance(error, Unavailable)
        if started or again or isinstance(error, Relayed):
            await abort(context, error)


def _parsed(name: str, raw: bytes) -> Any:
    return parsed(_kind(name), raw)


def _kind(name: str) -> Any:
    return getattr(service, f"{name}Request")


def _after(
    tried: DledgerError, attempt: Callable[[], Awaitable[_T]]
) -> Callable[[], Awaitable[_T]]:
    """Return *attempt*, whose first run is the one that failed with *tried*."""
    failed = [tried]

    async def again() -> _T:
        if failed:
            raise failed.pop()
        return await attempt()

    return again


def _kept(raw: bytes) -> bytes:
    """Return what is kept of a poll until it is answered: the request without unknown fields."""
    if len(raw) <= _USUAL_POLL_BYTES:
        return raw
    request = _parsed(_RECEIVE, raw)
    request.DiscardUnknownFields()
    return bytes(request.SerializeToString())


def _later(method: str) -> DledgerError:
    return Unsupported(f"{method} is not implemented yet")
