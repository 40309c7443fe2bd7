"""Joins single calls of a door into batches: what one turn of the event loop brings, by a key.

`send_batches` and `ack_batches` decide which calls may share a batch, what their frame is, and what
the node's reply means for each call. A batch goes to the node at the end of its turn, so nothing
waits to be joined. `rocketmq.command_batcher` joins calls by other rules: into a command that is
open until the node's log takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Final, Generic, TypeAlias, TypeVar

from dledger.common.limits import SHARED_BYTES, SHARED_ROWS
from dledger.door.contract import Answer, Cancel, Fail, Handler, Headers, Unary
from dledger.door_process.door_end import DoorEnd
from dledger.door_process.frames import Client
from dledger.link.frames import Kind, Resumes, packed

CLIENT_ID: Final = b"x-mq-client-id"
_LEAST_ROOM_BYTES: Final = 8 << 10
"""What the least request counts for admission, as in a node."""

PassOn: TypeAlias = Callable[..., Cancel]
"""`DoorEnd.begin` of a method."""
Serve: TypeAlias = Callable[[PassOn, Headers, bytes, Answer, Fail], Cancel]
"""Serves a call of a method by a batch, or has the node serve it the general way."""


class BatchedCall:
    """One call that may be in a batch."""

    __slots__ = ("answer", "body", "cancel", "fail", "headers", "over", "pass_on")

    def __init__(
        self, pass_on: PassOn, headers: Headers, body: bytes, answer: Answer, fail: Fail
    ) -> None:
        self.pass_on, self.headers, self.body = pass_on, headers, body
        self.answer, self.fail = answer, fail
        self.cancel: Cancel | None = None
        self.over = False

    def give_up(self) -> None:
        """Do what its client's leaving asks for."""
        self.over = True
        if self.cancel is not None:
            self.cancel()

    def go_on(self, resumes: Resumes, over: Callable[[], None] | None = None) -> None:
        """Let it go the general way; *over* is called when it has ended."""
        self.cancel = self.pass_on(
            self.headers, self.body, self.answer, self.fail, resumes=resumes, over=over
        )


KeyT = TypeVar("KeyT", bound=Hashable)
CallT = TypeVar("CallT", bound=BatchedCall)


class Batch(Generic[KeyT, CallT]):
    """Calls that go to the node together.

    Attributes:
        key: What they have in common.
        calls: In the order in which they came.
        rows: How many rows they have together.
        room_bytes: What they count for admission.
        number: On the link; 0: it is not on its way yet.
    """

    __slots__ = ("_awaited", "_size_bytes", "calls", "key", "number", "room_bytes", "rows")

    def __init__(self, key: KeyT) -> None:
        self.key = key
        self.calls: list[CallT] = []
        self.rows = self.room_bytes = self.number = 0
        self._size_bytes = self._awaited = 0

    def has_room(self, rows: int, size_bytes: int) -> bool:
        """Whether a call of this size may join; a larger one is a batch of its own."""
        return self.rows + rows <= SHARED_ROWS and self._size_bytes + size_bytes <= SHARED_BYTES

    def add(self, call: CallT, rows: int, size_bytes: int) -> None:
        """Add a call at the end."""
        self.calls.append(call)
        self._awaited += 1
        self.rows += rows
        self._size_bytes += size_bytes
        self.room_bytes += max(len(call.body), _LEAST_ROOM_BYTES)

    def client(self, client_id: str) -> Client:
        """Return whose it is, by its first call; and when its clients no longer wait."""
        headers = self.calls[0].headers
        ends = [s for each in self.calls if (s := each.headers.deadline_s) is not None]
        return Client(headers.peer, client_id, min(ends, default=None), headers.pairs)

    def leave(self) -> bool:
        """Note that the client of a call has gone; return whether nobody awaits the batch now."""
        self._awaited -= 1
        return not self._awaited


class Joiner(Generic[KeyT, CallT]):
    """The batches of one method in one door process.

    Args:
        door: The end of the link.
        begin: Called with each new batch.
        abandon: Called with a batch that nobody awaits any more, when the node has been told; its
            rows may be carried out all the same.
    """

    def __init__(
        self,
        door: DoorEnd,
        begin: Callable[[Batch[KeyT, CallT]], None] = lambda _: None,
        abandon: Callable[[Batch[KeyT, CallT]], None] = lambda _: None,
    ) -> None:
        self._door, self._begin, self._abandon = door, begin, abandon
        self._open: dict[KeyT, Batch[KeyT, CallT]] = {}
        self._queued: list[Batch[KeyT, CallT]] = []
        self._sent: dict[int, Batch[KeyT, CallT]] = {}

    def handler(self, general: Handler, port: int, method: int, serve: Serve) -> Handler:
        """Return the handler of a method that tries a batch first.

        Args:
            general: The method's general handler.
            port: The port's number.
            method: The method's number.
            serve: Serves a call.
        """
        return Unary(
            partial(serve, partial(self._door.begin, (port, method))),
            max_request_bytes=general.max_request_bytes,
            refusal=general.refusal,
        )

    def join(self, key: KeyT, call: CallT, *, rows: int, size_bytes: int = 0) -> None:
        """Add a call to the open batch of its key, or begin one."""
        batch = self._open.get(key)
        if batch is None or not batch.has_room(rows, size_bytes):
            batch = self._open[key] = Batch(key)
            self._begin(batch)
            self._queued.append(batch)
            self._door.link.turn()
        batch.add(call, rows, size_bytes)
        call.cancel = partial(self._leave, batch)

    def flush(self, frame: Callable[[Batch[KeyT, CallT]], bytes]) -> None:
        """Send the batches of this turn, in the order in which they began."""
        queued, self._queued = self._queued, []
        self._open.clear()
        for batch in queued:
            batch.number = self._door.number()
            self._sent[batch.number] = batch
            self._door.link.send(frame(batch))

    def take(self, number: int) -> Batch[KeyT, CallT] | None:
        """Return the batch to which a reply belongs; None: it is none of ours, or abandoned.

        The caller clears its calls when they are answered: each is in a cycle with it.
        """
        return self._sent.pop(number, None)

    def _leave(self, batch: Batch[KeyT, CallT]) -> None:
        if batch.leave() and self._sent.pop(batch.number, None) is not None:
            batch.calls.clear()
            self._door.link.send(packed(Kind.CANCEL, batch.number))
            self._abandon(batch)
