"""The node's end of one door's link: calls (`link.calls_in`), and batches.

A door that is gone has given up its calls and its batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol, TypeAlias

from dledger.common.limits import MAX_UNCONFIRMED_ANSWERS
from dledger.door.bounds import Bounds
from dledger.door.call import Call
from dledger.door.contract import Arrival, Cancel, Code, Failed, TooLarge
from dledger.door_process import frames
from dledger.door_process.frames import AckBatch, Arrives, DoorKind, SendBatch
from dledger.link.calls_in import CallsIn, ServedPort
from dledger.link.frames import Kind, MalformedFrame, Resumes, packed

_LARGEST_PATH: Final = 1 << 16

Outcome: TypeAlias = Sequence[int] | bytes | Resumes
"""Of a batch: a number for each message, the one answer to all calls, or why they come singly."""
Settle: TypeAlias = Callable[[Outcome], None]


class Batches(Protocol):
    """Carries out batches on the leader, without awaiting anything."""

    def leads(self) -> bool:
        """Whether batches make sense now."""
        ...

    def send(self, batch: SendBatch, settle: Settle) -> Cancel:
        """Store messages; *settle* gets their offsets. Raises MalformedFrame."""
        ...

    def ack(self, batch: AckBatch, settle: Settle) -> Cancel:
        """Acknowledge messages; *settle* gets a `frames.Acked` for each handle."""
        ...


class NodeEnd(CallsIn):
    """Of one door process.

    Args:
        ports: What the door serves, in the order of its ports.
        methods: The paths that an OPEN frame names by number.
        batches: Carries out batches.
        bounds: What streams may have under way.
        on_ready: Called when the door serves its ports.
        on_pong: Called with the number of each PING that it answers.
        on_lost: Called once the link is closed, with the reason.
    """

    def __init__(
        self,
        ports: Sequence[ServedPort],
        methods: Sequence[str],
        batches: Batches,
        bounds: Bounds,
        *,
        on_ready: Callable[[], None] = lambda: None,
        on_pong: Callable[[int], None] = lambda _: None,
        on_lost: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(ports, methods, bounds, same_clock=True, on_lost=on_lost)
        self._batches = batches
        self._on_ready, self._on_pong = on_ready, on_pong
        self._under_way: dict[int, Cancel] = {}
        self._resuming = set[int]()
        self._arrivals: dict[int, Arrival] = {}
        self._leads: bool | None = None

    def __len__(self) -> int:
        return super().__len__() + len(self._under_way)

    def tell(self) -> None:
        """Tell the door whether this node leads, if that has changed."""
        leads = self._batches.leads()
        if leads is not self._leads:
            self._leads = leads
            self.link.send(packed(DoorKind.LEADS, leads))

    # -- frames ----------------------------------------------------------------------------------

    def _receive(self, kind: int, number: int, payload: bytes) -> None:
        match kind:
            case DoorKind.SEND:
                self._send_batch(number, frames.sending_of(payload))
            case DoorKind.ACK:
                batch = frames.acking_of(payload)
                self._begin(number, partial(self._batches.ack, batch), DoorKind.ACKED)
            case DoorKind.SETTLED:
                self._resuming.discard(number)
            case DoorKind.PONG:
                self._on_pong(number)
            case DoorKind.READY:
                self._on_ready()
            case DoorKind.REFUSED:
                self._count_refusal(number, payload)
            case DoorKind.ARRIVAL:
                self._arrives(number, frames.arriving_of(payload))
            case Kind.CANCEL if number in self._under_way:
                self._under_way.pop(number)()
            case _:
                super()._receive(kind, number, payload)

    def _reject(self, kind: int, number: int, why: MalformedFrame) -> None:
        """End the link: a door is of this very build, and not to be trusted any further."""
        del kind, number
        self.link.close(str(why))

    def _turn(self) -> None:
        self.tell()
        super()._turn()

    def _go_on(self, call: Call, kind: int, payload: bytes) -> None:
        super()._go_on(call, kind, payload)
        if kind == Kind.CANCEL:
            self._arrives(call.stream_id, Arrives.LOST)

    def _arrives(self, number: int, arrives: Arrives) -> None:
        """Tell what became of a call's answers; of those that nobody asks for, nobody."""
        if arrives is Arrives.MOVES:
            if (arrival := self._arrivals.get(number)) is not None:
                arrival.moves()
        elif (arrival := self._arrivals.pop(number, None)) is not None:
            if arrives is Arrives.PROVED:
                arrival.proved()
            else:
                arrival.lost()

    def _count_refusal(self, number: int, payload: bytes) -> None:
        """Count an answer that the door has made as the handler would have."""
        if number >= len(self._methods) or len(payload) > _LARGEST_PATH or not payload:
            raise MalformedFrame(f"no refusal: {number}")
        refusal = self._ports[0].handlers[self._methods[number]].refusal
        if refusal is None:
            return
        why = payload[1:].decode("utf-8", "replace")
        try:
            refusal(TooLarge(why) if payload[0] else Failed(Code.RESOURCE_EXHAUSTED, why))
        except Failed:
            return

    # -- batches ---------------------------------------------------------------------------------

    def _send_batch(self, number: int, batch: SendBatch) -> None:
        """Carry out a batch, unless one before it of its connection was not: they keep their order.

        That ends when the door says that what was passed on instead is over (SETTLED).
        """
        connection = batch.connection
        if connection in self._resuming:
            self.link.send(packed(DoorKind.RESUME, number, bytes((Resumes.NOTHING_DONE,))))
            return
        self._begin(number, partial(self._batches.send, batch), DoorKind.PLACES, connection)

    def _begin(
        self,
        number: int,
        begin: Callable[[Settle], Cancel],
        kind: DoorKind,
        connection: int | None = None,
    ) -> None:
        if number in self._under_way:
            raise MalformedFrame(f"batch {number} is under way")
        self._under_way[number] = _nothing
        cancel = begin(partial(self._settle, number, kind, connection))
        if number in self._under_way:
            self._under_way[number] = cancel

    def _settle(
        self, number: int, kind: DoorKind, connection: int | None, outcome: Outcome
    ) -> None:
        if self._under_way.pop(number, None) is None or self.link.closed:
            return
        if isinstance(outcome, Resumes):
            if connection is not None:
                self._resuming.add(connection)
            self.link.send(packed(DoorKind.RESUME, number, bytes((outcome,))))
        elif isinstance(outcome, bytes):
            self.link.send(packed(DoorKind.SAME, number, outcome))
        elif kind is DoorKind.PLACES:
            self.link.send(packed(kind, number, frames.offsets(outcome)))
        else:
            self.link.send(packed(kind, number, bytes(outcome)))

    def prove(self, call: Call, arrival: Arrival) -> None:
        """Have the door tell what becomes of a call's answers; of too many, the oldest are lost."""
        self._arrivals[call.stream_id] = arrival
        if len(self._arrivals) > MAX_UNCONFIRMED_ANSWERS:
            self._arrives(next(iter(self._arrivals)), Arrives.LOST)
        self.link.send(packed(DoorKind.PROVE, call.stream_id))

    def _give_up_all(self) -> None:
        super()._give_up_all()
        under_way, self._under_way = self._under_way, {}
        for cancel in under_way.values():
            cancel()
        for number in tuple(self._arrivals):
            self._arrives(number, Arrives.LOST)
        self._resuming.clear()


def _nothing() -> None:
    """Give up what is not begun."""
