"""Runs scenarios written as text: commands, ``----``, what happened.

A file is a list of blocks, separated by empty lines: a comment that says why, one line of
commands joined by ``|``, ``----``, and the outcome. One group lives through the whole file.
Nothing happens by itself: time, disks and the network move only when a command says so.

Commands (N is a node; one node where not said otherwise)::

    nodes COUNT [fresh]     a group, all of it founded; fresh: only node 1 has the founding entry
    log N TERM...           restart N with the founding entry and then entries of these terms
    campaign N              start a pre-vote
    tick N [COUNT]          let time pass at N (or "all")
    propose N "DATA"        propose as leader
    add N                   a new node with an empty disk
    change N "VOTERS" ["LEARNERS"]   ask the leader for these members
    force N                 make N the group, by the last entry that it has
    compact N INDEX         snapshot N up to INDEX, and drop the entries before
    install N [bad]         let the snapshot that arrived at N be installed; bad: it is rotten
    members [N...]          one line for each node: the membership it knows
    read N CONTEXT          ask the leader for an index to read at
    sync N [vote|log]       let the writes that are under way end
    deliver [A>B]           deliver what is on its way now, all or from A to B
    lose [A>B]              lose it
    repeat A>B WORD         deliver the last message with this word that got through once more
    stabilize               sync and deliver everywhere until nothing moves
    cut A>B, isolate N, heal    lose what is sent from now on, from A to B or from and to N
    disconnect N PEER       N sees its connection with PEER break
    transfer N [TARGET], step-down N
    crash N, restart N      a crash loses all that is not synced
    evict, load N           old entries are not in memory any more; they have been read for N
    show [N...], logs       one line for each node
    quiet, verbose          stop or resume telling what happens
"""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TypeAlias, TypeVar

from crc32c import crc32c

from dledger.common.reports import Mark
from dledger.errors import DledgerError
from dledger.raft import invariants
from dledger.raft.core import Raft, RaftConfig, Ready
from dledger.raft.messages import Message
from dledger.types import Entry, EntryKind, HardState, NodeId, SnapshotInfo
from dledger_sim.process import founding_entry, member, members
from tests.raft import describe
from tests.raft.bench import ListDisk, ModelSnapshots, data_entry, while_ready

_SEPARATOR = "----"
_MAX_ROUNDS = 1000
_CHUNK_BYTES = 1024

T = TypeVar("T")
_Write: TypeAlias = tuple[int | None, tuple[Entry, ...]]
"""Behind which index the log is cut, if at all, and what is added."""
_Held: TypeAlias = tuple[int, int, Sequence[Message]]
"""How many hard states and writes must be done before these messages leave."""


@dataclass(frozen=True, slots=True)
class Block:
    """One step of a scenario."""

    comment: tuple[str, ...]
    commands: str
    outcome: tuple[str, ...]

    def text(self) -> str:
        """Return the block as it stands in a file."""
        return "\n".join([*self.comment, self.commands, _SEPARATOR, *self.outcome]) + "\n"


def parse(text: str) -> list[Block]:
    """Parse a scenario file.

    Raises:
        ValueError: A block has no separator, or more than one line of commands.
    """
    return [_block(part) for part in text.strip().split("\n\n")]


def run(blocks: Sequence[Block]) -> str:
    """Run a scenario; return the file's text with what really happened."""
    group = Scenario()
    return "\n".join(
        Block(block.comment, block.commands, tuple(group.execute(block.commands))).text()
        for block in blocks
    )


def rewrite(path: Path) -> None:
    """Replace a file's outcomes by what really happens."""
    path.write_text(run(parse(path.read_text())))


class _Node:
    """The core on a disk, doing a Ready's duties in the driver's order.

    A command of the scenario decides when a write that was begun ends. Between `crash` and `start`
    there is a disk only.
    """

    def __init__(self, name: str, disk: ListDisk, group: Scenario) -> None:
        self.id = NodeId(name)
        self.disk = disk
        self.snapshots = ModelSnapshots()
        self.is_up = False
        self.marks: dict[NodeId, Mark] = {}
        self.copy: tuple[list[Entry], HardState] | None = None
        self._group = group

    def start(self, *, asks: bool = False) -> None:
        """Start the process from what the disk holds; *asks*: the others are asked first."""
        self.is_up = True
        self._hard_states: deque[HardState] = deque()
        self._writes: deque[_Write] = deque()
        self._writing: list[_Write] = []
        self._newest_cut = 0
        self._held: tuple[deque[_Held], deque[_Held]] = (deque(), deque())
        self._queued, self._done = [0, 0], [0, 0]
        self.installing: SnapshotInfo | None = None
        self.raft = Raft(
            RaftConfig(id=self.id, max_append_bytes=_CHUNK_BYTES),
            hard_state=self.disk.hard_state,
            log=self.disk,
            memberships=self.disk.memberships(),
            rng=Random(self.id),
            applied_index=self.disk.first_index - 1,
            snapshots=self.snapshots,
            asks=asks,
            marks=self.marks,
        )
        self._seen = invariants.check(self.raft)
        self.do(lambda _: None)

    def crash(self) -> None:
        """Stop at once, and lose all that was not synced; what it knows of others is kept."""
        self.is_up = False
        self.raft.told_marks()
        self.marks = dict(self.raft.witness.known)
        self.disk.crash()

    def do(self, action: Callable[[Raft], T]) -> T:
        """Call into the core, check it, and take up the work that it hands over."""
        try:
            return action(self.raft)
        finally:
            self._check()
            for _ in while_ready(self.raft):
                self._take_up(self.raft.ready())
                self._check()

    def _check(self) -> None:
        self._seen = invariants.check(self.raft, self._seen)

    @property
    def is_saving(self) -> bool:
        """Whether a hard state is on its way to disk."""
        return bool(self._hard_states)

    @property
    def is_writing(self) -> bool:
        """Whether entries are on their way to disk."""
        return bool(self._writing)

    def finish_hard_state_write(self) -> HardState:
        """Let the running hard state write end, and start the next."""
        saved = self.disk.hard_state = self._hard_states.popleft()
        self._done[0] += 1
        self.do(lambda raft: raft.hard_state_persisted(saved))
        self._after_write()
        return saved

    def finish_log_write(self) -> list[Entry]:
        """Let the running log write end with a sync, and start the next."""
        written, self._writing = self._writing, []
        self.disk.sync()
        self._done[1] += len(written)
        entries = [entry for _, added in written for entry in added]
        if entries:
            term, index = entries[-1].term, entries[-1].index
            self.do(lambda raft: raft.persisted(term=term, index=index))
        self._after_write()
        return entries

    def finish_install(self) -> bool:
        """Let the installation end; returns whether the snapshot was good."""
        info, self.installing = self.installing, None
        assert info is not None, "a snapshot has arrived"
        assert not self._writing, "the writes before it have ended"
        memberships = self.snapshots.install(info)
        if memberships is not None:
            self.disk.begin_behind(info.last_index, info.last_term, info.last_chain, memberships)
        self.do(
            lambda raft: raft.snapshot_finished(
                info, installed=memberships is not None, memberships=memberships or ()
            )
        )
        return memberships is not None

    def _take_up(self, ready: Ready) -> None:
        group = self._group
        self._queue(ready)
        if ready.entries and ready.entries[0].index <= self.disk.last_index:
            group.tell(f"{self.id} replaces its entries from {ready.entries[0].index} on")
        if ready.role_change is not None:
            group.tell(f"{self.id} is {describe.role_change(ready.role_change)}")
        group.send(ready.messages)
        hard_states, writes = self._queued
        self._held[0].append((hard_states, self._newest_cut, ready.after_hard_state))
        self._held[1].append((hard_states, writes, ready.after_entries))
        if ready.committed:
            group.tell(f"{self.id} applies {describe.entries(ready.committed)}")
        for chunk in ready.chunks:
            self.snapshots.receive(chunk)
        self.installing = ready.install or self.installing
        for read in ready.reads:
            line = f"{self.id} may answer read {read.context} once it has applied {read.index}"
            group.tell(line)
        self._after_write()

    def _queue(self, ready: Ready) -> None:
        """Queue the writes that this asks for."""
        if ready.hard_state is not None:
            self._queued[0] += 1
            self._hard_states.append(ready.hard_state)
        if ready.entries or ready.cut_behind is not None:
            self._queued[1] += 1
            self._writes.append((ready.cut_behind, ready.entries))
        if ready.cut_behind is not None:
            self._newest_cut = self._queued[1]

    def _after_write(self) -> None:
        """Send what rested on writes that are done, and begin those that wait."""
        for held in self._held:
            while held and held[0][0] <= self._done[0] and held[0][1] <= self._done[1]:
                self._group.send(held.popleft()[2])
        if self._writes and not self._writing:
            self._writing = list(self._writes)
            self._writes.clear()
            for cut_behind, entries in self._writing:
                if cut_behind is not None:
                    self.disk.cut_behind(cut_behind)
                if entries:
                    self.disk.write(entries)


class Scenario:
    """A group of nodes that moves only on command."""

    def __init__(self) -> None:
        self.nodes: dict[str, _Node] = {}
        self._founding: Entry | None = None
        self._on_the_way: list[Message] = []
        self._delivered: list[Message] = []
        self._cut: set[tuple[str, str]] = set()
        self._evicted = False
        self._verbose = True
        self._trace: list[str] = []

    def execute(self, commands: str) -> list[str]:
        """Run commands joined by ``|``; return what happened, line by line."""
        self._trace = []
        for command in commands.split("|"):
            name, *arguments = shlex.split(command)
            getattr(self, "_do_" + name.replace("-", "_"))(*arguments)
        return self._trace or ["nothing"]

    # What the nodes call

    def send(self, messages: Sequence[Message]) -> None:
        """Put messages on their way."""
        self._on_the_way += messages

    def tell(self, line: str) -> None:
        """Make a line part of the outcome."""
        if self._verbose:
            self._trace.append(line)

    def _in_memory(self, name: str) -> bool:
        """Whether old entries are in memory, for the one who asks."""
        if self._evicted:
            self.tell(f"{name} must load old entries")
        return not self._evicted

    # Commands

    def _do_nodes(self, count: str, fresh: str = "") -> None:
        self._on_the_way.clear()
        self._cut.clear()
        self.nodes.clear()
        self._founding = founding_entry(members(int(count)))
        for number in range(1, int(count) + 1):
            founded = number == 1 or fresh != "fresh"
            self._add(str(number), [self._founding] if founded else [])

    def _do_log(self, name: str, *terms: str) -> None:
        assert self._founding is not None, "nodes come first"
        entries = [self._founding]
        for at, term in enumerate(map(int, terms), 2):
            entries.append(data_entry(term, at, f"{term}.{at}".encode()))
        self._add(name, entries)

    def _do_campaign(self, name: str) -> None:
        self.nodes[name].do(lambda raft: raft.campaign())

    def _do_tick(self, name: str, count: str = "1") -> None:
        for _ in range(int(count)):
            for node in self._named(name):
                node.do(lambda raft: raft.tick())

    def _do_propose(self, name: str, data: str) -> None:
        encoded = data.encode()
        self._try(
            name,
            lambda: self.nodes[name].do(
                lambda raft: raft.propose(
                    kind=EntryKind.DATA,
                    data=encoded,
                    crc32c=crc32c(encoded),
                    timestamp_ms=0,
                )
            ),
        )

    def _do_add(self, name: str) -> None:
        self._add(name, [])

    def _do_change(self, name: str, voters: str, learners: str = "") -> None:
        def change(raft: Raft) -> object:
            return raft.change_membership(
                voters=[member(one) for one in voters.split()],
                learners=[member(one) for one in learners.split()],
            )

        self._try(name, lambda: self.nodes[name].do(change))

    def _do_force(self, name: str) -> None:
        def force(raft: Raft) -> object:
            return raft.force_group(last_term=raft.last_term, last_index=raft.last_index)

        self._try(name, lambda: self.nodes[name].do(force))

    def _do_compact(self, name: str, index: str) -> None:
        node, last = self.nodes[name], int(index)
        term, chain = node.disk.term(last), node.disk.chain(last)
        memberships = node.disk.memberships()
        info = node.snapshots.take(last, term, chain, memberships)
        node.disk.begin_behind(last, term, chain, [one for one in memberships if one[0] <= last])
        self.tell(f"{name} has a snapshot of {info.size_bytes} bytes up to {last}")

    def _do_install(self, name: str, how: str = "") -> None:
        node = self.nodes[name]
        if how == "bad":
            node.snapshots.rot()
        good = node.finish_install()
        self.tell(f"{name} {'has installed' if good else 'refuses'} the snapshot")

    def _do_members(self, *names: str) -> None:
        for node in self._named(*(names or ("all",))):
            removed = ", and is removed" if node.raft.is_removed else ""
            self._trace.append(f"{node.id}: {describe.membership(node.raft.membership)}{removed}")

    def _do_read(self, name: str, context: str) -> None:
        number = int(context)
        self._try(name, lambda: self.nodes[name].do(lambda raft: raft.read_index(number)))

    def _do_sync(self, name: str, what: str = "") -> None:
        node = self.nodes[name]
        if what != "log" and node.is_saving:
            self._tell_before(
                f"{name} has synced",
                lambda: describe.hard_state(node.finish_hard_state_write()),
            )
        if what != "vote" and node.is_writing:
            self._tell_before(
                f"{name} has synced", lambda: describe.entries(node.finish_log_write())
            )

    def _do_deliver(self, path: str = "") -> None:
        for message in self._take(path):
            self._deliver(message)

    def _do_lose(self, path: str = "") -> None:
        for message in self._take(path):
            self.tell(f"lost: {describe.message(message)}")

    def _do_repeat(self, path: str, word: str) -> None:
        between = [m for m in self._delivered if _path(m) == path]
        self._deliver([m for m in between if word in describe.message(m)][-1])

    def _do_stabilize(self) -> None:
        for _ in range(_MAX_ROUNDS):
            busy = [node for node in self._up() if node.is_saving or node.is_writing]
            if not busy and not self._on_the_way:
                return
            for node in busy:
                self._do_sync(node.id)
            self._do_deliver()
        raise RuntimeError("the group does not come to rest")

    def _do_cut(self, path: str) -> None:
        sender, _, recipient = path.partition(">")
        self._cut.add((sender, recipient))

    def _do_isolate(self, name: str) -> None:
        for other in self.nodes:
            self._cut |= {(name, other), (other, name)}

    def _do_heal(self) -> None:
        self._cut.clear()

    def _do_disconnect(self, name: str, peer: str) -> None:
        self.nodes[name].do(lambda raft: raft.peer_disconnected(NodeId(peer)))

    def _do_transfer(self, name: str, target: str = "") -> None:
        wanted = NodeId(target) if target else None
        self._try(name, lambda: self.nodes[name].do(lambda raft: raft.transfer_leadership(wanted)))

    def _do_step_down(self, name: str) -> None:
        self.nodes[name].do(lambda raft: raft.step_down())

    def _do_crash(self, name: str) -> None:
        self.nodes[name].crash()

    def _do_restart(self, name: str) -> None:
        self.nodes[name].start()

    def _do_copy(self, name: str) -> None:
        self.nodes[name].copy = self.nodes[name].disk.copied()

    def _do_put_back(self, name: str) -> None:
        """Stop a node, and put its disk back to the copy; nothing that it sent is under way."""
        node = self.nodes[name]
        node.crash()
        assert node.copy is not None, "there is a copy"
        node.disk.put_back(node.copy)
        self._on_the_way = [each for each in self._on_the_way if each.sender != node.id]

    def _do_report(self, name: str) -> None:
        """Let a node tell all others that are up what it knows of members."""
        told = self.nodes[name].raft.told_marks()
        for each in self._up():
            each.do(lambda raft: raft.note_marks(told))

    def _do_return(self, name: str) -> None:
        """Start a node that asks all others that are up; each hears that it started anew."""
        node = self.nodes[name]
        node.start(asks=True)
        others = [each for each in self._up() if each is not node]
        answers = {each.id: each.raft.told_marks() for each in others}
        for each in others:
            each.do(lambda raft: raft.peer_restarted(node.id))
        node.do(lambda raft: raft.answered(answers))
        owed = node.raft.abstains
        if owed is not None:
            said = f"(term {owed.last_term}, index {owed.last_index}), in term {owed.term}"
            self.tell(f"{name} abstains: it had {said}")

    def _do_evict(self) -> None:
        self._evicted = True

    def _do_load(self, name: str) -> None:
        self._evicted = False
        self.nodes[name].do(lambda raft: raft.entries_available())

    def _do_show(self, *names: str) -> None:
        for node in self._named(*(names or ("all",))):
            raft = node.raft
            self._trace.append(
                f"{node.id}: {raft.role.value}, term {raft.term}, vote {raft.vote or 'none'}, "
                f"leader {raft.leader or 'none'}, last {raft.last_index}, "
                f"durable {raft.durable_index}, commit {raft.commit_index}"
            )

    def _do_logs(self) -> None:
        for node in self.nodes.values():
            kept = range(node.disk.first_index, node.disk.last_index + 1)
            terms = [str(node.disk.term(index)) for index in kept]
            self._trace.append(f"{node.id}: terms {' '.join(terms) or 'none'}")

    def _do_quiet(self) -> None:
        self._verbose = False

    def _do_verbose(self) -> None:
        self._verbose = True

    # Help for commands

    def _add(self, name: str, entries: Sequence[Entry]) -> None:
        term = entries[-1].term if entries else 0
        disk = ListDisk(entries, HardState(term), lambda: self._in_memory(name))
        self.nodes[name] = _Node(name, disk, self)
        self._do_restart(name)

    def _up(self) -> list[_Node]:
        return [node for node in self.nodes.values() if node.is_up]

    def _named(self, *names: str) -> list[_Node]:
        return self._up() if names == ("all",) else [self.nodes[name] for name in names]

    def _take(self, path: str) -> list[Message]:
        taken = [m for m in self._on_the_way if not path or _path(m) == path]
        self._on_the_way = [m for m in self._on_the_way if path and _path(m) != path]
        return taken

    def _deliver(self, message: Message) -> None:
        node = self.nodes[message.recipient]
        if (message.sender, message.recipient) in self._cut or not node.is_up:
            self.tell(f"lost: {describe.message(message)}")
            return
        self.tell(describe.message(message))
        self._delivered.append(message)
        node.do(lambda raft: raft.step(message))

    def _try(self, name: str, action: Callable[[], object]) -> None:
        try:
            action()
        except DledgerError as error:
            self._trace.append(f"{name} refuses: {error}")

    def _tell_before(self, start: str, action: Callable[[], str]) -> None:
        """Tell what *action* did in front of what followed from it."""
        position = len(self._trace)
        what = action()
        if self._verbose:
            self._trace.insert(position, f"{start} {what}")


def _path(message: Message) -> str:
    return f"{message.sender}>{message.recipient}"


def _block(text: str) -> Block:
    head, separator, outcome = text.partition(f"\n{_SEPARATOR}\n")
    if not separator:
        head, separator, outcome = text.removesuffix("\n").partition(f"\n{_SEPARATOR}")
    lines = head.splitlines()
    comment = tuple(line for line in lines if line.startswith("#"))
    commands = [line for line in lines if not line.startswith("#")]
    if not separator or len(commands) != 1:
        raise ValueError(f"expected comment, one line of commands and {_SEPARATOR}: {text!r}")
    return Block(comment, commands[0], tuple(outcome.splitlines()))
