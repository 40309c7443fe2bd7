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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from crc32c import crc32c

from dledger.errors import DledgerError
from dledger.raft.core import Raft, RaftConfig, RoleChange
from dledger.raft.messages import Message
from dledger.raft.ready import ConfirmedRead
from dledger.types import Entry, EntryKind, HardState, Member, Membership, NodeId
from dledger_sim import describe
from dledger_sim.disk import ModelDisk
from dledger_sim.node import SimNode
from dledger_sim.snapshots import ModelSnapshots

_SEPARATOR = "----"
_MAX_ROUNDS = 1000
_CHUNK_BYTES = 1024


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


def members(count: int) -> Membership:
    """Return a membership of nodes "1" to *count*."""
    return Membership.of(member(str(number + 1)) for number in range(count))


def member(name: str) -> Member:
    """Return the node of this number as a member."""
    return Member(id=NodeId(name), name=f"group-{name}", address=f"{name}:20911")


def founding_entry(membership: Membership) -> Entry:
    """Return the first entry of a group's log."""
    data = membership.encode()
    return Entry(
        term=1,
        index=1,
        kind=EntryKind.MEMBERSHIP,
        timestamp_ms=0,
        crc32c=crc32c(data),
        data=data,
    )


class Scenario:
    """A group of nodes that moves only on command. Implements `dledger_sim.node.World`."""

    def __init__(self) -> None:
        self.nodes: dict[str, SimNode] = {}
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

    def send(self, message: Message) -> None:
        """Put a message on its way."""
        self._on_the_way.append(message)

    def log_write_started(self, node: SimNode) -> None:
        """Wait for a sync command."""

    def hard_state_write_started(self, node: SimNode) -> None:
        """Wait for a sync command."""

    def entries_asked(self, node: SimNode) -> bool:
        """Whether old entries are in memory."""
        if self._evicted:
            self._tell(f"{node.id} must load old entries")
        return not self._evicted

    def role_changed(self, node: SimNode, change: RoleChange) -> None:
        """Tell."""
        self._tell(f"{node.id} is {describe.role_change(change)}")

    def wrote(self, node: SimNode, entries: Sequence[Entry]) -> None:
        """Tell about truncation; the rest is told when it is synced."""
        last = node.disk.last_index
        if entries[0].index <= last:
            self._tell(f"{node.id} replaces its entries from {entries[0].index} on")

    def applied(self, node: SimNode, entries: Sequence[Entry]) -> None:
        """Tell."""
        self._tell(f"{node.id} applies {describe.entries(entries)}")

    def confirmed(self, node: SimNode, read: ConfirmedRead) -> None:
        """Tell."""
        self._tell(f"{node.id} may answer read {read.context} once it has applied {read.index}")

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
        assert self._founding is not None, "nodes come first"  # noqa: S101
        entries = [self._founding]
        for term in map(int, terms):
            entries.append(_data_entry(term, len(entries) + 1))
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

    def _do_compact(self, name: str, index: str) -> None:
        node, last = self.nodes[name], int(index)
        assert isinstance(node.disk, ModelDisk), "scenarios have model disks"  # noqa: S101
        assert node.snapshots is not None, "every node of a scenario has them"  # noqa: S101
        term, chain = node.disk.term(last), node.disk.chain(last)
        memberships = node.disk.memberships()
        info = node.snapshots.take(last, term, chain, memberships)
        node.disk.begin_behind(last, term, chain, [one for one in memberships if one[0] <= last])
        self._tell(f"{name} has a snapshot of {info.size_bytes} bytes up to {last}")

    def _do_install(self, name: str, how: str = "") -> None:
        node = self.nodes[name]
        assert node.snapshots is not None, "every node of a scenario has them"  # noqa: S101
        if how == "bad":
            node.snapshots.rot()
        good = node.finish_install()
        self._tell(f"{name} {'has installed' if good else 'refuses'} the snapshot")

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
            self._tell(f"lost: {describe.message(message)}")

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
        self.nodes[name].crash(_Never())

    def _do_restart(self, name: str) -> None:
        self.nodes[name].start(Random(name))

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
        disk = ModelDisk(entries, HardState(term))
        config = RaftConfig(id=NodeId(name), max_append_bytes=_CHUNK_BYTES)
        self.nodes[name] = SimNode(config, disk, self, snapshots=ModelSnapshots())
        self._do_restart(name)

    def _up(self) -> list[SimNode]:
        return [node for node in self.nodes.values() if node.is_up]

    def _named(self, *names: str) -> list[SimNode]:
        return self._up() if names == ("all",) else [self.nodes[name] for name in names]

    def _take(self, path: str) -> list[Message]:
        taken = [m for m in self._on_the_way if not path or _path(m) == path]
        self._on_the_way = [m for m in self._on_the_way if path and _path(m) != path]
        return taken

    def _deliver(self, message: Message) -> None:
        node = self.nodes[message.recipient]
        if (message.sender, message.recipient) in self._cut or not node.is_up:
            self._tell(f"lost: {describe.message(message)}")
            return
        self._tell(describe.message(message))
        self._delivered.append(message)
        node.do(lambda raft: raft.step(message))

    def _try(self, name: str, action: Callable[[], object]) -> None:
        try:
            action()
        except DledgerError as error:
            self._trace.append(f"{name} refuses: {error}")

    def _tell(self, line: str) -> None:
        if self._verbose:
            self._trace.append(line)

    def _tell_before(self, start: str, action: Callable[[], str]) -> None:
        """Tell what *action* did in front of what followed from it."""
        position = len(self._trace)
        what = action()
        if self._verbose:
            self._trace.insert(position, f"{start} {what}")


class _Never(Random):
    """A crash that keeps only what was synced."""

    def random(self) -> float:
        return 1.0

    def randint(self, a: int, b: int) -> int:  # noqa: ARG002 - the smallest
        return a


def _path(message: Message) -> str:
    return f"{message.sender}>{message.recipient}"


def _data_entry(term: int, index: int) -> Entry:
    data = f"{term}.{index}".encode()
    return Entry(
        term=term,
        index=index,
        kind=EntryKind.DATA,
        timestamp_ms=0,
        crc32c=crc32c(data),
        data=data,
    )


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
