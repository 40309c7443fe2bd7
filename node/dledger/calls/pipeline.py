"""The one way of a request: who calls, may it, here or to the leader, submit, settle, answer.

Every service has it at every port; what differs is handed in as a `Method`. There are three ways
in: `begin` for a request that has arrived whole, `unread` for one that is read when there is room,
`open` for a call of many messages; and `batch`, for calls that a door process has joined. Under
`begin` and `batch` is one `attempt`. A plain request needs no coroutine, whose task, timeouts and
wake-ups cost more than all of the rest: its command is submitted at once, and its answer leaves
when that is applied. What has to be awaited before, or tried again after, is `serve`d, and that is
the only retry; but for a poll, which may not repeat after its first answer (`rocketmq.receiving`).

What becomes of a request (client: who calls this node; follower: one that passes on what its client
asked; batch: the calls of a door process in one command):

outcome                 client                        follower              batch
----------------------- ----------------------------- --------------------- --------------------
applied                 its response, counted once    the same              each its part, counted
applied, but somebody   `serve`, which looks          the same              back to the door, its
has to look                                                                 calls come singly
refused: by a rule,     the method's response with    the same; where the   one answer to all of
the request's own       the error's code, counted;    method has none, a    its calls, counted as
fault, a full disk,     or where the method has       status that only the  many times
a bug                   none, a status, counted       follower counts
no room now, or not to  `serve`: waits for its turn,  `serve`, once; then   back to the door; its
be submitted now        is tried until the deadline   UNAVAILABLE, for the  rules have been asked
                                                      follower to retry
submitted, and its      `serve`, with that as its     `serve`, which says   back to the door: may
outcome is unknown      first attempt: tried again    so: UNAVAILABLE       have been carried out
the leader refused      the leader's status as it is  -                     -
given up by its client  nothing: no answer, no count  the same              the same

Nothing is counted before there is an answer, and an answer is counted where it is made. Rules are
asked first (`rules`), at each node that a request passes, and hear of what is refused here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from dledger.calls.admission import AdmissionControl, Read, Request
from dledger.calls.call import Call
from dledger.calls.caller import Caller
from dledger.calls.method import A, AnyMethod, Backend, Ended, Method, Q, Work, failed_by
from dledger.calls.rules import Asked, Rule
from dledger.door.contract import Answer, Cancel, Fail, Failed, Headers, Rest, Stream
from dledger.errors import DiskFull, DledgerError, LeadershipLost, RateLimited, Unavailable
from dledger.rpc.status import Relayed, bug, forget_frames, grpc_code_of

logger = logging.getLogger(__name__)


class Pipeline:
    """Of one service at one port.

    Args:
        backend: What serves the requests.
        admission: The room for the port's requests.
        rules: What each request is asked; others may be added later.
        tls: The port uses TLS.
        peer_port: The port is for peers: what comes was forwarded.
    """

    def __init__(
        self,
        backend: Backend,
        admission: AdmissionControl,
        rules: Sequence[Rule],
        *,
        tls: bool,
        peer_port: bool,
    ) -> None:
        self.backend, self.admission, self._rules = backend, admission, rules
        self._caller_of = partial(
            Caller.of, tls=tls, peer_port=peer_port, runs_telemetry=backend.runs_telemetry
        )

    # -- without a coroutine ---------------------------------------------------------------------

    def begin(
        self, method: Method[Q, A], headers: Headers, raw: bytes, answer: Answer, fail: Fail
    ) -> Cancel:
        """Serve a request that has arrived whole; see `contract.Unary`."""
        call = Call(self, method, self._caller_of(headers), raw, answer=answer, fail=fail)
        if self._rules and not self._admit(call):
            return call.cancel
        leads = self.backend.leads()
        if method.never is not None:
            call.refuse(method.never)
        elif leads and method.submit is not None:
            give_up = self.attempt(call)
            if give_up is not None:
                call.give_up = give_up
        elif leads or method.here is not None:
            call.resume(None)
        else:
            call.forward()
        return call.cancel

    def resume(  # noqa: PLR0917 - as `begin`, and how the batch went
        self,
        method: AnyMethod,
        headers: Headers,
        raw: bytes,
        answer: Answer,
        fail: Fail,
        asked: bool,
        unknown: bool,
    ) -> Cancel:
        """Serve a call whose batch went back to the door.

        Args:
            method: Its method.
            headers: What came with it.
            raw: Its request.
            answer: As to `begin`.
            fail: As to `begin`.
            asked: Whether the rules were asked about the batch.
            unknown: Whether the batch may have been carried out.
        """
        call = Call(self, method, self._caller_of(headers), raw, answer=answer, fail=fail)
        if not self._rules or self._admit(call, again=asked):
            call.resume(LeadershipLost("its batch may have been carried out") if unknown else None)
        return call.cancel

    def batch(self, work: Work) -> Cancel | None:
        """Serve calls that come as one command; see `attempt`."""
        if not self.backend.leads():
            work.resume(None)
        elif not self._rules or self._admit(work):
            return self.attempt(work)
        return None

    def _admit(self, work: Work, *, again: bool = False) -> bool:
        """Ask the rules about *work*, which is refused if they say so."""
        work.asked = asked = Asked(self._rules, work.method.label, work.caller)
        try:
            asked.admit(
                calls=work.calls, messages=work.messages, size_bytes=work.size_bytes, again=again
            )
        except DledgerError as error:
            work.refuse(error)
            return False
        return True

    def attempt(self, work: Work) -> Cancel | None:
        """Have *work* settled by the command that it submits.

        Returns:
            What gives the command up; None: there is none.
        """
        room = self.admission.room_now(work.caller.peer, work.size_bytes)
        if room is None:
            work.resume(None)
            return None
        try:
            self.backend.note(work.caller, work.calls)
            submitted = work.submit()
        except Unavailable:
            self.admission.leave(room)
            work.resume(None)
        except Exception as error:  # noqa: BLE001 - it is logged there
            self.admission.leave(room)
            work.refuse(error)
        else:
            if submitted is not None:
                submitted.add_done_callback(partial(self._settle, work, room))
                return submitted.cancel
            self.admission.leave(room)
            work.resume(None)
        return None

    def _settle(self, work: Work, room: Request, submitted: asyncio.Future[Any]) -> None:
        self.admission.leave(room)
        if submitted.cancelled():  # by its client: nobody else has the future
            return
        error = submitted.exception()
        if isinstance(error, Unavailable):  # whether the command was carried out is not known
            work.resume(error)
        elif isinstance(error, Exception):
            work.refuse(error)
        else:
            try:
                work.settle(submitted.result())
            except Exception as failed:  # noqa: BLE001
                work.refuse(failed)

    # -- by a coroutine --------------------------------------------------------------------------

    def ask(self, method: AnyMethod, caller: Caller) -> Asked | None:
        """Return what the rules are to be asked by, for what *caller* asks; None: none is there."""
        return Asked(self._rules, method.label, caller) if self._rules else None

    async def unread(self, method: AnyMethod, headers: Headers, read: Read) -> bytes:
        """Return the answer to a request that is read when there is room for it. Raises Failed."""
        caller = self._caller_of(headers)
        asked = self.ask(method, caller)
        try:
            if method.never is None:
                outcome = await self.serve(method, caller, read, asked=asked)
            else:
                outcome = self.never(method, caller, method.never, asked)
        finally:
            if asked is not None:
                asked.leave()
        if isinstance(outcome, Failed):
            raise outcome
        return outcome

    async def serve(
        self,
        method: AnyMethod,
        caller: Caller,
        read: Read,
        *,
        tried: DledgerError | None = None,
        asked: Asked | None = None,
    ) -> bytes | Failed:
        """Return the answer to the request that *read* returns.

        Args:
            method: Its method.
            caller: Who asks.
            read: Returns the request; it is called once there is room.
            tried: How a first attempt failed, if there was one.
            asked: What the rules say, who are asked now if they were not before; None: no rules.
        """
        try:
            async with self.admission.request(caller.peer, read, method.name) as raw:
                if asked is not None and not asked.admitted:
                    asked.admit(messages=method.messages(raw), size_bytes=len(raw))
                attempt = partial(self._try, method, raw, caller, [tried] if tried else [])
                return await self.backend.retry(caller, len(raw), attempt)
        except Exception as error:  # noqa: BLE001
            return self.refuse(method, caller, error, asked)

    async def _try(
        self, method: AnyMethod, raw: bytes, caller: Caller, tried: list[DledgerError]
    ) -> bytes:
        if tried:
            raise tried.pop()
        leads = self.backend.leads()
        if leads or method.here is not None:
            request = method.parse(raw)
            if leads or (method.here is not None and method.here(request)):
                self.backend.note(caller, 1)
                return self.encode(method, await _response(method, request, caller))
        return await self.backend.ask(method.path, raw, caller)

    async def open(self, method: AnyMethod, headers: Headers, stream: Stream) -> Rest | None:
        """Serve a call of many messages; see `contract.BidiStream`. Raises Failed."""
        caller = self._caller_of(headers, prove=stream.prove)
        return await _Open(self, method, caller, stream, self.ask(method, caller)).serve()

    def never(
        self, method: AnyMethod, caller: Caller, error: DledgerError, asked: Asked | None
    ) -> bytes | Failed:
        """Return the answer to a request that is refused unread; the rules count it."""
        try:
            if asked is not None:
                asked.admit()
        except DledgerError as refusal:
            error = refusal
        return self.refuse(method, caller, error, asked)

    # -- answers ---------------------------------------------------------------------------------

    def encode(self, method: Method[Any, A], response: A, calls: int = 1) -> bytes:
        """Return a response's bytes, counted."""
        self.backend.count(method.label, method.code(response), calls)
        return response.SerializeToString()

    def refuse(
        self,
        method: AnyMethod,
        caller: Caller,
        error: Exception,
        asked: Asked | None = None,
        *,
        calls: int = 1,
    ) -> bytes | Failed:
        """Return the answer to requests that are refused: a response, or how their call ends.

        A follower must see errors to retry, and those that say that nothing was done: it alone
        knows of an earlier attempt. What else the leader refused goes on unchanged.
        """
        ended = error if isinstance(error, Ended) else None
        if ended is not None:
            error = ended.error
        if isinstance(error, Failed):  # the call is over already, as its stream said
            return error
        if not isinstance(error, DledgerError):
            logger.error("group %s: %s failed", self.backend.group, method.label, exc_info=error)
            error = bug(error)
        forget_frames(error)
        if asked is not None:
            asked.tell_refusal(error)
        seen = caller.forwarded and isinstance(error, (Unavailable, DiskFull, RateLimited))
        if method.refuse is not None and not (ended or seen or isinstance(error, Relayed)):
            return self.encode(method, method.refuse(error), calls)
        if method.refuse is None and (method.stream is not None or not caller.forwarded):
            self.backend.count(method.label, grpc_code_of(error).name, calls)
        return failed_by(error, ended.trailers if ended else ())


class _Open:
    """A call of many messages; while its handler has left, the `contract.Rest` in its place."""

    __slots__ = ("_asked", "_caller", "_method", "_pipeline", "_rest", "_stream")

    def __init__(
        self,
        pipeline: Pipeline,
        method: AnyMethod,
        caller: Caller,
        stream: Stream,
        asked: Asked | None,
    ) -> None:
        self._pipeline, self._method, self._caller = pipeline, method, caller
        self._stream, self._asked = stream, asked
        self._rest: Rest | None = None

    @property
    def reads(self) -> bool:
        """Whether a message is something to do."""
        return self._rest is not None and self._rest.reads

    def wait(self) -> None:
        """Begin to wait."""
        if self._rest is not None:
            self._rest.wait()

    def drop(self) -> None:
        """Give up: the call is over."""
        if self._rest is not None:
            self._rest.drop()
        if self._asked is not None:
            self._asked.leave()

    async def serve(self) -> Rest | None:
        """Serve it, or what its handler left; return itself if that is left now. Raises Failed."""
        rest, self._rest = self._rest, None
        ended: bytes | Failed | None = None
        try:
            if rest is not None:
                self._rest = await rest.serve()
            else:
                ended = await self._begin()
        except Exception as error:  # noqa: BLE001
            ended = self._pipeline.refuse(self._method, self._caller, error, self._asked)
        finally:
            if self._rest is None and self._asked is not None:
                self._asked.leave()
        if self._rest is not None:
            return self
        if isinstance(ended, Failed):
            raise ended
        if ended is not None:
            await self._stream.send(ended)
        return None

    async def _begin(self) -> bytes | Failed | None:
        method, asked = self._method, self._asked
        if method.never is not None:
            return self._pipeline.never(method, self._caller, method.never, asked)
        if asked is not None:
            asked.admit()
        if method.stream is not None:
            self._rest = await method.stream(self._caller, self._stream)
        return None


async def _response(method: Method[Q, A], request: Q, caller: Caller) -> A:
    """Return what a method answers on the leader."""
    if method.serve is not None:
        return await method.serve(request, caller)
    submitted = method.submit(request, caller) if method.submit is not None else None
    response = submitted.response(await submitted.result) if submitted is not None else None
    if response is None:
        raise TypeError(f"{method.label} has no answer")
    return response
