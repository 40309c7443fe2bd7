"""Discarding a damaged end (adr 14) as an abstract model of Raft: one step is one message.

A value and the states that may follow it, for `discard_worlds` to explore whole and for
`discard_replay` to compare with the shipped core. There is no time: what was sent may arrive at
any later moment, late, again or never. Left out, so that all can be explored: the soft round
(without consequences, so any firm question may be asked), leases and pre-votes (they only keep
elections from being held), data behind a leader's first entry, and pieces of snapshots.

A log is what lies behind a common beginning, which all have and whose membership is `FIRST`; its
positions count from 1. An entry is a number: its term and its kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

DATA, JOINT, FINAL = 0, 1, 2
"""Kinds of entries: data, or the memberships by which a change begins and ends."""
FIRST: Final = 3
"""In place of a kind: the membership that is in force before the first of these."""
LEADS: Final = -1

Log = tuple[int, ...]
Label = tuple[str | int, ...]


def entry(term: int, kind: int = DATA) -> int:
    """Return an entry; later terms are larger."""
    return term << 2 | kind


class Node(NamedTuple):
    """One node, and its disk.

    Attributes:
        term: Its term, durable.
        voted: Whether it gave its vote in that term, durable; who has it counts it.
        disk: The log on its disk.
        length: How much of that the core counts as its log; less than all with old rules only.
        lost: A bit for each position that is damaged on the disk.
        base: Up to here it has a snapshot in place of entries.
        role: 0: it follows. Positive: a candidate, a bit for each vote it has. Else `LEADS`.
        question: (position, kind of who is asked, a bit for each that lacks it) or (); in its term.
        ghost: (position, kind, entry) of a membership in force that a snapshot woke; or ().
    """

    term: int = 0
    voted: bool = False
    disk: Log = ()
    length: int = 0
    lost: int = 0
    base: int = 0
    role: int = 0
    question: tuple[int, ...] = ()
    ghost: tuple[int, ...] = ()

    @property
    def log(self) -> Log:
        """The log as the core sees it."""
        return self.disk[: self.length]


class Reign(NamedTuple):
    """What the leader of one term has sent, and who has acknowledged how much of it.

    Attributes:
        leader: Who it is.
        log: Its log; it only grows.
        won_with: How much of that it had when it was elected, with the first entry of its own.
        acks: Of each node, the position that it acknowledged in this term.
    """

    leader: int
    log: Log
    won_with: int
    acks: tuple[int, ...]


class State(NamedTuple):
    """All nodes, and what was begun.

    Attributes:
        reigns: That of each term; None: nobody has led it.
        begun: In a bounded exploration, a bit for each candidate's and each question's term.
    """

    nodes: tuple[Node, ...]
    reigns: tuple[Reign | None, ...]
    begun: int = 0


Voters = tuple[int, int]
"""Bits of the voters, and of those before while they change (0: no change is under way)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What was decided in which version; the last is what is shipped.

    Attributes:
        snapshots_tell: A membership that the node's own snapshot has is known though it is damaged.
        electorate_stands: A question is void once others turn out to have decided.
        asks_when_sure: Nobody is asked while a membership before the entry is unknown.
        cuts_disk: The disk lets go with the core.
    """

    snapshots_tell: bool = True
    electorate_stands: bool = True
    asks_when_sure: bool = True
    cuts_disk: bool = True


OLD: Final = Rules(
    snapshots_tell=False, electorate_stands=False, asks_when_sure=False, cuts_disk=False
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The steps of a group.

    Attributes:
        terms: The last term that anyone enters.
        voters: Who counts by the membership of each kind.
        applied: Of each node, up to where its own snapshot has the log.
        snapshot_at: Where a leader's snapshot ends, if it sends any.
        bounded: Explore only one candidate and one question in each term, appends that bring all
            that their leader has, and damage that is mended from the first on.
        rules: What a node does with a damaged end.
    """

    terms: int
    voters: Mapping[int, Voters]
    applied: tuple[int, ...]
    snapshot_at: int = 0
    bounded: bool = False
    rules: Rules = Rules()

    # What a node knows

    def in_force(self, at: int, node: Node, before: int = 1 << 16) -> int:
        """Return the kind of the newest membership that node *at* knows below a position."""
        for position in range(min(before - 1, node.length), 0, -1):
            kind = node.disk[position - 1] & 3
            if node.ghost and node.ghost[0] == position:
                return node.ghost[1]
            if kind and self._knows(at, node, position):
                return kind
        if node.ghost and node.length < node.ghost[0] < before:
            return node.ghost[1]
        return FIRST

    def _knows(self, at: int, node: Node, position: int) -> bool:
        told = self.rules.snapshots_tell and position <= self.applied[at]
        return told or not node.lost >> position & 1

    def first_lost(self, at: int, node: Node) -> int:
        """Return the first position that is damaged and still to be applied; 0: none."""
        done = max(self.applied[at], node.base)
        lost = (each for each in range(done + 1, node.length + 1) if node.lost >> each & 1)
        return next(lost, 0)

    @staticmethod
    def is_whole(node: Node) -> bool:
        """Whether node has, whole, all that it counts as its log."""
        return not any(node.lost >> each & 1 for each in range(node.base + 1, node.length + 1))

    def is_quorum(self, present: int, kind: int) -> bool:
        """Whether these nodes, a bit for each, could decide by the membership of a kind."""
        halves = [half for half in self.voters[kind] if half]
        return all(2 * (present & half).bit_count() > half.bit_count() for half in halves)

    def has_say(self, node: int, kind: int) -> bool:
        """Whether a node is a voter in either half."""
        voters, outgoing = self.voters[kind]
        return bool((voters | outgoing) >> node & 1)

    @staticmethod
    def lacks(node: Node, position: int, wanted: int) -> bool:
        """Whether a node would say that it does not have an entry."""
        if position <= node.base:
            return False
        return position > node.length or node.disk[position - 1] >> 2 != wanted >> 2

    # Steps

    def steps(self, state: State) -> Iterator[tuple[Label, State]]:
        """Return what may happen next, and what comes of it."""
        for at, node in enumerate(state.nodes):
            yield from self._own_steps(state, at, node)
            for sender, other in enumerate(state.nodes):
                if sender != at and (other.role > 0 or other.question):
                    yield from self._messages(state, at, node, sender, other)
            yield from self._from_leaders(state, at, node)

    def _own_steps(self, state: State, at: int, node: Node) -> Iterator[tuple[Label, State]]:
        damaged = self.first_lost(at, node)
        stands = node.role != LEADS and self.is_whole(node)
        stands = stands and self.has_say(at, self.in_force(at, node))
        asks = damaged and self._may_ask(at, node, damaged)
        for term in range(node.term + 1, self.terms + 1):
            entered = _entered(node, term)
            if stands and not state.begun >> 2 * term & 1:
                candidate = entered._replace(voted=True, role=1 << at)
                yield ("campaign", at, term), self._begin(state, at, candidate, 2 * term)
            if asks and not state.begun >> 2 * term + 1 & 1:
                who = self.in_force(at, node, before=damaged)
                asking = entered._replace(question=(damaged, who, 0))
                yield ("ask", at, term), self._begin(state, at, asking, 2 * term + 1)
        if node.role == LEADS or node.length < len(node.disk) or node.ghost:
            yield ("restart", at), _with(state, at, self._restarted(node))
        lost = [each for each in range(1, len(node.disk) + 1) if node.lost >> each & 1]
        for position in lost[:1] if self.bounded else lost:
            if self._anyone_has(state, node, position):
                mended = node._replace(lost=node.lost & ~(1 << position))
                yield ("mend", at, position), _with(state, at, mended)

    def _begin(self, state: State, at: int, node: Node, bit: int) -> State:
        begun = state.begun | 1 << bit if self.bounded else 0
        return _with(state, at, node)._replace(begun=begun)

    def _may_ask(self, at: int, node: Node, lost: int) -> bool:
        if not self.rules.asks_when_sure:
            return True
        before = range(1, lost)
        return all(not node.disk[p - 1] & 3 or self._knows(at, node, p) for p in before)

    @staticmethod
    def _restarted(node: Node) -> Node:
        return node._replace(length=len(node.disk), role=0, question=(), ghost=())

    @staticmethod
    def _anyone_has(state: State, node: Node, position: int) -> bool:
        """Whether a peer can send the very record: all before it is the same as well."""
        return any(
            other.length >= position
            and position > other.base
            and not other.lost >> position & 1
            and other.disk[:position] == node.disk[:position]
            for other in state.nodes
        )

    def _messages(
        self, state: State, at: int, node: Node, sender: int, other: Node
    ) -> Iterator[tuple[Label, State]]:
        """Return what comes of it when node *at* hears *sender*, and answers."""
        if other.role > 0 and self._grants(sender, other, at, node):
            yield ("vote", at, sender), self._voted(state, at, node, sender, other)
        if other.question and self._answers(sender, other, at, node):
            yield ("answer", at, sender), self._answered(state, at, node, sender, other)

    def _grants(self, candidate: int, asking: Node, at: int, node: Node) -> bool:
        if not self.has_say(at, self.in_force(candidate, asking)):
            return False
        if node.term == asking.term and node.voted:
            return False
        if node.term > asking.term or asking.role >> at & 1:
            return False
        ours, theirs = node.log, asking.log
        return (_last_term(theirs), len(theirs)) >= (_last_term(ours), len(ours))

    def _voted(self, state: State, at: int, node: Node, candidate: int, asking: Node) -> State:
        voted = node if node.term == asking.term else _entered(node, asking.term)
        state = _with(state, at, voted._replace(voted=True))
        votes = asking.role | 1 << at
        if not self.is_quorum(votes, self.in_force(candidate, asking)):
            return _with(state, candidate, asking._replace(role=votes))
        log = (*asking.log, entry(asking.term))
        leader = asking._replace(role=LEADS, disk=log, length=len(log))
        acks = tuple(len(log) if each == candidate else 0 for each in range(len(state.nodes)))
        unique = state.reigns[asking.term] is None
        reign = Reign(candidate if unique else -1, log, len(log), acks)
        return self._reigned(_with(state, candidate, leader), asking.term, reign)

    def _answers(self, asker: int, asking: Node, at: int, node: Node) -> bool:
        """Whether an answer arrives that counts; a leader of an earlier term takes no question."""
        position, who, answers = asking.question
        known = self.has_say(at, who) and self.has_say(at, self.in_force(asker, asking))
        if not known or answers >> at & 1 or node.term > asking.term:
            return False
        if node.role == LEADS and node.term < asking.term:
            return False
        return self.lacks(node, position, asking.disk[position - 1])

    def _answered(self, state: State, at: int, node: Node, asker: int, asking: Node) -> State:
        if node.term < asking.term:
            state = _with(state, at, _entered(node, asking.term))
        position, who, answers = asking.question
        if self.rules.electorate_stands and who != self.in_force(asker, asking, before=position):
            return _with(state, asker, asking._replace(question=()))
        answers |= 1 << at
        if not self.is_quorum(answers, who):
            return _with(state, asker, asking._replace(question=(position, who, answers)))
        return _with(state, asker, self._discarded(asking, position))

    def _discarded(self, node: Node, position: int) -> Node:
        left = node._replace(length=position - 1, question=(), ghost=())
        return _cut(left, position - 1) if self.rules.cuts_disk else left

    def _from_leaders(self, state: State, at: int, node: Node) -> Iterator[tuple[Label, State]]:
        """Return what comes of it when a leader's entries or its snapshot arrive."""
        for term, reign in enumerate(state.reigns):
            if reign is None or reign.leader == at or term < node.term:
                continue
            if self.bounded and term == self.terms and not self.snapshot_at:
                continue  # who follows the last leader has no say in anything that comes
            heard = _heard(node, term)
            least = len(reign.log) if self.bounded else max(1, node.base)
            for last in range(least, len(reign.log) + 1):
                merged = _merged(heard, reign.log[:last])
                after = self._acked(_with(state, at, merged), term, reign, at, last)
                if after != state:
                    yield ("append", at, term, last), after
            base = self.snapshot_at
            if base and node.base < base <= self.committed(reign, term):
                after = _with(state, at, self._installed(at, heard, reign.log[:base]))
                yield ("snapshot", at, term), self._acked(after, term, reign, at, base)

    def _installed(self, at: int, node: Node, sent: Log) -> Node:
        """Take a snapshot in place of the entries up to its end, or of one that is lost.

        A log that has its last entry stays: the core's, or what is on the disk.
        """
        base = len(sent)
        taken = node._replace(base=base, lost=node.lost >> base + 1 << base + 1)
        if node.log[:base] == sent:
            return taken if 0 < self.first_lost(at, node) <= base else node
        if node.disk[:base] != sent:
            return taken._replace(disk=sent, length=base, lost=0, ghost=())
        rest = range(len(node.disk), base, -1)
        newest = next((at for at in rest if node.disk[at - 1] & 3), 0)
        ghost = (newest, node.disk[newest - 1] & 3, node.disk[newest - 1]) if newest else ()
        return taken._replace(length=base, ghost=ghost)

    def _acked(self, state: State, term: int, reign: Reign, at: int, last: int) -> State:
        if last <= reign.acks[at] or last < reign.won_with:
            return state
        acks = (*reign.acks[:at], last, *reign.acks[at + 1 :])
        return self._reigned(state, term, reign._replace(acks=acks))

    def _reigned(self, state: State, term: int, reign: Reign) -> State:
        """Note what a leader has and knows; it ends a change whose first half is committed."""
        leader = state.nodes[reign.leader]
        if reign.leader >= 0 and leader.role == LEADS and leader.term == term:
            newest = self._newest(reign.log)
            is_joint = newest > 0 and reign.log[newest - 1] & 3 == JOINT
            if is_joint and self.committed(reign, term) >= newest:
                reign = self._ended(reign, term)
                leader = leader._replace(disk=reign.log, length=len(reign.log))
                state = _with(state, reign.leader, leader)
        if self.committed(reign, term) == len(reign.log):  # whoever else acknowledges it
            reign = reign._replace(acks=(len(reign.log),) * len(reign.acks))
        reigns = (*state.reigns[:term], reign, *state.reigns[term + 1 :])
        return State(state.nodes, reigns, state.begun)

    @staticmethod
    def _ended(reign: Reign, term: int) -> Reign:
        log = (*reign.log, entry(term, FINAL))
        acks = (*reign.acks[: reign.leader], len(log), *reign.acks[reign.leader + 1 :])
        return reign._replace(log=log, acks=acks)

    @staticmethod
    def _newest(log: Log) -> int:
        """Return the position of the newest membership; 0 if there is none."""
        found = (at for at in range(len(log), 0, -1) if log[at - 1] & 3)
        return next(found, 0)

    def committed(self, reign: Reign, term: int) -> int:
        """Return up to where a leader's log is committed by counting: its own entries only."""
        newest = self._newest(reign.log)
        kind = reign.log[newest - 1] & 3 if newest else FIRST
        for last in range(len(reign.log), 0, -1):
            if reign.log[last - 1] >> 2 != term:
                return 0
            have = sum(1 << at for at, acked in enumerate(reign.acks) if acked >= last)
            if self.is_quorum(have, kind):
                return last
        return 0

    def normal(self, state: State) -> State:
        """Return a state in which the same can happen as in this one, and that many others have.

        What nobody can hear any more is forgotten: a vote of an election that is over, and what a
        leader sent whose term all have left, unless it is committed.
        """
        nodes, reigns = state.nodes, state.reigns
        least = min([node.term for node in nodes])
        for term in range(1, least):
            reign = reigns[term]
            if reign is not None and reign.leader >= 0:
                reigns = (*reigns[:term], self._over(reign, term), *reigns[term + 1 :])
        if self.bounded:
            live = [node.term for node in nodes if node.role > 0]
            for at, node in enumerate(nodes):
                begun = state.begun >> 2 * node.term & 1 or node.term == 1
                if node.voted and begun and node.term not in live:
                    nodes = (*nodes[:at], node._replace(voted=False), *nodes[at + 1 :])
        return State(nodes, reigns, state.begun)

    def _over(self, reign: Reign, term: int) -> Reign | None:
        safe = self.committed(reign, term)
        return Reign(0, reign.log[:safe], safe, (safe,) * len(reign.acks)) if safe else None

    # What must hold

    def fault(self, state: State) -> str:
        """Say what is wrong with a state; "" if nothing is."""
        for term, reign in enumerate(state.reigns):
            if reign is None:
                continue
            if reign.leader < 0:
                return "a term has two leaders"
            for later in state.reigns[term + 1 :]:
                safe = reign.log[: self.committed(reign, term)]
                if later is not None and later.log[: later.won_with][: len(safe)] != safe:
                    return "a leader lacks an entry that was committed before its term"
        for node in state.nodes:
            if node.ghost and node.log[node.ghost[0] - 1 : node.ghost[0]] != node.ghost[2:]:
                return "a membership is in force that the log does not have"
        return ""


def _with(state: State, at: int, node: Node) -> State:
    return State((*state.nodes[:at], node, *state.nodes[at + 1 :]), state.reigns, state.begun)


def _entered(node: Node, term: int) -> Node:
    """A later term has no vote; who led, ran or asked does so no more."""
    return Node(term, False, *node[2:6], 0, (), node.ghost)


def _heard(node: Node, term: int) -> Node:
    """A leader of its term was heard: what is acknowledged to it counts, so a question is void."""
    if node.term < term:
        return _entered(node, term)
    return node._replace(role=0, question=()) if node.role or node.question else node


def _merged(node: Node, sent: Log) -> Node:
    """Take a leader's entries; ours stay where they are the same."""
    if node.log[: len(sent)] == sent:
        return node
    same = 0
    while same < min(node.length, len(sent)) and node.disk[same] == sent[same]:
        same += 1
    ghost = node.ghost if same >= node.length else ()
    cut = _cut(node, same)
    return cut._replace(disk=sent, length=len(sent), ghost=ghost)


def _cut(node: Node, last: int) -> Node:
    lost = node.lost & (1 << last + 1) - 1
    return node._replace(disk=node.disk[:last], length=last, lost=lost)


def _last_term(log: Log) -> int:
    """Return the term of the last entry; 0 at the common beginning."""
    return log[-1] >> 2 if log else 0
