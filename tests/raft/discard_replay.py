"""The steps of `discard_model`, done by shipped cores: after each, both must be in the same state.

The messages are the cores' own where they ask something (votes, questions), and else what a leader
with that log would send. What the model leaves out is got out of the way: a leader's lease is
forgotten as when its connection breaks, and an election begins as by a hand-over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, TypeVar

from crc32c import crc32c

from dledger.raft import invariants
from dledger.raft.core import Raft, RaftConfig, Ready
from dledger.raft.membership import begin_change, end_change
from dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    DiscardRequest,
    DiscardResponse,
    HeartbeatRequest,
    InstallSnapshotRequest,
    Message,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from dledger.types import (
    Entry,
    EntryKind,
    HardState,
    Member,
    Membership,
    NodeId,
    Role,
    SnapshotInfo,
)
from tests.raft.bench import ListDisk, ModelSnapshots, while_ready
from tests.raft.chains import chain_behind
from tests.raft.discard_model import FINAL, FIRST, JOINT, LEADS, Label, Log, Model, Node, State

_BEHIND: Final = 1
"""The common beginning is one entry, the founding one: position 1 of the model is index 2."""


M = TypeVar("M", bound=Message)


class DifferError(Exception):
    """Model and core went different ways."""


class Replay:
    """A group of cores that begins as a state of the model does."""

    def __init__(self, model: Model, start: State) -> None:
        self._model = model
        self._entries = _Entries(model)
        self._ids = [_id(at) for at in range(len(start.nodes))]
        self.nodes = [_Core(at, node, model, self._entries) for at, node in enumerate(start.nodes)]

    def do(self, label: Label, before: State) -> None:
        """Do a step of the model; *before* is the state that it starts from."""
        kind, *numbers = label
        match kind, [int(each) for each in numbers]:
            case "campaign", [at, term]:
                self._campaign(at, term)
            case "ask", [at, term]:
                self._ask(before, at, term)
            case "vote", [at, candidate]:
                self._vote(at, candidate)
            case "answer", [at, asker]:
                self._answer(at, asker)
            case "append", [at, term, last]:
                self._append(before, at, term, last)
            case "snapshot", [at, term]:
                self._snapshot(before, at, term)
            case "mend", [at, position]:
                entry = self._entries.at(before.nodes[at].disk, position)
                self.nodes[at].mend(position, entry)
            case "restart", [at]:
                self.nodes[at].start()
            case _:
                raise ValueError(f"no such step: {label}")

    def compare(self, state: State) -> None:
        """Raise DifferError unless every core is as the model says."""
        for at, (node, core) in enumerate(zip(state.nodes, self.nodes, strict=True)):
            reign = state.reigns[node.term]
            leads = node.role == LEADS and reign is not None
            wanted = {
                "term": node.term,
                "voted": node.voted,
                "terms": [1, *(each >> 2 for each in node.log)][node.base + bool(node.base) :],
                "log ends": (node.length + _BEHIND, len(node.disk) + _BEHIND),
                "leads": node.role == LEADS,
                "runs": node.role > 0,
                "in force": self._entries.memberships[self._model.in_force(at, node)],
            }
            found = core.seen()
            if leads and reign is not None:
                committed = self._model.committed(reign, node.term)
                wanted["committed"] = committed + _BEHIND if committed else found["committed"]
            else:
                found.pop("committed")
            if found != wanted:
                raise DifferError(f"node {at}: the model has {wanted}, the core {found}")

    def _campaign(self, at: int, term: int) -> None:
        core = self.nodes[at]
        core.forget_leader()
        self._raise(core, term - 1)
        core.hear(
            TimeoutNow(sender=self._other(at), recipient=core.id, term=core.raft.term),
        )

    def _ask(self, state: State, at: int, term: int) -> None:
        core = self.nodes[at]
        core.forget_leader()
        self._raise(core, term - 1)
        lost = self._model.first_lost(at, state.nodes[at])
        core.do(lambda raft: raft.ask_discard(lost + _BEHIND))
        for request in core.take(DiscardRequest):
            if request.firm:
                continue
            witness = self.nodes[self._ids.index(request.recipient)]
            entry = state.nodes[at].disk[lost - 1]
            if core.raft.term < term and may_answer(self._model, state, witness.at, lost, entry):
                self._question(core, witness, request)

    def _question(self, core: _Core, witness: _Core, request: DiscardRequest) -> None:
        witness.forget_leader()
        witness.hear(request)
        for answer in witness.take(DiscardResponse):
            core.hear(answer)

    def _answer(self, at: int, asker: int) -> None:
        core, witness = self.nodes[asker], self.nodes[at]
        asked = [m for m in core.sent if isinstance(m, DiscardRequest) and m.firm]
        newest = [m for m in asked if m.term == core.raft.term and m.recipient == witness.id]
        self._question(core, witness, newest[-1])

    def _vote(self, at: int, candidate: int) -> None:
        voter, core = self.nodes[at], self.nodes[candidate]
        asked = [m for m in core.sent if isinstance(m, VoteRequest) and m.term == core.raft.term]
        voter.forget_leader()
        voter.hear(next(m for m in asked if m.recipient == voter.id))
        for answer in voter.take(VoteResponse):
            core.hear(answer)

    def _append(self, state: State, at: int, term: int, last: int) -> None:
        reign = state.reigns[term]
        assert reign is not None, "someone led that term"
        log, core = state.nodes[at].log, self.nodes[at]
        same = 0
        while same < min(len(log), last) and log[same] == reign.log[same]:
            same += 1
        request = AppendRequest(
            sender=self._ids[reign.leader],
            recipient=core.id,
            term=term,
            previous_index=same + _BEHIND,
            previous_term=reign.log[same - 1] >> 2 if same else 1,
            previous_chain=self._entries.chain(reign.log[:same]),
            last_chain=self._entries.chain(reign.log[:last]),
            commit_index=0,
            entries=tuple(self._entries.at(reign.log, each) for each in range(same + 1, last + 1)),
        )
        core.hear(request)
        self._acknowledge(core, self.nodes[reign.leader], term)

    def _acknowledge(self, core: _Core, leader: _Core, term: int) -> None:
        for answer in core.take(AppendResponse):
            if leader.raft.role is Role.LEADER and leader.raft.term == term:
                leader.hear(answer)

    def _snapshot(self, state: State, at: int, term: int) -> None:
        reign, core, base = state.reigns[term], self.nodes[at], self._model.snapshot_at
        assert reign is not None, "someone led that term"
        leader = self._ids[reign.leader]
        core.hear(
            HeartbeatRequest(
                sender=leader, recipient=core.id, term=term, commit_index=0, commit_chain=0, round=1
            )
        )
        lost = [each for each in range(1, base + 1) if state.nodes[at].lost >> each & 1]
        if lost:
            core.do(lambda raft: raft.entry_lost(lost[0] + _BEHIND))
        snapshots = ModelSnapshots()
        memberships = self._entries.memberships_in(reign.log[:base])
        last_term, chain = reign.log[base - 1] >> 2, self._entries.chain(reign.log[:base])
        info = snapshots.take(base + _BEHIND, last_term, chain, memberships)
        data = snapshots.read(info, 0, info.size_bytes) or b""
        for offset, piece in ((0, data), (info.size_bytes, b"")):
            core.hear(
                InstallSnapshotRequest(
                    sender=leader,
                    recipient=core.id,
                    term=term,
                    info=info,
                    offset=offset,
                    data=piece,
                )
            )
        self._acknowledge(core, self.nodes[reign.leader], term)

    def _raise(self, core: _Core, term: int) -> None:
        """Let a core hear of a term, from a candidate that nobody can vote for."""
        if core.raft.term < term:
            core.hear(
                VoteRequest(
                    sender=self._other(core.at),
                    recipient=core.id,
                    term=term,
                    last_index=0,
                    last_term=0,
                    last_chain=0,
                    transfer=True,
                )
            )

    def _other(self, at: int) -> NodeId:
        return self._ids[at - 1]


def may_answer(model: Model, state: State, at: int, position: int, wanted: int) -> bool:
    """Whether a node would say that it lacks an entry: who leads tells nobody."""
    node = state.nodes[at]
    return node.role != LEADS and model.lacks(node, position, wanted)


def would_be_asked_firmly(model: Model, state: State, at: int) -> bool:
    """Whether enough nodes would say now that they lack what this node has lost."""
    node = state.nodes[at]
    lost = model.first_lost(at, node)
    who, now = model.in_force(at, node, before=lost), model.in_force(at, node)
    lacking = sum(
        1 << other
        for other in range(len(state.nodes))
        if other != at
        and model.has_say(other, who)
        and model.has_say(other, now)
        and may_answer(model, state, other, lost, node.disk[lost - 1])
    )
    return model.is_quorum(lacking, who)


def walk(model: Model, start: State, rng: Random, *, steps: int) -> int:
    """Take a random walk of the model, the cores along with it; return how long it was.

    Raises:
        DifferError: They went different ways; the message has the walk.
    """
    replay, state, taken = Replay(model, start), start, list[Label]()
    replay.compare(state)
    for _ in range(steps):
        found = [
            (label, after)
            for label, after in model.steps(state)
            if label[0] != "ask" or would_be_asked_firmly(model, state, int(label[1]))
        ]
        if not found:
            break
        kind = rng.choice(sorted({label[0] for label, _ in found}, key=str))
        label, after = rng.choice([each for each in found if each[0][0] == kind])
        taken.append(label)
        try:
            replay.do(label, state)
            replay.compare(after)
        except (DifferError, AssertionError, IndexError, StopIteration) as error:
            raise DifferError(f"after {taken}: {error!r}") from error
        state = after
    return len(taken)


class _Entries:
    """Entries and memberships as the cores have them."""

    def __init__(self, model: Model) -> None:
        first = Membership.of(_members(model.voters[FIRST][0]))
        self.memberships = {FIRST: first}
        if JOINT in model.voters:
            joint = begin_change(first, voters=_members(model.voters[JOINT][0]), learners=())
            self.memberships |= {JOINT: joint, FINAL: end_change(joint)}

    def founding(self) -> Entry:
        """Return the first entry of all."""
        return _entry(1, 1, self.memberships[FIRST])

    def at(self, log: Log, position: int) -> Entry:
        """Return one entry of a log."""
        term, kind = log[position - 1] >> 2, log[position - 1] & 3
        return _entry(term, position + _BEHIND, self.memberships[kind] if kind else None)

    def chain(self, log: Log) -> int:
        """Return the chain CRC of a log's last entry; that of the founding one, if it has none."""
        entries = (self.at(log, position) for position in range(1, len(log) + 1))
        return chain_behind(0, [self.founding(), *entries])

    def memberships_in(self, log: Log) -> list[tuple[int, Membership]]:
        """Return (index, membership) of all in a log, the founding one included."""
        found = [(at + 1, each & 3) for at, each in enumerate(log) if each & 3]
        later = [(position + _BEHIND, self.memberships[kind]) for position, kind in found]
        return [(1, self.memberships[FIRST]), *later]


class _Core:
    """One node: a core, and a disk in memory some of whose entries may be damaged."""

    def __init__(self, at: int, node: Node, model: Model, entries: _Entries) -> None:
        self.at, self.id = at, _id(at)
        log = [entries.at(node.disk, position) for position in range(1, len(node.disk) + 1)]
        vote = self.id if node.voted else None
        self._disk = ListDisk([entries.founding(), *log], HardState(node.term, vote))
        self._applied = model.applied[at] + _BEHIND if model.applied[at] else 0
        self._told = [
            pair for pair in entries.memberships_in(node.disk) if pair[0] <= self._applied
        ]
        self._lost = {each for each in range(len(log) + 1) if node.lost >> each & 1}
        self._entries = entries
        self._note_damage()
        self.start()

    def start(self) -> None:
        """Start from what the disk has."""
        self._snapshots = ModelSnapshots()
        self.sent: list[Message] = []
        self._untaken: list[Message] = []
        known = {**dict(self._told), **dict(self._disk.memberships())}
        base = self._disk.first_index - 1
        self.raft = Raft(
            RaftConfig(id=self.id),
            hard_state=self._disk.hard_state,
            log=self._disk,
            memberships=sorted(known.items()),
            rng=Random(1),
            applied_index=max(base, self._applied),
            snapshots=self._snapshots,
        )
        self._tell_damage()

    def _note_damage(self) -> None:
        """Say which memberships cannot be read: those of the log, never those of a snapshot."""
        self._disk.unreadable = set()
        known = self._disk.membership_indexes()
        self._disk.unreadable = {index for index in known if index - _BEHIND in self._lost}

    def _tell_damage(self, entries: Sequence[Entry] = ()) -> None:
        self.do(lambda raft: raft.log_repaired(entries, whole=not self._lost))

    def mend(self, position: int, entry: Entry) -> None:
        """Make one entry readable again."""
        self._lost.discard(position)
        self._note_damage()
        self._tell_damage([entry])

    def forget_leader(self) -> None:
        """Lose the connection to whoever leads us."""
        leader = self.raft.leader
        if leader is not None and leader != self.id:
            self.do(lambda raft: raft.peer_disconnected(leader))

    def hear(self, message: Message) -> None:
        """Let a message arrive, and do all that comes of it; a member has introduced its sender."""
        self._untaken.clear()
        self.raft.introduce(message.sender)
        self.do(lambda raft: raft.step(message))

    def take(self, kind: type[M]) -> list[M]:
        """Return what was said of a kind since the last message arrived."""
        return [message for message in self._untaken if isinstance(message, kind)]

    def do(self, action: Callable[[Raft], object]) -> None:
        """Call into the core, check it, and do every duty of what it hands over at once."""
        before = invariants.check(self.raft)
        action(self.raft)
        invariants.check(self.raft, before)
        for _ in while_ready(self.raft):
            self._take_up(self.raft.ready())

    def _take_up(self, ready: Ready) -> None:
        if ready.hard_state is not None:
            self._disk.hard_state = ready.hard_state
            self.raft.hard_state_persisted(ready.hard_state)
        if ready.cut_behind is not None:
            self._disk.cut_behind(ready.cut_behind)
            self._log_ends(ready.cut_behind)
        if ready.entries:
            self._log_ends(ready.entries[0].index - 1)
            self._disk.write(ready.entries)
            self._disk.sync()
            last = ready.entries[-1]
            self.raft.persisted(term=last.term, index=last.index)
        said = (*ready.messages, *ready.after_hard_state, *ready.after_entries)
        self.sent += said
        self._untaken += said
        for chunk in ready.chunks:
            self._snapshots.receive(chunk)
        if ready.install is not None:
            self._install(ready.install)

    def _log_ends(self, index: int) -> None:
        """What was damaged behind it is gone."""
        kept = {each for each in self._lost if each + _BEHIND <= index}
        if kept != self._lost:
            self._lost = kept
            self._note_damage()
            self.raft.log_repaired(whole=not self._lost)

    def _install(self, info: SnapshotInfo) -> None:
        memberships = self._snapshots.install(info)
        assert memberships is not None, "it arrived whole"
        self._disk.begin_behind(info.last_index, info.last_term, info.last_chain, memberships)
        kept = range(info.last_index + 1, self._disk.last_index + 1)
        self._lost = {each for each in self._lost if each + _BEHIND in kept}
        self._note_damage()
        self.raft.snapshot_finished(
            info,
            installed=True,
            memberships=self._disk.memberships(),
            last_index=self._disk.last_index,
        )
        self.raft.log_repaired(whole=not self._lost)

    def seen(self) -> dict[str, object]:
        """Return what the model has as well."""
        raft, begins = self.raft, self._disk.first_index
        return {
            "term": raft.term,
            "voted": raft.vote is not None,
            "terms": [self._disk.term(index) for index in range(begins, raft.last_index + 1)],
            "log ends": (raft.last_index, self._disk.last_index),
            "leads": raft.role is Role.LEADER,
            "runs": raft.role is Role.CANDIDATE,
            "in force": raft.membership,
            "committed": raft.commit_index,
        }


def _id(at: int) -> NodeId:
    return NodeId(str(at + 1))


def _members(bits: int) -> list[Member]:
    ids = [_id(at) for at in range(bits.bit_length()) if bits >> at & 1]
    return [Member(id=one, name=one, address=one) for one in ids]


def _entry(term: int, index: int, membership: Membership | None) -> Entry:
    data = b"" if membership is None else membership.encode()
    return Entry(
        term=term,
        index=index,
        kind=EntryKind.NOOP if membership is None else EntryKind.MEMBERSHIP,
        timestamp_ms=0,
        crc32c=crc32c(data) if data else 0,
        data=data,
    )
