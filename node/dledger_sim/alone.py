"""One core with a plain disk and no network, for tests of one node's rules.

What the core hands over is kept for inspection; writes end only when a test says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

from crc32c import crc32c

from dledger.common.chain import chain_behind
from dledger.raft import invariants
from dledger.raft.core import Raft, RaftConfig, Ready
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
from dledger.types import Entry, EntryKind, HardState, NodeId, SnapshotInfo
from dledger_sim.disk import ModelDisk, Reader
from dledger_sim.scenario import founding_entry, members
from dledger_sim.stalls import while_true

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


class Alone:
    """Node "1" of a group whose other nodes are played by the test.

    Args:
        voters: How many nodes the group has.
        terms: The terms of the entries behind the founding one; None: an empty log.
        term: The durable term; by default that of the last entry.
        vote: The durable vote.
        applied_index: Where applying goes on.
        snapshots: The node's own; None: it neither sends nor takes any.
        in_memory: Whether old entries can be read at once.
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
        **config: Any,
    ) -> None:
        entries = [] if terms is None else log_of(*terms, voters=voters)
        last_term = entries[-1].term if entries else 0
        hard_state = HardState(last_term if term is None else term, NodeId(vote) if vote else None)
        self.disk = ModelDisk(entries, hard_state)
        self.committed: list[Entry] = []
        self.confirmed: list[ConfirmedRead] = []
        self.chunks: list[SnapshotChunk] = []
        self.installs: list[SnapshotInfo] = []
        self.sent: list[Message] = []
        self._taken: deque[Ready] = deque()
        self.raft = Raft(
            RaftConfig(id=NodeId("1"), **config),
            hard_state=hard_state,
            log=Reader(self.disk, in_memory),
            memberships=self.disk.memberships(),
            rng=Random(1),
            applied_index=applied_index,
            snapshots=snapshots,
        )

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
        log = self.raft._log  # noqa: SLF001 - what no caller of a core may need
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
        for _ in while_true(self.raft.has_ready):
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
