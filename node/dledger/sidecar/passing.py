"""The sidecar's handlers: each call of a client goes to the group as bytes, and its answer back.

Looked into are routes and assignments, for their addresses, and the answers to sends (`sends`).
Built by `child`, one for each listening port.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Final

from google.protobuf.message import DecodeError

from dledger.common.limits import MAX_CLIENT_FRAME_BYTES
from dledger.door.contract import (
    Answer,
    BidiStream,
    Cancel,
    Fail,
    Failed,
    Handler,
    Headers,
    Stream,
    TooLarge,
    Unary,
)
from dledger.door.contract import (
    Code as GrpcCode,
)
from dledger.errors import DledgerError, InvalidArgument, Overloaded, Unavailable
from dledger.rocketmq.refused import refused_response
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.rpc.status import ok
from dledger.sidecar.decisions import (
    ANSWERED_HERE,
    TRY_S,
    Verdict,
    refusal_of,
    verdict_of_code,
)
from dledger.sidecar.reach import Reach
from dledger.sidecar.route_cache import RouteCache
from dledger.sidecar.routes import (
    Here,
    rewritten_assignment,
    rewritten_route,
    route_while_away,
    unknown_topic,
)
from dledger.sidecar.sends import Sends
from dledger.sidecar.telemetry import TelemetryPassage
from dledger.sidecar.upstream import Clients, UpstreamError, metadata_of, path_of

_AS_BYTES: Final = (
    "AckMessage",
    "ChangeInvisibleDuration",
    "EndTransaction",
    "ForwardMessageToDeadLetterQueue",
    "GetOffset",
    "Heartbeat",
    "NotifyClientTermination",
    "QueryOffset",
    "RecallMessage",
    "SyncLiteSubscription",
    "UpdateOffset",
)
_STREAMS: Final = ("PullMessage", "ReceiveMessage")
_MARGIN_S: Final = 0.2
_NO_DEADLINE_S: Final = 3.0
_NOWHERE: Final = Here("", 0)
"""What is kept of a route is the same whichever node answers, and at whichever port of ours."""

_Serve = Callable[[Headers, bytes], Awaitable[bytes]]

logger = logging.getLogger(__name__)


class Passing:
    """The handlers of one port.

    Args:
        clients: The ways to the group.
        sends: Takes SendMessage.
        routes: What the group has told of topics.
        named: Topics and their types that a route may be made up for.
        reach: What is known of the group.
        here: Where clients reach this port.
    """

    def __init__(
        self,
        clients: Clients,
        sends: Sends,
        routes: RouteCache,
        *,
        named: Mapping[str, str],
        reach: Reach,
        here: Here,
    ) -> None:
        self._clients, self._sends, self._routes = clients, sends, routes
        self._named, self._reach, self._here = named, reach, here
        self._warned = set[str]()

    def handlers(self) -> dict[str, Handler]:
        """Return what the port serves, by path."""
        served: dict[str, Handler] = {
            name: self._unary(name, self._as_bytes(name)) for name in _AS_BYTES
        }
        served["QueryRoute"] = self._unary("QueryRoute", self._route)
        served["QueryAssignment"] = self._unary("QueryAssignment", self._assignment)
        served["SendMessage"] = Unary(
            self._sends.serve,
            max_request_bytes=MAX_CLIENT_FRAME_BYTES,
            refusal=lambda why: _refusal_unread("SendMessage", why),
        )
        for name in _STREAMS:
            served[name] = BidiStream(self._receiving(name))
        served["Telemetry"] = BidiStream(self._telemetry)
        return {path_of(name): handler for name, handler in served.items()}

    def _unary(self, name: str, work: _Serve) -> Unary:
        async def run(headers: Headers, body: bytes, answer: Answer, fail: Fail) -> None:
            try:
                answer(await work(headers, body))
            except UpstreamError as error:
                fail(error.code, error.message)
            except Exception:
                logger.exception("%s failed", name)
                fail(GrpcCode.INTERNAL, "the sidecar failed; its log has the reason")

        def serve(headers: Headers, body: bytes, answer: Answer, fail: Fail) -> Cancel:
            return asyncio.get_running_loop().create_task(run(headers, body, answer, fail)).cancel

        return Unary(
            serve,
            max_request_bytes=MAX_CLIENT_FRAME_BYTES,
            refusal=lambda why: _refusal_unread(name, why),
        )

    async def _ask(
        self, name: str, headers: Headers, body: bytes, most_s: float = _NO_DEADLINE_S
    ) -> bytes:
        """Return the group's answer. Raises UpstreamError: no address has one."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + most_s
        if headers.deadline_s is not None:
            until_s = min(until_s, headers.deadline_s - _MARGIN_S)
        upstream, metadata = self._clients.of(headers), metadata_of(headers)
        failed = UpstreamError(GrpcCode.DEADLINE_EXCEEDED, "no time was left", sent=False)
        for _ in range(self._clients.tries):
            left_s = until_s - loop.time()
            if left_s <= 0:
                break
            try:
                return await upstream.unary(path_of(name), body, metadata, left_s)
            except UpstreamError as error:
                failed = error
                if error.sent:  # it may have been done
                    break
        raise failed

    def _as_bytes(self, name: str) -> _Serve:
        async def work(headers: Headers, body: bytes) -> bytes:
            try:
                return await self._ask(name, headers, body)
            except UpstreamError as error:
                if name in ANSWERED_HERE:
                    answer = getattr(service, f"{name}Response")(status=ok())
                    return bytes(answer.SerializeToString())
                return _refusal(name, Unavailable(f"{refusal_of(name)} ({error})"))

        return work

    async def _route(self, headers: Headers, body: bytes) -> bytes:
        try:
            topic = service.QueryRouteRequest.FromString(body).topic
        except DecodeError as error:
            return _refusal("QueryRoute", InvalidArgument(f"the request cannot be parsed: {error}"))
        why: object = "it answers that it is not available"
        try:
            answer = await self._ask("QueryRoute", headers, body, TRY_S)
            code = service.QueryRouteResponse.FromString(answer).status.code
        except (UpstreamError, DecodeError) as error:
            why = error
        else:
            verdict = verdict_of_code(code)
            if verdict is Verdict.ANSWER:
                self._routes.put(topic.name, rewritten_route(answer, _NOWHERE))
                return rewritten_route(answer, self._here)
            if verdict is Verdict.FAULT:
                self._routes.forget(topic.name)
                return answer
        return self._route_while_away(topic, why)

    def _route_while_away(self, topic: definition.Resource, why: object) -> bytes:
        cached = self._routes.get(topic.name)
        answer = route_while_away(topic, cached, self._named, self._here)
        if answer is None:
            self._warn(topic.name, unknown_topic(topic.name))
            return _refusal("QueryRoute", Unavailable(f"{unknown_topic(topic.name)} ({why})"))
        if cached is None:
            self._warn(
                topic.name,
                f"a route is made up for topic {topic.name!r}, which the group has not told of: "
                "if it refuses the topic later, its messages are set aside",
            )
        return answer

    def _warn(self, topic: str, sentence: str) -> None:
        """Say something of a topic, once."""
        if topic not in self._warned and len(self._warned) < 1 << 10:
            self._warned.add(topic)
            logger.warning("%s", sentence)

    async def _assignment(self, headers: Headers, body: bytes) -> bytes:
        try:
            answer = await self._ask("QueryAssignment", headers, body)
            return rewritten_assignment(answer, self._here)
        except (UpstreamError, DecodeError) as error:
            why = f"{refusal_of('QueryAssignment')} ({error})"
            return _refusal("QueryAssignment", Unavailable(why))

    def _receiving(self, name: str) -> Callable[[Headers, Stream], Awaitable[None]]:
        async def serve(headers: Headers, stream: Stream) -> None:
            body = await stream.read()
            if body is None:
                raise Failed(GrpcCode.UNIMPLEMENTED, "the method takes one message, not none")
            upstream, left_s = self._clients.of(headers), None
            if headers.deadline_s is not None:
                left_s = max(0.0, headers.deadline_s - asyncio.get_running_loop().time())
            answers = upstream.answers(path_of(name), body, metadata_of(headers), left_s)
            begun = False
            try:
                async with aclosing(answers) as responses:
                    async for answer in responses:
                        begun = True
                        await stream.send(answer)
            except UpstreamError as error:
                if begun:
                    raise Failed(error.code, error.message) from None
                await stream.send(_refusal(name, Unavailable(f"{refusal_of(name)} ({error})")))

        return serve

    async def _telemetry(self, headers: Headers, stream: Stream) -> None:
        upstream = self._clients.of(headers)
        await TelemetryPassage(upstream, metadata_of(headers), stream, self._reach).serve()


def _refusal(name: str, error: DledgerError) -> bytes:
    return bytes(refused_response(name, error).SerializeToString())


def _refusal_unread(name: str, why: Failed) -> bytes:
    """Return the answer to a request that the door refuses unread."""
    kind = InvalidArgument if isinstance(why, TooLarge) else Overloaded
    return _refusal(name, kind(why.message))
