"""``dledger log discard DIR``: discards damaged entries of a group of one, explicitly.

The only voter of a group cannot lead with a damaged log: no other node has the damaged entries, and
a leader must be able to send its whole log. Only a human can decide that they are lost. Without
``--group-id`` the command shows what would be discarded; with it, and with the last damaged entry
that was shown, it discards. See docs/adr/0017.

It runs on the disk of a stopped node, which it opens in the same way as a start.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dledger.broker.state import BrokerState
from dledger.errors import FaultyEntry, NotJoined, Refused
from dledger.files.files import Files, RealFiles
from dledger.replica.snapshots import Snapshots
from dledger.store.commit_log import CommitLog
from dledger.store.discards import Discard, load_discards, save_discards
from dledger.store.identity import LOG_DIRECTORY, Identity, load_identity, lock_directory
from dledger.store.snapshot_files import SNAPSHOT_DIRECTORY, SnapshotFiles
from dledger.types import EntryKind, Membership, NodeId

_CHUNK_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What would be discarded.

    Attributes:
        damaged: The damaged entries.
        messages_below: Messages in entries below this one are dropped; 0: none.
        log_behind: The log is truncated after this entry; None: not at all.
    """

    damaged: tuple[range, ...]
    messages_below: int
    log_behind: int | None

    @property
    def last(self) -> int:
        """The last damaged entry."""
        return self.damaged[-1].stop - 1


def plan_of(damaged: Sequence[range], *, in_state: int) -> Plan:
    """Return what to discard so that a log with this damage is whole again.

    Damaged entries that a snapshot's state includes cost messages only: their own, and all older
    ones, as if retention had dropped them. Other damaged entries cannot be applied, nor can any
    entry after them: the log is truncated before the first of these.

    Args:
        damaged: The damaged entries, ascending; at least one.
        in_state: The newest entry whose effects are in a durable snapshot.
    """
    ahead = [each for each in damaged if each.stop - 1 > in_state]
    below = [each for each in damaged if each.start <= in_state]
    behind = max(ahead[0].start, in_state + 1) - 1 if ahead else None
    messages_below = min(below[-1].stop, in_state + 1) if below else 0
    return Plan(damaged=tuple(damaged), messages_below=messages_below, log_behind=behind)


def check_alone(
    node_id: NodeId, membership: Membership, unknown: Sequence[int], *, group_id: str
) -> None:
    """Refuse to discard entries that another node may have.

    Raises:
        Refused: The group has, or may have, other members.
    """
    if unknown:
        raise Refused(
            f"the members as of entry {unknown[-1]} are damaged, so there may be others that have "
            f"what is lost here; restore a backup of group {group_id} in place of this disk"
        )
    others = [one.name for one in membership.members if one.id != node_id]
    if others or node_id not in membership.voter_ids:
        raise Refused(
            f"group {group_id} is not this node alone ({', '.join(others) or 'it is no voter'}): "
            "start them, and they repair it; nothing is given up that another node may have"
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``dledger log discard``."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="a stopped node's directory")
    parser.add_argument("--group-id", metavar="G", help="do it: the group's id, typed in full")
    parser.add_argument("--last", type=int, metavar="INDEX", help="the last damaged entry shown")


def run(args: argparse.Namespace) -> int:
    """Show or discard; returns 0, or 1 if there is something to discard and it was only shown.

    Raises:
        Refused: It must not be discarded, or differs from what was typed.
        StorageError: The disk is damaged beyond that, or in use.
    """
    files = RealFiles()
    lock = lock_directory(files, args.directory)
    try:
        identity = load_identity(files, args.directory)
        if identity is None or not identity.group_id:
            raise NotJoined
        with _Disk(files, args.directory, identity) as disk:
            return _run(disk, args)
    finally:
        lock.close()


def _run(disk: _Disk, args: argparse.Namespace) -> int:
    damaged = disk.find_damage()
    if not damaged:
        print("no entry that counts is damaged: there is nothing to give up")
        return 0
    disk.check_alone()
    plan = plan_of(damaged, in_state=disk.snapshots.logged_index)
    lost = disk.loses(plan)
    for line in _told(plan, lost):
        print(line)
    group_id = disk.identity.group_id
    if args.group_id is None:
        print(f"to give that up: dledger log discard DIR --group-id {group_id} --last {plan.last}")
        return 1
    if (args.group_id, args.last) != (group_id, plan.last):
        raise Refused(
            f"typed was group {args.group_id}, entry {args.last}; this is group {group_id}, and "
            f"its last damaged entry is {plan.last}"
        )
    disk.give_up(plan, lost)
    print("given up; the node leads its group again when it is started")
    return 0


def _told(plan: Plan, lost: Sequence[str]) -> Iterator[str]:
    ranges = ", ".join(f"[{each.start}, {each.stop - 1}]" for each in plan.damaged)
    yield f"damaged entries: {ranges}; no other node of this group has them"
    if plan.messages_below:
        yield (
            f"all messages in entries below {plan.messages_below} are lost, the whole ones too: "
            "a log begins somewhere, and has no holes"
        )
    if plan.log_behind is not None:
        yield (
            f"all that was stored behind entry {plan.log_behind} is lost: what is in "
            "damaged entries there was not in a snapshot yet, and nothing can be applied behind it"
        )
    yield from lost


class _Disk:
    """A stopped node's log and snapshots, opened in the same way as a start."""

    def __init__(self, files: Files, directory: Path, identity: Identity) -> None:
        self.identity = identity
        self._files, self._directory = files, directory
        self._log = CommitLog.open(files, directory / LOG_DIRECTORY, identity=identity)
        self._state = BrokerState()
        self._snapshot_files = SnapshotFiles(files, directory / SNAPSHOT_DIRECTORY, reserve_bytes=0)
        self.snapshots = Snapshots(
            self._snapshot_files,
            group_id=identity.group_id,
            restored_from=identity.recovered_from,
            log=self._log,
            state=self._state,
        )

    def __enter__(self) -> _Disk:
        self.snapshots.load()
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()

    def find_damage(self) -> tuple[range, ...]:
        """Read the whole log; return the damaged ranges.

        Not the log's own, which may span intact entries where there are very many.
        """
        damaged: list[range] = []
        index = max(self._log.first_index, self._log.needed_from)
        while index <= self._log.last_index:
            try:
                index = self._log.read(index, self._log.last_index, _CHUNK_BYTES)[-1].index + 1
                continue
            except FaultyEntry:
                is_damaged = not self._log.reread(index, index)
            if is_damaged and damaged and damaged[-1].stop == index:
                damaged[-1] = range(damaged[-1].start, index + 1)
            elif is_damaged:
                damaged.append(range(index, index + 1))
            index += 1
        return tuple(damaged)

    def check_alone(self) -> None:
        """Refuse to continue if another node may have the damaged entries. Raises Refused."""
        group_id = self.identity.group_id
        known = dict(self.snapshots.memberships())
        ours = [index for index, one in known.items() if one.group_id == group_id]
        unknown = [at for at in self._log.membership_indexes() if at not in known]
        newest = known[max(ours)] if ours else Membership()
        check_alone(self.identity.node_id, newest, sorted(unknown), group_id=group_id)

    def loses(self, plan: Plan) -> list[str]:
        """Apply *plan* to the state in memory; return which queue offsets are lost."""
        before = self._bounds()
        self._state.topics.drop_before(plan.messages_below)
        now = self._bounds()
        lost = [
            f"  topic {topic}, queue {queue}: offsets [{first}, {now[topic, queue][0]})"
            for (topic, queue), (first, _) in before.items()
            if now[topic, queue][0] > first
        ]
        # A copy of what a topic keeps longer may be lost, and an older one be there.
        lost += [
            f"  topic {topic}, queue {queue}: {gone} messages from offset {first} on, which it "
            f"keeps {self._why_kept(topic)}"
            for (topic, queue), (first, messages) in before.items()
            if now[topic, queue][0] == first and (gone := messages - now[topic, queue][1])
        ]
        if plan.log_behind is None:
            return lost
        return lost + self._loses_behind(plan.log_behind)

    def _why_kept(self, topic: str) -> str:
        if self._state.topics.named(topic).compaction is None:
            return "for longer"
        return "as the newest of their keys (it is compacted)"

    def _loses_behind(self, last: int) -> list[str]:
        """Return from which offset on each queue loses what it got after an entry."""
        state = BrokerState.decode(self._state.encode())
        for index in range(self.snapshots.index + 1, last + 1):
            try:
                (entry,) = self._log.read(index, index, 0)
            except FaultyEntry:
                (entry,) = self._log.reread(index, index)
            if entry.kind is EntryKind.DATA:
                state.apply(entry)
        return [
            f"  topic {topic.name}, queue {queue_id}: all from offset {queue.end} on, if any"
            for topic in state.topics.all()
            for queue_id, queue in enumerate(state.topics.queues(topic.name))
        ]

    def _bounds(self) -> dict[tuple[str, int], tuple[int, int]]:
        return {
            (topic.name, queue_id): (queue.first, queue.count)
            for topic in self._state.topics.all()
            for queue_id, queue in enumerate(self._state.topics.queues(topic.name))
        }

    def give_up(self, plan: Plan, lost: Sequence[str]) -> None:
        """Record the discard, then carry it out. Each step may be repeated after a crash."""
        done = Discard(
            group_id=self.identity.group_id,
            damaged=tuple((each.start, each.stop - 1) for each in plan.damaged),
            messages_below=plan.messages_below,
            log_behind=plan.log_behind or 0,
            lost=tuple(lost),
            at_ms=time.time_ns() // 1_000_000,
        )
        acts = load_discards(self._files, self._directory)
        save_discards(self._files, self._directory, [*acts, done])
        if plan.log_behind is not None:
            self._log.cut_behind(plan.log_behind)
        if plan.messages_below:
            self.snapshots.forget_before(plan.messages_below)
