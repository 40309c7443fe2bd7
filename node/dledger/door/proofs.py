"""Which answers the client of one connection is known to have.

That an answer was written proves nothing, nor do the kernel's acknowledgements or what the client
sends: behind a proxy both go on while answers are swallowed. What proves it is a PING that the
client acknowledges (RFC 9113, 6.7), since bytes arrive in their order; and only one that is sent
once the answer's stream has closed: libnghttp2 sends a PING ahead of DATA that waits, and a stream
closes when its last frame leaves. A client that gives its call up acknowledges a PING all the same,
after its RST_STREAM, so a reset drops the proof, whenever it comes.

No I/O: `connection` sends the PINGs, and says how far its bytes have come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dledger.door.contract import Arrival

PING_BYTES: Final = 8
MAX_AWAITED: Final = 4_096
"""Answers of a connection that have left and are not proved; far more than 256 calls leave in the
time of a round trip. A client that takes them and acknowledges nothing holds no more memory."""


class _Answer:
    """One answer on its way.

    Attributes:
        arrival: Who is told.
        ping: The number of the PING behind it; 0: it has not left.
        end: The connection's bytes up to its end; None: it has not left.
        seen: Whether `look` has seen it before.
    """

    __slots__ = ("arrival", "end", "ping", "seen")

    def __init__(self, arrival: Arrival) -> None:
        self.arrival = arrival
        self.ping = 0
        self.end: int | None = None
        self.seen = False


class Proofs:
    """Of one connection.

    Args:
        on_begun: Called when an answer is to be proved.
        on_due: Called when a first answer has left of which no PING is known yet: see `ask`.

    Attributes:
        follows: By stream, the answers that have not left; `closed` is for these alone.
        due: Whether answers have left since `ask`.
    """

    __slots__ = ("_asked", "_awaited", "_on_begun", "_on_due", "_taken", "due", "follows")

    def __init__(
        self,
        on_begun: Callable[[], None] = lambda: None,
        on_due: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_begun, self._on_due = on_begun, on_due
        self.follows: dict[int, _Answer] = {}
        self._awaited: dict[int, _Answer] = {}  # in the order of their ends
        self._asked = self._taken = 0
        self.due = False

    def __len__(self) -> int:
        return len(self.follows) + len(self._awaited)

    def begin(self, stream_id: int, arrival: Arrival) -> None:
        """Follow the answers of a stream."""
        self.follows[stream_id] = _Answer(arrival)
        self._on_begun()

    def closed(self, stream_id: int, end: int) -> None:
        """Note that the last frame of a stream has left; a PING that is sent from now on proves it.

        Args:
            stream_id: One of `follows`.
            end: The connection's bytes up to now.
        """
        answer = self.follows.pop(stream_id)
        answer.ping, answer.end = self._asked + 1, end
        self._awaited[stream_id] = answer
        if not self.due:
            self.due = True
            self._on_due()
        if len(self._awaited) > MAX_AWAITED:
            self.lose(next(iter(self._awaited)))

    def lose(self, stream_id: int) -> None:
        """Note that a stream was reset, by whomever, or did not end well; also after it closed."""
        answer = self.follows.pop(stream_id, None) or self._awaited.pop(stream_id, None)
        if answer is not None:
            answer.arrival.lost()

    def lose_all(self) -> None:
        """Note that the connection is gone."""
        for stream_id in (*self.follows, *self._awaited):
            self.lose(stream_id)

    def ask(self) -> bytes:
        """Return the data of a PING to send behind all that has left."""
        self.due = False
        self._asked += 1
        return self._asked.to_bytes(PING_BYTES, "big")

    def acknowledged(self, data: bytes) -> None:
        """Take in the acknowledgement of a PING: it proves what left before it."""
        number = int.from_bytes(data, "big")
        if number > self._asked:  # another's, or made up
            return
        for stream_id, answer in tuple(self._awaited.items()):
            if answer.ping > number:
                return
            del self._awaited[stream_id]
            answer.arrival.proved()

    def look(self, taken: int) -> None:
        """Tell what still moves; to be asked every few seconds.

        Args:
            taken: How many of the connection's bytes its other side's kernel has acknowledged. That
                proves nothing, but what of an answer is not among them is not lost yet.
        """
        before, self._taken = self._taken, max(taken, self._taken)
        for answer in (*self.follows.values(), *self._awaited.values()):
            on_its_way = answer.end is None or answer.end > before
            if answer.seen and on_its_way and taken > before:
                answer.arrival.moves()
            answer.seen = True
