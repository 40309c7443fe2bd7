"""One call under way: a `Work` of one, from its request to its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic

from dledger.calls.method import A, Method, Q
from dledger.door.contract import Answer, Cancel, Code, Fail, Failed
from dledger.errors import DledgerError

if TYPE_CHECKING:
    from dledger.calls.caller import Caller
    from dledger.calls.pipeline import Pipeline
    from dledger.calls.rules import Asked


class Call(Generic[Q, A]):
    """A call at a pipeline. It has no task until it needs one.

    Args:
        pipeline: What serves it.
        method: Its method.
        caller: Who calls.
        raw: The request.
        answer: Gets the answer; either this or *fail* is called once, unless it is cancelled.
        fail: Ends the call with a status.

    Attributes:
        asked: What the rules said; None: there are none.
        give_up: Stops what serves it.
    """

    __slots__ = (
        "_answer",
        "_fail",
        "_pipeline",
        "_raw",
        "_response",
        "asked",
        "caller",
        "give_up",
        "method",
        "size_bytes",
    )
    calls: Final = 1
    _response: Callable[[Any], A | None]

    def __init__(
        self,
        pipeline: Pipeline,
        method: Method[Q, A],
        caller: Caller,
        raw: bytes,
        *,
        answer: Answer,
        fail: Fail,
    ) -> None:
        self._pipeline, self.method, self.caller, self._raw = pipeline, method, caller, raw
        self.size_bytes = len(raw)
        self._answer, self._fail = answer, fail
        self.asked: Asked | None = None
        self.give_up: Cancel = _nothing

    @property
    def messages(self) -> int:
        """How many messages of a producer it carries."""
        return self.method.messages(self._raw)

    def submit(self) -> asyncio.Future[Any] | None:
        """Submit its command; None: that cannot be done without awaiting something."""
        submit = self.method.submit
        if submit is None or self.method.served_with in self.caller.fields:
            return None
        begun = submit(self.method.parse(self._raw), self.caller)
        if begun is None:
            return None
        submitted, self._response = begun
        return submitted

    def settle(self, result: Any) -> None:
        """Answer it by its command's result."""
        response = self._response(result)
        if response is None:
            self.resume(None)
        else:
            self._end(self._pipeline.encode(self.method, response))

    def refuse(self, error: Exception) -> None:
        """Answer that it was refused."""
        self._end(self._pipeline.refuse(self.method, self.caller, error, self.asked))

    def forward(self) -> None:
        """Let the leader serve it."""
        admission, backend = self._pipeline.admission, self._pipeline.backend
        room = admission.room_now(self.caller.peer, self.size_bytes)
        if room is None:
            return self.resume(None)

        def settle(outcome: bytes | DledgerError) -> None:
            admission.leave(room)
            if isinstance(outcome, DledgerError):
                self.resume(outcome)
            else:
                self._end(outcome)

        give_up = backend.forward(self.method.path, self._raw, self.caller, settle)
        if give_up is None:
            admission.leave(room)
            return self.resume(None)

        def cancel() -> None:
            give_up()
            admission.leave(room)

        self.give_up = cancel
        return None

    def resume(self, tried: DledgerError | None) -> None:
        """Serve it by a coroutine from now on; *tried*: how a first attempt failed."""
        task = asyncio.get_running_loop().create_task(self._run(tried))
        _TASKS.add(task)
        task.add_done_callback(_TASKS.discard)
        self.give_up = task.cancel

    def cancel(self) -> None:
        """Stop what serves it: nobody waits for the answer."""
        self.give_up()
        if self.asked is not None:
            self.asked.leave()

    async def _run(self, tried: DledgerError | None) -> None:
        try:
            outcome = await self._pipeline.serve(
                self.method, self.caller, self._read, tried=tried, asked=self.asked
            )
        except asyncio.CancelledError:
            self._end(Failed(Code.CANCELLED, "the handler was cancelled"))
            raise
        finally:
            self.give_up = _nothing  # or this and its task know each other
        self._end(outcome)

    async def _read(self) -> bytes:
        raw, self._raw = self._raw, b""  # or the task, which knows this, keeps it
        return raw

    def _end(self, outcome: bytes | Failed) -> None:
        if self.asked is not None:
            self.asked.leave()
        if isinstance(outcome, Failed):
            self._fail(outcome.code, outcome.message, outcome.trailers)
        else:
            self._answer(outcome)


_TASKS: Final[set[asyncio.Task[None]]] = set()
"""Those of all ports; the event loop alone would not keep them."""


def _nothing() -> None:
    """Give up what is over."""
