"""``apache.rocketmq.v2.MessagingService``: the part that serves each method, as rows of `calls`.

Every call gets its response, or a status with a code and a message. Methods that this version does
not have get NOT_IMPLEMENTED with the method's name. Built by `server.wiring`, one per port.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeVar

from dledger.calls.caller import Caller
from dledger.calls.method import AnyMethod, Ended, Method, Submitted
from dledger.calls.pipeline import Pipeline
from dledger.calls.service import Service
from dledger.common.backoff import Backoff
from dledger.door.contract import REPLAY_FIELD, Rest, Stream
from dledger.errors import (
    DledgerError,
    FaultyEntry,
    NotLeader,
    NotTaken,
    Unavailable,
    Unsupported,
)
from dledger.requests.context import RequestContext
from dledger.rocketmq.acking import Acker
from dledger.rocketmq.client_registry import ClientRegistry
from dledger.rocketmq.dead_letters import DeadLetters
from dledger.rocketmq.half_checks import HalfChecks
from dledger.rocketmq.offsets import Offsets
from dledger.rocketmq.polls import HeldPolls
from dledger.rocketmq.pulling import Puller
from dledger.rocketmq.recalling import Recaller
from dledger.rocketmq.receiving import Receiver, nothing_new
from dledger.rocketmq.refused import refused_response
from dledger.rocketmq.routes import Router
from dledger.rocketmq.sending import Sender
from dledger.rocketmq.telemetry import Telemetry
from dledger.rocketmq.transactions import TransactionEnds
from dledger.rocketmq.waiting_room import Poll, WaitingRoom
from dledger.rpc.requests import parsed
from dledger.rpc.rocketmq_stubs import SERVICE_NAME, definition, service
from dledger.rpc.status import code_name


class _Answer(Protocol):
    """A response of the service."""

    @property
    def status(self) -> definition.Status: ...

    def SerializeToString(self) -> bytes: ...


_Q = TypeVar("_Q")
_A = TypeVar("_A", bound=_Answer)
_RECEIVE: Final = "ReceiveMessage"
_PULL: Final = "PullMessage"
_LATER: Final = ("SyncLiteSubscription",)
_RETRY_S: Final = 0.1
_RETRY_MAX_S: Final = 1.6
"""Between looks for a leader; a change of it is told at once."""
_MESSAGES_FROM: Final = 2
"""The number of the answer to a poll from which on there are messages."""
_RELAYED_BYTES: Final = 1 << 20
"""Room reserved for the messages of one relayed response; few responses are larger."""
_USUAL_POLL_BYTES: Final = 1 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagingParts:
    """The objects that serve the methods: one of each per node, shared by its ports."""

    router: Router
    clients: ClientRegistry
    sender: Sender
    acker: Acker
    receiver: Receiver
    offsets: Offsets
    puller: Puller
    dead_letters: DeadLetters
    recaller: Recaller
    ends: TransactionEnds
    checks: HalfChecks
    telemetry: Telemetry
    polls: HeldPolls
    room: WaitingRoom


class MessagingHandlers:
    """The service at one port of a node.

    Attributes:
        pipeline: The way of its requests.
        parts: What serves them.
    """

    def __init__(
        self, context: RequestContext, parts: MessagingParts, *, tls: bool, peer_port: bool
    ) -> None:
        self._context, self.parts = context, parts
        self.pipeline: Pipeline = context.pipeline(
            tls=tls,
            peer_port=peer_port,
            note=self._note,
            runs_telemetry=parts.telemetry.runs_on,
        )
        self._receiving: AnyMethod = messaging_method(_RECEIVE, stream=self._receive)
        self._pulling: AnyMethod = messaging_method(_PULL, stream=self._pull)

    def service(self) -> Service:
        """Return its methods."""
        router, clients = self.parts.router, self.parts.clients
        sender, acker, offsets = self.parts.sender, self.parts.acker, self.parts.offsets
        here = router.is_known
        return Service(
            self.pipeline,
            [
                messaging_method("QueryRoute", serve=router.route, here=here),
                messaging_method("QueryAssignment", serve=router.assignment, here=here),
                messaging_method("Heartbeat", serve=clients.heartbeat),
                messaging_method(
                    "SendMessage",
                    serve=sender.send,
                    submit=sender.begin,
                    served_with=REPLAY_FIELD,
                    messages=_messages,
                ),
                messaging_method("AckMessage", submit=acker.begin_ack),
                messaging_method("ChangeInvisibleDuration", submit=acker.begin_change),
                messaging_method(
                    "ForwardMessageToDeadLetterQueue", serve=self.parts.dead_letters.forward
                ),
                messaging_method("RecallMessage", serve=self.parts.recaller.recall),
                messaging_method("EndTransaction", serve=self.parts.ends.end),
                messaging_method("NotifyClientTermination", serve=clients.terminate),
                messaging_method("Telemetry", stream=self.parts.telemetry.serve),
                self._receiving,
                self._pulling,
                messaging_method("GetOffset", serve=offsets.get),
                messaging_method("UpdateOffset", serve=offsets.update),
                messaging_method("QueryOffset", serve=offsets.query),
                *(messaging_method(name, never=_later(name)) for name in _LATER),
            ],
        )

    def _note(self, caller: Caller, calls: int) -> None:
        self.parts.clients.seen(caller)
        self._context.locality.note(caller.through, calls)

    async def _receive(self, caller: Caller, stream: Stream) -> Rest | None:
        """Let a poll in; return it if it waits while others stand in line for it."""
        # Of a client it is here already, so there is nothing to hold back; a follower passes on
        # no more than the leader reads (`requests.turnstile`).
        raw = None if caller.forwarded else stream.read_now()
        if raw is not None:
            kept = _kept(_RECEIVE, raw)
        else:
            admission = self.pipeline.admission
            async with admission.request(caller.peer, stream.read, _RECEIVE) as raw:
                kept = _kept(_RECEIVE, raw)
        del raw
        parts, leads = self.parts, self._context.engine.is_leader()
        parts.polls.take(caller.connection, len(kept))
        asked = _Asked(self, kept, caller, stream, parts.room.poll(kept, caller))
        if leads:
            parts.clients.seen(caller)
        if parts.room.lets_pass(asked.poll):
            asked.goes_on = True
        elif stream.may_leave:
            return asked
        else:
            await asked.stand()
        return await asked.serve()

    async def receive_first(self, raw: bytes, caller: Caller, poll: Poll, stream: Stream) -> None:
        """Serve a poll that nobody else stands for."""
        count = 0
        try:
            async with aclosing(self._receive_held(raw, caller, poll)) as responses:
                async for response in responses:
                    count += 1
                    if count == _MESSAGES_FROM:
                        poll.leave(found=True)
                    await stream.send(response)
        except Exception as error:
            if count:
                raise Ended(error) from error
            raise

    async def _pull(self, caller: Caller, stream: Stream) -> None:
        """Send what a pull finds; retry while no leader can answer and nothing was sent."""
        async with self.pipeline.admission.request(caller.peer, stream.read, _PULL) as raw:
            kept = _kept(_PULL, raw)
        del raw
        polls, backoff, started = self.parts.polls, Backoff(_RETRY_S, _RETRY_MAX_S), False
        polls.take(caller.connection, len(kept))
        try:
            while True:
                try:
                    async with aclosing(self._pull_once(kept, caller)) as responses:
                        async for response in responses:
                            started = True
                            await stream.send(response)
                    return
                except DledgerError as error:
                    if started:
                        raise Ended(error) from error
                    can_wait = isinstance(error, Unavailable) and caller.remaining_s() > 0
                    if not can_wait or caller.forwarded or self._context.queue_followers.closed:
                        raise
                await self._context.relay.pause(caller, backoff.next_s())
        finally:
            polls.give_back(caller.connection, len(kept))

    async def _pull_once(self, raw: bytes, caller: Caller) -> AsyncGenerator[bytes]:
        if self._context.engine.is_leader():
            self._note(caller, 1)
            answers = self.parts.puller.pull(self._pulling.parse(raw), caller)
            async with aclosing(answers) as responses:
                async for response in responses:
                    if response.HasField("status"):
                        yield self.pipeline.encode(self._pulling, response)
                    else:
                        yield bytes(response.SerializeToString())
            return
        relayed = self._context.relay.stream(self._pulling.path, raw, caller)
        async with aclosing(relayed) as responses:
            async for answer in responses:  # it waits for the first as long as the leader does
                yield answer
                break
            async with self._context.outflow.room(caller.connection, _RELAYED_BYTES):
                async for answer in responses:
                    yield answer

    def encoded_nothing_new(self) -> bytes:
        """Return the answer to a poll that nothing came for, counted."""
        return self.pipeline.encode(self._receiving, nothing_new())

    async def _receive_held(self, raw: bytes, caller: Caller, poll: Poll) -> AsyncGenerator[bytes]:
        """Retry while no leader can answer, but not after part of a response was sent.

        A client that gets an empty response never repeats its attempt. So a node that is shutting
        down, or has too many polls, sends one only if it knows that the log delivered nothing for
        this attempt.
        """
        started = in_doubt = False
        backoff = Backoff(_RETRY_S, _RETRY_MAX_S)
        while True:
            try:
                async with aclosing(self._receive_once(raw, caller)) as responses:
                    async for response in responses:
                        started = True
                        yield response
                return
            except Unavailable as error:
                in_doubt |= not isinstance(error, (NotLeader, NotTaken))
                if started or caller.forwarded or caller.remaining_s() <= 0:
                    raise
                if in_doubt and self._context.queue_followers.closed:
                    raise
            if self._context.queue_followers.closed or (poll.gives_way and not in_doubt):
                yield self.encoded_nothing_new()
                return
            await self._context.relay.pause(caller, backoff.next_s())
            await self.parts.room.turn()

    async def _receive_once(self, raw: bytes, caller: Caller) -> AsyncGenerator[bytes]:
        context = self._context
        if context.engine.is_leader():
            self._note(caller, 1)
            answers = self.parts.receiver.receive(self._receiving.parse(raw), caller)
            async with aclosing(answers) as responses:
                async for response in responses:
                    if response.HasField("status"):
                        yield self.pipeline.encode(self._receiving, response)
                    else:
                        yield bytes(response.SerializeToString())
            return
        path = self._receiving.path
        async with aclosing(context.relay.stream(path, raw, caller)) as relayed:
            try:
                async for answer in relayed:  # the first tells whether there is anything
                    yield answer
                    break
            except FaultyEntry as error:
                # Asked again, the leader has nothing new: the messages are on loan.
                raise Ended(error) from error
            async with context.outflow.room(caller.connection, _RELAYED_BYTES):
                async for answer in relayed:
                    yield answer


class _Asked:
    """A poll that has come, with what it takes here until it is answered.

    While others stand in line for it, it is the `contract.Rest` of its call.
    """

    __slots__ = ("_caller", "_handlers", "_kept", "_stream", "_turn", "goes_on", "poll")
    reads: Final = False

    def __init__(
        self, handlers: MessagingHandlers, kept: bytes, caller: Caller, stream: Stream, poll: Poll
    ) -> None:
        self._handlers, self._kept, self._caller = handlers, kept, caller
        self._stream, self.poll = stream, poll
        self._turn: asyncio.Future[None] | None = None
        self.goes_on = False

    def wait(self) -> None:
        """Stand behind others."""
        self._handlers.parts.room.stand(self.poll, self)

    def settle(self, goes_on: bool) -> None:
        """Note how its wait ended."""
        self.goes_on = goes_on
        if self._turn is None:
            self._stream.go_on()
        elif not self._turn.done():
            self._turn.set_result(None)

    async def stand(self) -> None:
        """Stand behind others, where a handler may not leave."""
        self._turn = asyncio.get_running_loop().create_future()
        try:
            self.wait()
            await self._turn
        except BaseException:
            self.drop()
            raise

    async def serve(self) -> Rest | None:
        """Answer it: there is something, or nothing new."""
        handlers = self._handlers
        try:
            if self.goes_on:
                await handlers.receive_first(self._kept, self._caller, self.poll, self._stream)
            else:
                await self._stream.send(handlers.encoded_nothing_new())
        finally:
            self.drop()
        return None

    def drop(self) -> None:
        """Give back what it takes."""
        self.poll.leave(found=False)
        self._handlers.parts.polls.give_back(self._caller.connection, len(self._kept))


def messaging_method(
    name: str,
    *,
    serve: Callable[[_Q, Caller], Awaitable[_A]] | None = None,
    submit: Callable[[_Q, Caller], Submitted[_A] | None] | None = None,
    served_with: bytes = b"",
    here: Callable[[_Q], bool] | None = None,
    stream: Callable[[Caller, Stream], Awaitable[Rest | None]] | None = None,
    messages: Callable[[bytes], int] = lambda _: 0,
    never: DledgerError | None = None,
) -> Method[_Q, _A]:
    """Return the row of the method of that name; see `Method` for the ways to serve it."""
    request = "TelemetryCommand" if name == "Telemetry" else f"{name}Request"
    return Method(
        path=f"/{SERVICE_NAME}/{name}",
        label=name,
        parse=partial(parsed, getattr(service, request)),
        code=lambda response: code_name(response.status.code),
        serve=serve,
        submit=submit,
        served_with=served_with,
        here=here,
        stream=stream,
        refuse=partial(refused_response, name),
        messages=messages,
        never=never,
    )


def _messages(raw: bytes) -> int:
    return len(parsed(service.SendMessageRequest, raw).messages)


def _kept(method: str, raw: bytes) -> bytes:
    """Return what is kept of a poll until it is answered: the request without unknown fields."""
    if len(raw) <= _USUAL_POLL_BYTES:
        return raw
    request = parsed(getattr(service, f"{method}Request"), raw)
    request.DiscardUnknownFields()
    return bytes(request.SerializeToString())


def _later(method: str) -> Unsupported:
    return Unsupported(f"{method} is not implemented yet")
