"""What may become of a message that is held, by the log.

Told each entry once, when the first node applies it. Whatever clocks say, and whoever leads or
believes so: no message goes before its time, by every right clock, and no half before somebody has
said that it is committed; each goes once, or is cancelled, and never both. No entry goes that
something held lies in. How often producers were asked about a half is what the log has of that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dledger.broker.command_frame import CommandType, split
from dledger.broker.commands import CancelHeld, CheckHeld, ResumeHeld, decode
from dledger.broker.held_commands import ProduceHeld, ReleaseHeld, What
from dledger.broker.held_refs import HELD_QUEUE, Fate, Kind, Ref
from dledger.broker.results import (
    HeldCancelled,
    HeldChecked,
    HeldMoved,
    HeldPaused,
    HeldReleased,
    HeldResumed,
    Produced,
    Retained,
)
from dledger.types import Entry, EntryKind
from dledger_sim.checkers import ViolationError


class Fates:
    """What becomes of each held message, by the log.

    Attributes:
        due_ms: When each is due that was ever held.
        delivered, recalled: Those that were.
        half_of: What the half of a message id is called.
        committed, rolled_back: Ids of messages of which somebody has said so, or is about to.
        checks: How often producers were asked about each half.
    """

    def __init__(self) -> None:
        self.due_ms: dict[Ref, int] = {}
        self.delivered: set[Ref] = set()
        self.recalled: set[Ref] = set()
        self.half_of: dict[str, Ref] = {}
        self.committed: set[str] = set()
        self.rolled_back: set[str] = set()
        self.checks: Counter[Ref] = Counter()
        self._id_of: dict[Ref, str] = {}
        self._lies_in: dict[Ref, int] = {}
        self._waiting: set[Ref] = set()
        self._paused_by = b""
        self._newest = 0

    def apply(self, entry: Entry, results: Sequence[object], right_ms: int) -> None:
        """Check an entry that is applied, and what it gave; *right_ms*: what right clocks say."""
        if entry.index <= self._newest or entry.kind is not EntryKind.DATA:
            return
        self._newest = entry.index
        for (kind, start, end), result in zip(split(entry.data), results, strict=True):
            if kind == CommandType.PRODUCE_HELD and isinstance(result, Produced):
                self._hold(ProduceHeld(entry.data, start, end), result, entry.index)
            elif kind == CommandType.RELEASE_HELD:
                self._release(ReleaseHeld(entry.data, start, end), result, entry.index, right_ms)
            elif isinstance(result, HeldPaused):
                self._pause(entry.data[start:end], result)
            elif isinstance(result, HeldCancelled | HeldChecked | HeldResumed):
                self._end_or_check(decode(kind, entry.data[start:end]), result)
            elif isinstance(result, Retained):
                self._retain(result.first_index)

    def _hold(self, command: ProduceHeld, result: Produced, index: int) -> None:
        ids = command.batch.message_ids()
        places = zip(command.due_ms, ids, result.queue_ids, result.offsets, strict=True)
        for due_ms, message_id, queue_id, offset in places:
            if queue_id != HELD_QUEUE:
                continue  # it was stored at once by an earlier try
            ref = Ref.unpack(offset)
            if self.due_ms.setdefault(ref, due_ms) != due_ms:
                raise ViolationError(f"{ref} is due at {self.due_ms[ref]} and at {due_ms}")
            if not self._has_ended(ref):
                self._lies_in.setdefault(ref, index)
            if command.kind is Kind.HALF:
                self._id_of[ref] = message_id.decode()
                self.half_of[message_id.decode()] = ref

    def _release(self, command: ReleaseHeld, result: object, index: int, right_ms: int) -> None:
        if isinstance(result, HeldMoved):
            self._lies_in |= dict.fromkeys(self._lies_in.keys() & command.refs, index)
        if command.what is not What.DELIVER or not isinstance(result, HeldReleased):
            return
        for ref, before in zip(command.refs, result.before, strict=True):
            if before is not Fate.HELD:
                continue
            if ref in self._id_of:
                if self._id_of[ref] not in self.committed:
                    raise ViolationError(f"half {ref} goes, and nobody has committed it")
            elif self.due_ms[ref] > right_ms:
                raise ViolationError(f"{ref} goes {self.due_ms[ref] - right_ms} ms before its time")
            self._end(ref, self.delivered)

    def _end_or_check(self, command: object, result: object) -> None:
        if isinstance(command, CancelHeld) and isinstance(result, HeldCancelled):
            self._cancel(command.refs, result)
        elif isinstance(command, CheckHeld) and isinstance(result, HeldChecked):
            self._check(command.refs, result)
        elif isinstance(command, ResumeHeld) and isinstance(result, HeldResumed):
            waited = {ref for ref in self._waiting if not self._has_ended(ref)}
            self._waiting.clear()
            if result.waited != len(waited):
                raise ViolationError(f"{result.waited} messages had waited, and not {len(waited)}")
            for ref in waited if command.cancels else ():
                self._end(ref, self.recalled)

    def _cancel(self, refs: Sequence[Ref], result: HeldCancelled) -> None:
        for ref, before in zip(refs, result.before, strict=True):
            if before is Fate.HELD:
                if ref in self._id_of and self._id_of[ref] not in self.rolled_back:
                    raise ViolationError(f"half {ref} is cancelled, and nobody has said so")
                self._end(ref, self.recalled)

    def _check(self, refs: Sequence[Ref], result: HeldChecked) -> None:
        for ref, checks in zip(refs, result.checks, strict=True):
            self.checks[ref] += not self._has_ended(ref)
            if checks != (0 if self._has_ended(ref) else self.checks[ref]):
                raise ViolationError(f"half {ref} is checked for the {checks}. time")

    def _pause(self, payload: bytes, result: HeldPaused) -> None:
        held = 0
        if payload != self._paused_by:  # the same again does nothing
            self._paused_by, self._waiting = payload, set(self._lies_in)
            held = len(self._waiting)
        if result.waiting != held:
            raise ViolationError(f"{result.waiting} messages wait for a word, and not {held}")

    def _retain(self, first_index: int) -> None:
        lost = [ref for ref, index in self._lies_in.items() if index < first_index]
        if lost:
            raise ViolationError(f"entries below {first_index} go, and {lost[0]} lies there")

    def _has_ended(self, ref: Ref) -> bool:
        return ref in self.delivered or ref in self.recalled

    def _end(self, ref: Ref, ended: set[Ref]) -> None:
        if self._has_ended(ref):
            raise ViolationError(f"{ref} was delivered or recalled before")
        ended.add(ref)
        del self._lies_in[ref]
