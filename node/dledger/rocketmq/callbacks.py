"""Unary methods without a coroutine: check, join an open command, answer it applied.

A coroutine with its task, its timeouts and its wake-ups costs more than all of that together. What
has to be awaited before the command, or retried after it, is left to the coroutine. On a follower
the request goes to the leader instead, and the leader's answer to the client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from dledger.calls.admission import AdmissionControl, Request
from dledger.calls.caller import Caller
from dledger.errors import DledgerError, Unavailable
from dledger.requests.context import RequestContext
from dledger.rocketmq.client_registry import ClientRegistry
from dledger.rocketmq.command_batcher import Begun
from dledger.rpc.requests import parsed
from dledger.rpc.status import bug, forget_frames

logger = logging.getLogger(__name__)

Submit: TypeAlias = Callable[[Any, Caller], Begun | None]
"""Submits a parsed request; None: something has to be awaited first."""
Answer: TypeAlias = Callable[[bytes], None]
Otherwise: TypeAlias = Callable[[DledgerError | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackPort:
    """What such methods of one port share.

    Attributes:
        context: What all services of the node share.
        admission: The room for the port's requests.
        clients: Who is told which clients are alive.
        caller: Returns who makes a call.
        answer: Encodes and counts the response of the method of that name.
        failed: The same for an error.
    """

    context: RequestContext
    admission: AdmissionControl
    clients: ClientRegistry
    caller: Callable[[Any], Caller]
    answer: Callable[[str, Any], bytes]
    failed: Callable[[str, DledgerError], bytes]


@dataclass(frozen=True, slots=True)
class CallbackMethod:
    """One such method.

    Attributes:
        port: Its port.
        name: Its name.
        path: Its path.
        kind: The type of its requests.
        submit: Submits a request.
    """

    port: CallbackPort
    name: str
    path: str
    kind: Any
    submit: Submit

    def begin(
        self, call: Any, raw: bytes, answer: Answer, otherwise: Otherwise
    ) -> Callable[[], object] | None:
        """Serve the request *raw*; see `rpc.methods.ByCallback`."""
        port = self.port
        caller = port.caller(call)
        room = port.admission.room_now(caller.connection or call.peer(), len(raw))
        if room is None:
            return None
        if not port.context.engine.is_leader():
            return self._forwarded(raw, caller, room, answer, otherwise)
        begun = self._begun(raw, caller)
        if isinstance(begun, tuple):
            submitted, response = begun
            submitted.add_done_callback(_UnderWay(self, room, response, answer, otherwise).settle)
            return submitted.cancel
        port.admission.leave(room)
        if begun is None:
            return None
        answer(port.failed(self.name, begun))
        return _nothing

    def _forwarded(
        self, raw: bytes, caller: Caller, room: Request, answer: Answer, otherwise: Otherwise
    ) -> Callable[[], object] | None:
        """Let the leader serve the request; None if its coroutine should find out how."""
        admission = self.port.admission

        def settle(outcome: bytes | DledgerError) -> None:
            admission.leave(room)
            if isinstance(outcome, DledgerError):
                otherwise(outcome)
            else:
                answer(outcome)

        give_up = self.port.context.relay.begin(self.path, raw, caller, settle)
        if give_up is None:
            admission.leave(room)
            return None

        def cancel() -> None:
            give_up()
            admission.leave(room)

        return cancel

    def _begun(self, raw: bytes, caller: Caller) -> Begun | DledgerError | None:
        """Submit the request; return why it is refused, or None if its coroutine should try it."""
        context = self.port.context
        try:
            self.port.clients.seen(caller)
            context.locality.note(caller.through)
            return self.submit(parsed(self.kind, raw), caller)
        except Unavailable:
            return None
        except DledgerError as error:
            forget_frames(error)
            return error
        except Exception as error:
            logger.exception("group %s: %s failed", context.engine.group, self.name)
            return bug(error)

    def answered(self, place: Any, response: Callable[[Any], Any]) -> bytes | None:
        """Return the encoded response by the command's result; None: the coroutine has to look."""
        try:
            found = response(place)
            return None if found is None else self.port.answer(self.name, found)
        except DledgerError as error:
            return self.port.failed(self.name, error)
        except Exception as error:
            logger.exception("group %s: %s failed", self.port.context.engine.group, self.name)
            return self.port.failed(self.name, bug(error))

    def refused(self, error: BaseException) -> bytes:
        """Return the encoded response to a request whose command failed."""
        if not isinstance(error, DledgerError):
            group = self.port.context.engine.group
            logger.error("group %s: %s failed", group, self.name, exc_info=error)
            error = bug(error)
        return self.port.failed(self.name, error)


def _nothing() -> None:
    """Give up what is over."""


class _UnderWay:
    """A request that waits for its command to be applied."""

    __slots__ = ("_answer", "_method", "_otherwise", "_response", "_room")

    def __init__(
        self,
        method: CallbackMethod,
        room: Request,
        response: Callable[[Any], Any],
        answer: Answer,
        otherwise: Otherwise,
    ) -> None:
        self._method, self._room, self._response = method, room, response
        self._answer, self._otherwise = answer, otherwise

    def settle(self, submitted: asyncio.Future[Any]) -> None:
        """Answer the request."""
        self._method.port.admission.leave(self._room)
        if submitted.cancelled():  # by its client: nobody else has the future
            return
        error = submitted.exception()
        if isinstance(error, Unavailable):  # whether the command was carried out is not known
            self._otherwise(error)
        elif error is not None:
            self._answer(self._method.refused(error))
        elif (answer := self._method.answered(submitted.result(), self._response)) is None:
            self._otherwise(None)
        else:
            self._answer(answer)
