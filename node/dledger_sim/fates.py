"""What may become of a message that is held until its time, by the log.

Told each entry once, when the first node applies it. Whatever clocks say, and whoever leads or
believes so: no message goes before its time, by every right clock; each goes once, or is recalled,
and never both.
"""

from __future__ import annotations

from collections.abc import Sequence

from dledger.broker.command_frame import CommandType, split
from dledger.broker.commands import CancelHeld, decode
from dledger.broker.held_commands import ProduceHeld, ReleaseHeld, What
from dledger.broker.held_refs import HELD_QUEUE, Fate, Ref
from dledger.broker.results import HeldCancelled, HeldReleased, Produced
from dledger.types import Entry, EntryKind
from dledger_sim.checkers import ViolationError


class Fates:
    """What becomes of each held message, by the log.

    Attributes:
        due_ms: When each is due that was ever held.
        delivered, recalled: Those that were.
    """

    def __init__(self) -> None:
        self.due_ms: dict[Ref, int] = {}
        self.delivered: set[Ref] = set()
        self.recalled: set[Ref] = set()
        self._newest = 0

    def apply(self, entry: Entry, results: Sequence[object], right_ms: int) -> None:
        """Check an entry that is applied, and what it gave; *right_ms*: what right clocks say."""
        if entry.index <= self._newest or entry.kind is not EntryKind.DATA:
            return
        self._newest = entry.index
        for (kind, start, end), result in zip(split(entry.data), results, strict=True):
            if kind == CommandType.PRODUCE_HELD and isinstance(result, Produced):
                self._hold(ProduceHeld(entry.data, start, end), result)
            elif kind == CommandType.RELEASE_HELD and isinstance(result, HeldReleased):
                self._release(ReleaseHeld(entry.data, start, end), result, right_ms)
            elif kind == CommandType.CANCEL_HELD and isinstance(result, HeldCancelled):
                self._cancel(_refs_of(entry.data[start:end]), result)

    def _hold(self, command: ProduceHeld, result: Produced) -> None:
        places = zip(command.due_ms, result.queue_ids, result.offsets, strict=True)
        for due_ms, queue_id, offset in places:
            if queue_id != HELD_QUEUE:
                continue  # it was stored at once by an earlier try
            ref = Ref.unpack(offset)
            if self.due_ms.setdefault(ref, due_ms) != due_ms:
                raise ViolationError(f"{ref} is due at {self.due_ms[ref]} and at {due_ms}")

    def _release(self, command: ReleaseHeld, result: HeldReleased, right_ms: int) -> None:
        if command.what is not What.DELIVER:
            return
        for ref, before in zip(command.refs, result.before, strict=True):
            if before is not Fate.HELD:
                continue
            if self.due_ms[ref] > right_ms:
                raise ViolationError(f"{ref} goes {self.due_ms[ref] - right_ms} ms before its time")
            self._end(ref, self.delivered)

    def _cancel(self, refs: Sequence[Ref], result: HeldCancelled) -> None:
        for ref, before in zip(refs, result.before, strict=True):
            if before is Fate.HELD:
                self._end(ref, self.recalled)

    def _end(self, ref: Ref, ended: set[Ref]) -> None:
        if ref in self.delivered or ref in self.recalled:
            raise ViolationError(f"{ref} was delivered or recalled before")
        ended.add(ref)


def _refs_of(payload: bytes) -> Sequence[Ref]:
    command = decode(CommandType.CANCEL_HELD, payload)
    return command.refs if isinstance(command, CancelHeld) else ()
