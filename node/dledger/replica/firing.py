"""Lets messages go that are due: the leader's loop over what is held.

It decides nothing that could not be decided twice: a message that is held no longer is passed over
when RELEASE_HELD is applied. So a leader may be gone at any moment, or be none any more without
knowing it, and the next one begins anew with what is held (`broker.due_slots`): messages that are
late by then are the first that it lets go.

When a message is due is decided by the group's *date* (`dating`), and nowhere else: when the date
is its delivery time or later. While too few clocks are heard to tell the date, nothing goes. Run by
the node, over its `server.engine`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

from dledger.broker.commands import CancelHeld
from dledger.broker.due_slots import DueSlots
from dledger.broker.held_commands import What
from dledger.broker.held_refs import Fate, HeldMessage, Ref
from dledger.broker.results import HeldCancelled, HeldReleased
from dledger.broker.state import BrokerState
from dledger.common.metrics import NodeMetrics
from dledger.errors import (
    DiskFull,
    DledgerError,
    FaultyEntry,
    LeadershipLost,
    NotLeader,
    OffsetOutOfRange,
    Overloaded,
    StorageError,
)
from dledger.replica.held_copies import Found, by_entry, commands_of, messages_in
from dledger.types import Entry

logger = logging.getLogger(__name__)

UNDER_WAY: Final = 4
"""Commands that are proposed before the first of them is applied."""
_LINE: Final = "held messages"
"""The line in which they wait: they share the log with clients, as one connection of them."""
_LOOK_S: Final = 0.05
"""How long it sleeps: what is held meanwhile may be due before all else."""
_IDLE_S: Final = 0.25
"""The same while nothing is held."""
_REST_S: Final = 1.0
"""After what cannot be done now."""
_STEP_ROWS: Final = 8_192
"""Messages of one step, of which each entry is read once, however scattered they lie."""
_STEP_BYTES: Final = 32 << 20
"""Of their bodies, about: they wait in memory for those that are due before them."""
_DECODED: Final = 256
"""Messages that are decoded in one turn of the loop."""


class Leader(Protocol):
    """What is asked of the node; see `requests.engine.Engine`."""

    @property
    def state(self) -> BrokerState:
        """What is held, and what topics there are."""

    def is_leader(self) -> bool:
        """Whether it leads, and its state is current."""

    def date_ms(self) -> int | None:
        """The group's date; None while it is not known."""

    def submit(self, command: bytes, *, line: str = "") -> asyncio.Future[object]:
        """Queue a framed command."""

    async def read_entry(self, index: int) -> Entry:
        """Return a committed entry."""

    def read_ahead(self, indexes: Sequence[int]) -> None:
        """Begin to read entries that are asked for soon."""

    async def wait_leader_change(self, timeout_s: float) -> None:
        """Return when it may have begun to lead, or after the timeout."""


class Firing:
    """Lets go what is due, of one node while it leads.

    Attributes:
        overdue_ms: For how long the first message that is due, and was not let go yet, has been
            due; 0 on a node that does not lead.
    """

    def __init__(self, leader: Leader, metrics: NodeMetrics) -> None:
        self._leader, self._metrics = leader, metrics
        self._slots = DueSlots(leader.state.held)
        self._aside: list[HeldMessage] = []
        self._aside_until_s = 0.0
        self.overdue_ms = 0

    async def run(self) -> None:
        """Work for ever, while this node leads."""
        while True:
            self._slots, self._aside = DueSlots(self._leader.state.held), []
            self.overdue_ms = 0
            if not self._leader.is_leader():
                await self._leader.wait_leader_change(_REST_S)
                continue
            try:
                await self._lead()
            except (NotLeader, LeadershipLost):
                continue
            except DledgerError as error:
                logger.warning("messages that are due wait: %s", error)
                await asyncio.sleep(_REST_S)

    async def _lead(self) -> None:
        """Work while this node leads."""
        while self._leader.is_leader():
            held = self._leader.state.held
            date_ms = self._leader.date_ms()
            if date_ms is None or not held.count:
                self.overdue_ms = 0
                await asyncio.sleep(_IDLE_S)
                continue
            self._come_back()
            for step in _steps(self._slots.until(date_ms)):
                first_ms = min((each.due_ms for each in (*step, *self._aside)), default=date_ms)
                self.overdue_ms = max(0, date_ms - first_ms)
                if step:
                    await self._let_go(step)
                await asyncio.sleep(0)
            await asyncio.sleep(_LOOK_S)

    # -- what is done with it ----------------------------------------------------------------------

    async def _let_go(self, due: Sequence[HeldMessage]) -> None:
        """Read messages, and propose that they go.

        Raises:
            NotLeader, LeadershipLost: It does not lead any more.
            DledgerError: No more is taken now; what did not go is to be begun anew.
        """
        by_ref = {each.ref: each for each in due}
        messages, broken = await self._read(due)
        under_way: dict[asyncio.Future[object], Sequence[HeldMessage]] = {}
        try:
            for copy in commands_of(What.DELIVER, due, messages):
                while len(under_way) >= UNDER_WAY:
                    await self._settle(under_way)
                proposed = self._leader.submit(copy.command, line=_LINE)
                under_way[proposed] = [by_ref[ref] for ref in copy.refs]
                await asyncio.sleep(0)
            if broken:
                command = CancelHeld(refs=tuple(broken)).encode()
                under_way[self._leader.submit(command, line=_LINE)] = ()
                logger.warning("%d held messages are broken, and dropped", len(broken))
            while under_way:
                await self._settle(under_way)
        except DledgerError:
            if under_way:  # else the same would be proposed once more, behind these
                await asyncio.wait(under_way)
            raise
        finally:
            for each in under_way:
                each.add_done_callback(_note_seen)

    async def _settle(self, under_way: dict[asyncio.Future[object], Sequence[HeldMessage]]) -> None:
        """Wait until one of the commands is applied, and see what came of it.

        Raises:
            NotLeader, LeadershipLost: It does not lead any more.
            DiskFull, Overloaded: It was not taken.
        """
        done, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            messages, error = under_way.pop(each), each.exception()
            if isinstance(error, NotLeader | LeadershipLost | DiskFull | Overloaded):
                raise error
            if error is not None:
                logger.warning("messages that are due could not be let go: %s", error)
                self._set_aside(messages)
            elif isinstance(released := each.result(), HeldReleased):
                self._note(released, messages)
            elif isinstance(released, HeldCancelled):
                self._metrics.held_dropped.inc(released.before.count(Fate.HELD))

    def _note(self, released: HeldReleased, messages: Sequence[HeldMessage]) -> None:
        went = released.before.count(Fate.HELD)
        if released.stored is None:
            self._metrics.held_dropped.inc(went)
            return
        self._metrics.held_delivered.inc(went)
        date_ms = self._leader.date_ms()
        if date_ms is not None:
            late_ms = max(0, date_ms - min(each.due_ms for each in messages))
            self._metrics.held_late_seconds.observe(late_ms / 1000)

    # -- what cannot go now ------------------------------------------------------------------------

    def _set_aside(self, due: Iterable[HeldMessage]) -> None:
        """Try these again a little later, so that nothing waits for them."""
        self._aside += due
        self._aside_until_s = asyncio.get_running_loop().time() + _REST_S

    def _come_back(self) -> None:
        if self._aside and asyncio.get_running_loop().time() >= self._aside_until_s:
            aside, self._aside = {each.ref: each for each in self._aside}, []
            self._slots.put_back(aside.values())

    async def _read(self, due: Sequence[HeldMessage]) -> tuple[dict[Ref, Found], list[Ref]]:
        """Return messages, and which are broken; set aside those whose entry cannot be read now.

        Entries are read in their own order, which is not that of the messages: most lie together,
        or all of them are scattered over the same entries. Of each only the messages are kept.
        """
        messages, broken, aside = dict[Ref, Found](), list[Ref](), list[HeldMessage]()
        found, size_bytes = by_entry(due), 0
        self._leader.read_ahead([*found])
        for index, held in found.items():
            if size_bytes > 2 * _STEP_BYTES:  # far more than they were reckoned to be
                aside += held
                continue
            try:
                entry = await self._leader.read_entry(index)
            except OffsetOutOfRange:
                aside += held  # copied forward meanwhile, and dropped
            except (FaultyEntry, StorageError) as error:
                logger.warning("messages that are due wait for entry %d: %s", index, error)
                aside += held
            else:
                for first in range(0, len(held), _DECODED):
                    some = held[first : first + _DECODED]
                    there = messages_in(entry, some)
                    size_bytes += sum(len(message.body) for _, _, message in there.values())
                    messages |= there
                    broken += [each.ref for each in some if each.ref not in there]
                    await asyncio.sleep(0)
        if aside:
            self._set_aside(aside)
        return messages, broken


def _steps(parts: Iterator[Sequence[HeldMessage]]) -> Iterator[Sequence[HeldMessage]]:
    """Yield what is due in the same order, as much as is read in one step; or nothing, for a step.

    How large a message is only its entry knows. Its payload has at least as many as its row says,
    so it is reckoned to have that share of it: the first ones have less.
    """
    step, size_bytes = list[HeldMessage](), 0
    for part in parts:
        if not part:
            yield ()
        for each in part:
            more = (each.payload.end - each.payload.start) // (each.row + 1)
            if step and (len(step) >= _STEP_ROWS or size_bytes + more > _STEP_BYTES):
                yield step
                step, size_bytes = [], 0
            step.append(each)
            size_bytes += more
    if step:
        yield step


def _note_seen(proposed: asyncio.Future[object]) -> None:
    """Take note of what came of a command that nobody waits for any more."""
    if not proposed.cancelled():
        proposed.exception()
