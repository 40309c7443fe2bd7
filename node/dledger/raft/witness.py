"""What members are known to have had, and what one that starts has to show before it takes part.

Raft rests on disks that never forget. One that was put back to an older copy of itself (a volume, a
virtual machine) has forgotten promises, and its identity does not show that: it is in the copy. The
others can know. So each member remembers of each other the newest that it promised (`known`), and
one that starts asks all of them first. Until they have answered, or the caller waits no longer, it
is deaf and mute. Then it takes over the highest term that is told, and gives no vote in that any
more: it may have given one. If its log ends before what it is known to have promised it *abstains*:
it gives no vote, stands for none, is not asked what was never committed, and its acknowledgements
count for nothing, until a leader has sent it what it lacks.

Where an operating system's buffer may be acknowledged (`durability: osBuffer`), one power cut
leaves less, honestly, and all of a group that lost power would abstain for ever. There it stands
for nothing less than it promised, and votes for nothing less, for a while only (`written`): a
member that has it is elected meanwhile, if there is one.

A leader that was killed may have promised the newest that it wrote, or not: nobody was told yet
whether its own disk had it. Who has that is up then. So for a while such a one stands for nothing
less, and votes for nothing less (`written`).

What is remembered is what was promised and what a commit may rest on, so an honest member always
has it: the end of a log that was acknowledged to the leader of its term behind an entry of that
term (5.4.2), a leader's own end as far as it tells it committed (it tells no more than its own disk
has), and what a member says itself of its disk. What Raft cuts from a log is less than a mark only
by entries of terms below the one that the member had entered durably when it cut them; so a mark of
such a term says nothing. Pure state, owned by one Raft. See docs/adr/0045.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dledger.common.reports import Mark
from dledger.types import NodeId

PATIENCE_TIMEOUTS: Final = 10
"""For how many election timeouts a leader must be heard before a mark that it does not have counts
no more. A forged one, or a fault's, keeps a member silent no longer than that."""

_NOTHING: Final = Mark(last_term=0, last_index=0, term=0)


class Witness:
    """The marks of all members, and what one of them says of us.

    Attributes:
        known: The newest of each other member, as far as it is known here.
        asks: The others are still being asked: nothing is heard or said.
        owed: Our log ends before this, which others know that we promised; None: we take part.
        written: Where a log of the term that we stood in ends at another member: if we led that
            term we wrote it, and may have promised it; or what we promised and honestly lost.
            None: nowhere behind ours.
        ticks: For how long, since.
        heard_ticks: For how long a leader was heard since.
        told_commit: The commit index in its last append.
    """

    def __init__(self, marks: Mapping[NodeId, Mark], *, asks: bool, may_lose: bool = False) -> None:
        """Know *marks*; *may_lose*: a power cut may take what was acknowledged."""
        self.known: dict[NodeId, Mark] = dict(marks)
        self._may_lose = may_lose
        self.asks = asks
        self.owed: Mark | None = None
        self.written: tuple[int, int] | None = None
        self.ticks = 0
        self.heard_ticks = 0
        self.told_commit = 0

    def allows(self, *, last_term: int, last_index: int) -> bool:
        """Whether a log that ends there may be voted for, or stood for by us."""
        return self.written is None or (last_term, last_index) >= self.written

    def tick(self, *, last_term: int, last_index: int, patience_ticks: int) -> None:
        """Wait no longer for who has what we wrote, once we have it again, or for long."""
        self.ticks += 1
        if self.allows(last_term=last_term, last_index=last_index) or self.ticks >= patience_ticks:
            self.written = None

    @property
    def is_silent(self) -> bool:
        """Whether we give no vote and stand for none."""
        return self.asks or self.owed is not None

    def note(self, node_id: NodeId, *, term: int, last_term: int = 0, last_index: int = 0) -> None:
        """Remember what a member showed: a log that ends there, and a term that it has entered."""
        before = self.known.get(node_id, _NOTHING)
        if term > before.term or (last_term, last_index) > (before.last_term, before.last_index):
            shown = Mark(last_term=last_term, last_index=last_index, term=term)
            self.known[node_id] = before.merged(shown)

    def merge(self, marks: Mapping[NodeId, Mark], *, highest_term: int) -> None:
        """Take over what another member remembers, but for terms that nobody can have come to."""
        for node_id, mark in marks.items():
            if max(mark.term, mark.last_term) <= highest_term:
                self.note(
                    node_id, term=mark.term, last_term=mark.last_term, last_index=mark.last_index
                )

    def keep_only(self, members: Iterable[NodeId]) -> None:
        """Forget who is no member any more."""
        kept = frozenset(members)
        for node_id in [each for each in self.known if each not in kept]:
            del self.known[node_id]

    def answered(
        self, own: Mark, promised: Mark | None, *, stood: bool, ends: Iterable[Mark]
    ) -> None:
        """End asking: go on, or abstain if we show less than is remembered of us.

        Args:
            own: What our disk had when we started.
            promised: What the others remember of us; None: nothing.
            stood: Whether we voted for ourselves in the term of our disk.
            ends: Where the logs of those end that answered.
        """
        self.asks = False
        furthest = max(
            (
                (end.last_term, end.last_index)
                for end in ends
                if stood and end.last_term == own.term
            ),
            default=(0, 0),
        )
        if promised is not None and is_older(own, promised):
            if self._may_lose:
                furthest = max(furthest, (promised.last_term, promised.last_index))
            else:
                self.owed = promised
        if furthest > (own.last_term, own.last_index):
            self.written = furthest

    def append_heard(self, commit_index: int) -> None:
        """Take note of how far the leader of our term has committed."""
        self.told_commit = commit_index

    def pays(self, *, last_term: int, last_index: int) -> bool:
        """Whether a log that ends durably here has what we owe."""
        owed = self.owed
        return owed is not None and (last_term, last_index) >= (owed.last_term, owed.last_index)

    def release(self) -> None:
        """Take part again."""
        self.owed, self.written, self.heard_ticks = None, None, 0


def is_older(own: Mark, promised: Mark) -> bool:
    """Whether a disk that shows *own* is older than what its node *promised*.

    It is if its term is lower, since a term is durable before it is told. By its log only if the
    mark is of a term that the disk does not show to be over: a later leader, or a vote by which a
    damaged end was discarded (adr 14), may have cut what is of earlier ones.
    """
    if promised.term > own.term:
        return True
    shorter = (promised.last_term, promised.last_index) > (own.last_term, own.last_index)
    return shorter and promised.last_term >= own.term


def promised_by(answers: Iterable[Mapping[NodeId, Mark]], node_id: NodeId) -> Mark | None:
    """Return what *answers* together say of a member; None: nothing."""
    found = None
    for marks in answers:
        mark = marks.get(node_id)
        if mark is not None:
            found = mark if found is None else found.merged(mark)
    return found
