"""One Raft core stepped by hand: no clock, no network, and a list for a disk.

`Alone` is one node whose peers a test plays. `scenario` and `discard_replay` build groups of the
same parts. What the core hands over is kept for inspection; writes end only when a test says so.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from random import Random
from typing import Any, TypeVar

from crc32c import crc32c

from dledger.common.chain import chains_behind
from dledger.errors import OffsetOutOfRange
from dledger.raft import invariants
from dledger.raft.core import Raft, RaftConfig, Ready
from dledger.raft.membership import memberships_in
from dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    HeartbeatRequest,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    VoteRequest,
    VoteResponse,
)
from dledger.raft.ready import ConfirmedRead, SnapshotChunk
from dledger.raft.snapshots import SnapshotReader
from dledger.types import Entry, EntryKind, HardState, Membership, NodeId, Role, SnapshotInfo
from dledger_sim.process import founding_entry, members
from tests.raft.chains import chain_behind

_MOST_READIES = 10_000
_CHAINS: dict[type[Message], dict[str, str]] = {
    PreVoteRequest: {"last_chain": "last_index"},
    VoteRequest: {"last_chain": "last_index"},
    AppendRequest: {"previous_chain": "previous_index"},
    AppendResponse: {"match_chain": "match_index"},
    HeartbeatRequest: {"commit_chain": "commit_index"},
}
"""Which field of a message is the chain CRC of which index."""
T = TypeVar("T")
M = TypeVar("M", bound=Message)


def data_entry(term: int, index: int, data: bytes = b"") -> Entry:
    """Return a DATA entry."""
    return Entry(
        term=term,
        index=index,
        kind=EntryKind.DATA,
        timestamp_ms=0,
        crc32c=crc32c(data),
        data=data,
    )


def log_of(*terms: int, voters: int = 3) -> list[Entry]:
    """Return a founding entry of term 1, then one DATA entry for each of *terms*."""
    founding = founding_entry(members(voters))
    return [founding, *(data_entry(term, at + 2) for at, term in enumerate(terms))]


class ListDisk:
    """What a node has on disk: a list of entries, and how many of them a crash leaves.

    Implements the core's ``LogStorage``. It may begin behind a snapshot; the memberships that this
    holds are kept beside the list.

    Args:
        entries: What is there from the beginning, durably.
        hard_state: The durable term and vote.
        in_memory: Whether entries can be read at once.

    Attributes:
        unreadable: The indexes of memberships that are damaged.
    """

    def __init__(
        self,
        entries: Sequence[Entry] = (),
        hard_state: HardState | None = None,
        in_memory: Callable[[], bool] = lambda: True,
    ) -> None:
        self._entries, self._durable = list(entries), list(entries)
        self._chains = chains_behind(0, entries)
        self._base_index = self._base_term = self._base_chain = 0
        self._base_memberships: list[tuple[int, Membership]] = []
        self._in_memory = in_memory
        self.hard_state = hard_state or HardState()
        self.unreadable: set[int] = set()

    @property
    def first_index(self) -> int:
        """The oldest index kept."""
        return self._base_index + 1

    @property
    def last_index(self) -> int:
        """The newest index written."""
        return self._base_index + len(self._entries)

    def begin_behind(
        self, index: int, term: int, chain: int, memberships: Sequence[tuple[int, Membership]]
    ) -> None:
        """Drop the entries that a snapshot covers; all of them, if ours are others."""
        known = index <= self.last_index and self.term(index) == term
        kept = self._entries[index - self._base_index :] if known else []
        self._base_index, self._base_term, self._base_chain = index, term, chain
        self._base_memberships = list(memberships)
        self._entries, self._durable = kept, list(kept)
        self._chains = chains_behind(chain, kept)

    def term(self, index: int) -> int:
        """Return the term at *index*; 0 for index 0."""
        at = index - self._base_index
        return self._entries[at - 1].term if at else self._base_term

    def chain(self, index: int) -> int:
        """Return the chain CRC at *index*; 0 for index 0."""
        at = index - self._base_index
        return self._chains[at - 1] if at else self._base_chain

    def stored(self, first: int, last: int) -> tuple[Entry, ...]:
        """Return the entries [first, last], in memory or not."""
        return tuple(self._entries[first - self._base_index - 1 : last - self._base_index])

    def entries(self, first: int, last: int, max_bytes: int) -> tuple[Entry, ...] | None:
        """Return entries from [first, last]: at least one, cut at *max_bytes*; or None."""
        if not self._in_memory():
            return None
        found = self._entries[first - self._base_index - 1 : last - self._base_index]
        for count, entry in enumerate(found):
            max_bytes -= entry.size_bytes
            if max_bytes < 0:
                return tuple(found[: max(1, count)])
        return tuple(found)

    def memberships(self) -> Sequence[tuple[int, Membership]]:
        """Return (index, membership) of the membership entries, ascending."""
        known = (*self._base_memberships, *memberships_in(self._entries))
        return [pair for pair in known if pair[0] not in self.unreadable]

    def membership_indexes(self) -> Collection[int]:
        """Return where they are, those too that are damaged."""
        return {index for index, _ in self.memberships()} | self.unreadable

    def write(self, entries: Sequence[Entry]) -> None:
        """Write entries, truncating at the first; they are durable only after `sync`."""
        at = entries[0].index - self._base_index - 1
        assert 0 <= at <= len(self._entries), "a log has no gaps"
        del self._entries[at:], self._chains[at:]
        self._chains += chains_behind(self.chain(entries[0].index - 1), entries)
        self._entries += entries

    def cut_behind(self, last: int) -> None:
        """Remove what is behind *last*, durably; what was written before it is, too."""
        del self._entries[last - self._base_index :], self._chains[last - self._base_index :]
        self.sync()

    def sync(self) -> None:
        """Make everything written durable."""
        self._durable = list(self._entries)

    def copied(self) -> tuple[list[Entry], HardState]:
        """Return a copy of what is durable."""
        return list(self._durable), self.hard_state

    def put_back(self, copied: tuple[list[Entry], HardState]) -> None:
        """Hold what a copy of this disk had; it begins where it began then."""
        entries, self.hard_state = copied
        self._durable = list(entries)
        self.crash()

    def crash(self) -> None:
        """Lose what was not synced."""
        self._entries = list(self._durable)
        self._chains = chains_behind(self._base_chain, self._entries)


class ModelSnapshots:
    """The newest snapshot, and what has arrived of a leader's. Implements `SnapshotReader`."""

    def __init__(self) -> None:
        self._info: SnapshotInfo | None = None
        self._bytes = b""
        self._arrived = bytearray()

    def newest(self) -> SnapshotInfo | None:
        """Return the newest snapshot, if there is one."""
        return self._info

    def read(self, info: SnapshotInfo, offset: int, max_bytes: int) -> bytes | None:
        """Return bytes of the newest; an older one is gone."""
        if info != self._info:
            raise OffsetOutOfRange(offset, first=0, last=0)
        return self._bytes[offset : offset + max_bytes]

    def take(
        self,
        last_index: int,
        last_term: int,
        last_chain: int,
        memberships: Sequence[tuple[int, Membership]],
    ) -> SnapshotInfo:
        """Make a snapshot that ends in this entry."""
        rows = [[at, one.encode().decode()] for at, one in memberships if at <= last_index]
        return self._keep(last_index, last_term, last_chain, json.dumps(rows).encode())

    def receive(self, chunk: SnapshotChunk) -> None:
        """Keep a piece aside."""
        if chunk.offset == 0:
            self._arrived.clear()
        assert chunk.offset == len(self._arrived), "pieces come in order"
        self._arrived += chunk.data

    def rot(self) -> None:
        """Spoil what has arrived."""
        self._arrived[-1] ^= 1

    def install(self, info: SnapshotInfo) -> Sequence[tuple[int, Membership]] | None:
        """Take over what has arrived and return its memberships; None if its CRC is wrong."""
        data = bytes(self._arrived)
        if crc32c(data) != info.crc32c:
            return None
        self._keep(info.last_index, info.last_term, info.last_chain, data)
        return [(at, Membership.decode(text.encode())) for at, text in json.loads(data)]

    def _keep(self, last_index: int, last_term: int, last_chain: int, data: bytes) -> SnapshotInfo:
        self._bytes = data
        self._info = SnapshotInfo(
            last_index=last_index,
            last_term=last_term,
            last_chain=last_chain,
            size_bytes=len(data),
            crc32c=crc32c(data),
        )
        return self._info


def while_ready(raft: Raft) -> Iterator[None]:
    """Yield as long as the core has something to hand over."""
    for _ in range(_MOST_READIES):
        if not raft.has_ready():
            return
        yield
    raise AssertionError(f"there is more to do after {_MOST_READIES} times")


class Alone:
    """Node "1" of a group whose other nodes are played by the test.

    Args:
        voters: How many nodes the group has.
        terms: The terms of the entries behind the founding one; None: an empty log.
        term: The durable term; by default that of the last entry.
        vote: The durable vote.
        applied_index: Where applying goes on.
        snapshots: The node's own; None: it has none yet.
        in_memory: Whether old entries can be read at once.
        asks: Whether it asks the others first.
        config: Settings of `RaftConfig`.
    """

    def __init__(
        self,
        *,
        voters: int = 3,
        terms: tuple[int, ...] | None = (),
        term: int | None = None,
        vote: str | None = None,
        applied_index: int = 0,
        in_memory: Callable[[], bool] = lambda: True,
        snapshots: SnapshotReader | None = None,
        asks: bool = False,
        **config: Any,
    ) -> None:
        entries = [] if terms is None else log_of(*terms, voters=voters)
        last_term = entries[-1].term if entries else 0
        hard_state = HardState(last_term if term is None else term, NodeId(vote) if vote else None)
        self.disk = ListDisk(entries, hard_state, in_memory)
        self.committed: list[Entry] = []
        self.confirmed: list[ConfirmedRead] = []
        self.chunks: list[SnapshotChunk] = []
        self.installs: list[SnapshotInfo] = []
        self.sent: list[Message] = []
        self._taken: deque[Ready] = deque()
        self.raft = Raft(
            RaftConfig(id=NodeId("1"), **config),
            hard_state=hard_state,
            log=self.disk,
            memberships=self.disk.memberships(),
            rng=Random(1),
            applied_index=applied_index,
            snapshots=snapshots or ModelSnapshots(),
            asks=asks,
        )

    def role(self) -> Role:
        """Return its role now."""
        return self.raft.role

    def do(self, action: Callable[[Raft], T]) -> T:
        """Call into the core, and check its invariants."""
        before = invariants.check(self.raft)
        result = action(self.raft)
        invariants.check(self.raft, before)
        return result

    def tick(self, count: int = 1) -> None:
        """Let ticks pass."""
        for _ in range(count):
            self.do(lambda raft: raft.tick())

    def hear(self, kind: type[M], *, sender: str = "2", term: int, **fields: Any) -> None:
        """Let a message arrive; a chain CRC that is not given is that of our own log there."""
        for chain, index in _CHAINS.get(kind, {}).items():
            fields.setdefault(chain, self._own_chain(fields[index]))
        if kind is AppendRequest:
            last_chain = chain_behind(fields["previous_chain"], fields.get("entries", ()))
            fields.setdefault("last_chain", last_chain)
        message = kind(sender=NodeId(sender), recipient=self.raft.id, term=term, **fields)
        self.do(lambda raft: raft.step(message))

    def _own_chain(self, index: int) -> int:
        log = self.raft._log
        return log.chain(index) if log.knows(index) else 0

    def append(
        self,
        *entries: Entry,
        after: tuple[int, int],
        term: int,
        commit: int = 0,
        sender: str = "2",
        chain: int | None = None,
        last_chain: int | None = None,
    ) -> None:
        """Let an AppendRequest arrive.

        *after* is the (term, index) before the entries, and *chain* the chain CRC there; what is
        not given is as it should be.
        """
        previous = self._own_chain(after[1]) if chain is None else chain
        self.hear(
            AppendRequest,
            sender=sender,
            term=term,
            previous_term=after[0],
            previous_index=after[1],
            previous_chain=previous,
            last_chain=chain_behind(previous, entries) if last_chain is None else last_chain,
            commit_index=commit,
            entries=entries,
        )

    def ack(self, index: int, *, sender: str = "2") -> None:
        """Let a success for everything up to *index* arrive."""
        self.hear(
            AppendResponse, sender=sender, term=self.raft.term, success=True, match_index=index
        )

    def propose(self, data: bytes = b"x") -> tuple[int, int]:
        """Propose an entry."""
        return self.do(
            lambda raft: raft.propose(
                kind=EntryKind.DATA, data=data, crc32c=crc32c(data), timestamp_ms=0
            )
        )

    def take(self) -> Ready:
        """Take one Ready; its writes stay under way."""
        ready = self.do(lambda raft: raft.ready())
        self._taken.append(ready)
        self.committed.extend(ready.committed)
        self.confirmed.extend(ready.reads)
        self.chunks.extend(ready.chunks)
        self.installs.extend([ready.install] if ready.install else [])
        return ready

    def save_hard_state(self) -> None:
        """Let the oldest hard state write under way end."""
        self._saved(next(r.hard_state for r in self._taken if r.hard_state is not None))

    def sync(self) -> None:
        """Let the oldest log write under way end."""
        while not self._changes_log(self._taken[0]):
            self._taken.popleft()
        ready = self._taken.popleft()
        if ready.cut_behind is not None:
            self.disk.cut_behind(ready.cut_behind)
        if ready.entries:
            self.disk.write(ready.entries)
            term, index = ready.entries[-1].term, ready.entries[-1].index
            self.do(lambda raft: raft.persisted(term=term, index=index))

    def _changes_log(self, ready: Ready) -> bool:
        return bool(ready.entries) or ready.cut_behind is not None

    def settle(self) -> list[Message]:
        """Take everything and let every write end; return all messages, oldest first."""
        sent: list[Message] = []
        for _ in while_ready(self.raft):
            ready = self.take()
            sent += [*ready.messages, *ready.after_hard_state, *ready.after_entries]
            if ready.hard_state is not None:
                self._saved(ready.hard_state)
            if self._changes_log(ready):
                self.sync()
        self.sent += sent
        return sent

    def become_candidate(self) -> None:
        """Win the pre-vote; the candidate's own vote is not durable yet."""
        self.do(lambda raft: raft.campaign())
        for peer in self._peers():
            self.hear(PreVoteResponse, sender=peer, term=self.raft.term + 1, granted=True)
            if self.raft.role.value == "candidate":
                return

    def become_leader(self, *, settle: bool = True) -> None:
        """Win an election; with *settle*, the no-op is durable and its messages are gone."""
        self.become_candidate()
        self.save_own_vote()
        for peer in self._peers():
            self.hear(VoteResponse, sender=peer, term=self.raft.term, granted=True)
        if settle:
            self.settle()

    def save_own_vote(self) -> None:
        """Let the newest hard state become durable."""
        saved = self.take().hard_state
        if saved is not None:
            self._saved(saved)

    def _saved(self, hard_state: HardState) -> None:
        self.do(lambda raft: raft.hard_state_persisted(hard_state))

    def _peers(self) -> list[str]:
        return sorted(self.raft.membership.voter_ids - {self.raft.id})
