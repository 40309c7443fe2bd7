"""What a compacted topic costs for ever: keys that are written anew, rounds, and retention, played.

    .venv/bin/python -m e2e.bench.compaction --keys 1000000

One process and one thread, without disk, network and the job: a leader's state, and a follower's,
apply what the leader's own functions plan and make, hour by hour of a played clock. First all keys
come, over `_FIRST_HOURS`; each hour a share of them, chosen evenly, is written anew. Then comes a
round, which says what may go as the job does (what no kept entry has any more, it cannot name), and
then retention. CPU is this thread's; on a busy machine others' use of the caches is in it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import sys
import time
import zlib
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dledger.broker.command_frame import CommandType
from dledger.broker.commands import CreateTopic, Retain
from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.kept_blocks import _columns_of
from dledger.broker.key_queues import queue_of_key
from dledger.broker.message import Columns
from dledger.broker.produce import encode_produce
from dledger.broker.rekeep import Rekeep
from dledger.broker.results import Rekept
from dledger.broker.state import BrokerState
from dledger.broker.topics import Compaction
from dledger.common.memory import collect_seldom, keep_blocks
from dledger.common.offset_set import OffsetSet
from dledger.errors import DledgerError
from dledger.replica.compacting import Claim, due_of, find_going, may_be_copied
from dledger.replica.rolling import Alone, Due, next_roll, rekeep_of, soon_due
from dledger.types import Entry, EntryKind
from e2e.harness.checks import Check, at_most, exit_code, table

_TOPIC: Final = "t"
_QUEUES: Final = 8
_BODY_BYTES: Final = 200
_BATCH: Final = 16
_FIRST_HOURS: Final = 50
_RETENTION_HOURS: Final = 72
_HOUR_MS: Final = 3_600_000
_FRAME_BYTES: Final = 5
_LARGE: Final = 1_000
"""Rows of a command from which on it is a large one."""
_SMALL: Final = 100


@dataclass(slots=True)
class Cost:
    """What REKEEPs of one size cost: CPU seconds at the leader, and a follower's to apply them."""

    commands: int = 0
    rows: int = 0
    planned_s: float = 0.0
    made_s: float = 0.0
    applied_s: float = 0.0

    @classmethod
    def size_of(cls, rows: int) -> str:
        """Return what a command of so many rows is called."""
        return "large" if rows >= _LARGE else "small" if rows < _SMALL else "middle"


@dataclass(slots=True)
class Period:
    """What one retention's time cost.

    Attributes:
        sent, written: Bytes in the log: the users' messages, and the copies.
        found_s: CPU seconds of finding what goes and what is due, of all rounds.
        longest_s: Of what the event loop does without a pause: to plan one, or to apply it.
        costs: By the size of a command.
    """

    sent: int = 0
    written: int = 0
    found_s: float = 0.0
    longest_s: float = 0.0
    costs: defaultdict[str, Cost] = field(default_factory=lambda: defaultdict(Cost))


class Played:
    """A compacted topic, its log, and which of its messages may go, as far as a job can read."""

    def __init__(self, keys: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.state, self.follower = BrokerState(), BrokerState()
        self.now_ms, self.index = 1_700_000_000_000, 0
        self.entries, self.log_bytes, self.first = dict[int, Entry](), 0, 1
        self.messages, self.sent = 0, dict[int, int]()
        """How many were stored; and their bytes, by when they were."""
        self.places = [array("Q") for _ in range(_QUEUES)]
        """The entry in which each message lies, by queue and offset."""
        self.stored = dict[int, tuple[int, Sequence[int]]]()
        """The queue and the offsets of the messages in an entry."""
        self.names = [f"customer-{key:08d}" for key in range(keys)]
        self.queue_of = [queue_of_key(name.encode(), _QUEUES) for name in self.names]
        self.newest, self.stays = [-1] * keys, [bytearray() for _ in range(_QUEUES)]
        self.body = self.random.randbytes(_BODY_BYTES)
        create = CreateTopic(name=_TOPIC, type="NORMAL", queues=_QUEUES, compaction=Compaction())
        self.commit(create.encode())
        self.topic = self.state.topics.named(_TOPIC)

    def commit(self, command: bytes) -> object:
        """Apply a command; return what that gave."""
        self.index += 1
        entry = Entry(
            term=1,
            index=self.index,
            kind=EntryKind.DATA,
            timestamp_ms=self.now_ms,
            crc32c=0,
            data=command,
        )
        self.entries[self.index] = entry
        self.log_bytes += len(command)
        (result,) = self.state.apply(entry)
        if isinstance(result, DledgerError):
            raise result
        return result

    def queue(self, queue_id: int) -> ConsumeQueue:
        """Return a queue as it is."""
        return self.state.topics.queue(_TOPIC, queue_id)

    def queues(self) -> list[ConsumeQueue]:
        """Return all queues as they are."""
        return [self.queue(queue_id) for queue_id in range(_QUEUES)]

    def produce(self, keys: Sequence[int]) -> None:
        """Store a message of each key, in batches of each queue."""
        self.messages += len(keys)
        before, lanes = self.log_bytes, defaultdict[int, list[int]](list)
        for key in keys:
            lanes[self.queue_of[key]].append(key)
        for queue_id, lane in lanes.items():
            for at in range(0, len(lane), _BATCH):
                self._store(queue_id, lane[at : at + _BATCH])
        self.sent[self.now_ms] = self.sent.get(self.now_ms, 0) + self.log_bytes - before

    def _store(self, queue_id: int, keys: Sequence[int]) -> None:
        count, offset = len(keys), self.queue(queue_id).end
        batch = Columns(
            message_ids=[""] * count,
            bodies=[self.body] * count,
            born_at_ms=[self.now_ms] * count,
            keys=[(self.names[key],) for key in keys],
        )
        self.commit(encode_produce(batch, client_id="c", topic=_TOPIC, queue_id=queue_id))
        bits, places = self.stays[queue_id], self.places[queue_id]
        bits.extend(b"\xff" * ((offset + count + 7 >> 3) - len(bits)))
        places.extend([self.index] * count)
        self.stored[self.index] = queue_id, range(offset, offset + count)
        for row, key in enumerate(keys):
            if (older := self.newest[key]) >= 0:
                bits[older >> 3] &= ~(1 << (older & 7))
            self.newest[key] = offset + row

    def compact(self, queue_id: int, reached: int, period: Period) -> None:
        """Say what the newest messages of a queue are, and copy what is due by that."""
        queue, as_of = self.queue(queue_id), self.index
        claim = Claim(
            as_of_index=as_of,
            as_of_chain=0,
            topic=_TOPIC,
            generation=self.topic.generation,
            queue_id=queue_id,
            first=0,
            to=queue.end,
            stays=zlib.compress(bytes(self.stays[queue_id]), 1),
        )
        young_ms = self.now_ms - Compaction().min_lag_ms
        part, blocks = queue.part(self.state.first_index, as_of), tuple(queue.blocks or ())
        began_s = time.thread_time()
        stays = OffsetSet.unpack(claim.first, claim.to, claim.stays)
        near = [block for block in blocks if may_be_copied(claim, stays, block, reached)]
        going = find_going(
            claim,
            stays,
            near,
            part,
            read=self.entries.__getitem__,
            is_old=lambda stored_at_ms: stored_at_ms <= young_ms,
        )
        due = due_of(claim, going, near, part, reached, new=Alone())
        period.found_s += time.thread_time() - began_s
        self.copy(queue_id, due, period)

    def copy(self, queue_id: int, due: Due, period: Period) -> None:
        """Copy all that is due of a queue, as `Copier` does."""
        while True:
            began_s = time.thread_time()
            roll = next_roll(self.topic, queue_id, self.queue(queue_id), due)
            planned_s = time.thread_time()
            if roll is None:
                return
            command, rows = rekeep_of(
                roll, self.entries.__getitem__, lambda offset, _: offset not in due.goes
            )
            made_s = time.thread_time()
            if not isinstance(self.commit(command), Rekept):
                raise TypeError("a REKEEP was answered as another command")
            cost = period.costs[Cost.size_of(rows)]
            cost.planned_s += planned_s - began_s
            cost.made_s += made_s - planned_s
            period.longest_s = max(period.longest_s, planned_s - began_s)
            period.written += len(command)
            offsets = _rekeep(command).offsets
            self.stored[self.index] = queue_id, array("Q", offsets)
            for offset in offsets:
                self.places[queue_id][offset] = self.index

    def retain(self, before: int) -> None:
        """Drop the entries below *before*: of them nothing is kept, and no job reads them."""
        self.commit(Retain(before_index=before).encode())
        if self.state.first_index != before:
            raise AssertionError(f"entries below {before} were not all copied")
        for index in range(self.first, before):
            self.log_bytes -= len(self.entries.pop(index).data)
            queue_id, offsets = self.stored.pop(index, (0, ()))
            for offset in offsets:
                if self.places[queue_id][offset] == index:
                    self.stays[queue_id][offset >> 3] |= 1 << (offset & 7)
        self.first = before

    def follow(self, period: Period) -> None:
        """Have the follower apply what it has not yet, and count what REKEEPs cost it."""
        _columns_of.cache_clear()  # the leader has just had them open
        for index in range(self.follower.applied_index + 1, self.index + 1):
            entry = self.entries[index]
            began_s = time.thread_time()
            self.follower.apply(entry)
            took_s = time.thread_time() - began_s
            if entry.data[4] == CommandType.REKEEP:
                rows = len(_rekeep(entry.data).offsets)
                cost = period.costs[Cost.size_of(rows)]
                cost.commands, cost.rows = cost.commands + 1, cost.rows + rows
                cost.applied_s += took_s
                period.longest_s = max(period.longest_s, took_s)
        self.state.take_changes()
        self.follower.take_changes()


def _rekeep(command: bytes) -> Rekeep:
    return Rekeep(command, _FRAME_BYTES, len(command))


def play(keys: int, churn: int, hours: int, seed: int) -> list[dict[str, float]]:
    """Play so many hours, and return what each retention's time cost."""
    played, found = Played(keys, seed), list[dict[str, float]]()
    order = played.random.sample(range(keys), keys)
    marks, period, most, known = list[int](), Period(), 0.0, 0
    for hour in range(1, hours + 1):
        played.now_ms += _HOUR_MS
        gc.freeze()  # what is played has millions of objects that no node has
        new, known = known, keys * min(hour, _FIRST_HOURS) // _FIRST_HOURS
        played.produce(order[new:known])
        played.produce([order[played.random.randrange(known)] for _ in range(churn)])
        period.sent += played.sent[played.now_ms]
        marks.append(played.index + 1)
        _keep_house(played, marks, period)
        most = max(most, _log_share(played, known))
        if hour % _RETENTION_HOURS == 0 or hour == hours:
            found.append(_figures(hour, played, period, log_share=most))
            print(json.dumps(found[-1]), flush=True)
            period, most = Period(), 0.0
    return found


def _log_share(played: Played, keys: int) -> float:
    """Return what the log has beside what is live and one retention of writes."""
    sent = [*played.sent.values()]
    live = keys * sum(sent) / played.messages
    return played.log_bytes / (live + sum(sent[-_RETENTION_HOURS:]))


def _keep_house(played: Played, marks: Sequence[int], period: Period) -> None:
    """Play an hour's round and retention."""
    now = len(marks) - 1 - _RETENTION_HOURS
    reached = marks[now + 1] if now + 1 >= 0 else played.state.first_index
    for queue_id in range(_QUEUES):
        played.compact(queue_id, reached, period)
    if now >= 0:
        soon = soon_due(marks[now], played.index)
        for queue_id in range(_QUEUES):
            played.copy(queue_id, Due.below(marks[now], soon=soon), period)
    played.follow(period)
    if now >= 0:
        played.retain(marks[now])
        played.follow(period)


def _figures(hour: int, played: Played, period: Period, *, log_share: float) -> dict[str, float]:
    """Return the figures of a period that ends now."""
    kept = sum(queue.count for queue in played.queues())
    blocks = [block for queue in played.queues() for block in queue.blocks or ()]
    costs = period.costs.values()
    rows = max(1, sum(cost.rows for cost in costs))
    leader_s = period.found_s + sum(cost.planned_s + cost.made_s for cost in costs)
    told: dict[str, float] = {
        "hour": hour,
        "kept": kept,
        "blocks": len(blocks),
        "rowsInBlocks": sum(block.length for block in blocks),
        "copied": rows,
        "writtenPerSent": 1 + period.written / period.sent,
        "logShare": log_share,
        "stateBytesARow": len(played.state.encode()) / kept,
        "longestTurnMs": 1e3 * period.longest_s,
        "leaderUs": 1e6 * leader_s / rows,
        "appliedUs": 1e6 * sum(cost.applied_s for cost in costs) / rows,
        "foundUs": 1e6 * period.found_s / rows,
    }
    for size, cost in sorted(period.costs.items()):
        each = 1e6 / max(1, cost.rows)
        told |= {
            f"{size}Commands": cost.commands,
            f"{size}Rows": cost.rows,
            f"{size}PlannedUs": each * cost.planned_s,
            f"{size}MadeUs": each * cost.made_s,
            f"{size}AppliedUs": each * cost.applied_s,
        }
    return {name: round(value, 3) for name, value in told.items()}


def judge(found: Sequence[Mapping[str, float]]) -> list[Check]:
    """Return the lines of the last retention's time; blocks stand beside those of the middle."""
    last, middle = found[-1], found[(len(found) - 1) // 2]
    return [
        at_most("leader, CPU of a message that is copied", last["leaderUs"], 10, "us"),
        at_most("a node that applies it", last["appliedUs"], 3, "us"),
        at_most("longest turn of the event loop", last["longestTurnMs"], 50, "ms"),
        at_most("log / (live + one retention of writes)", last["logShare"], 1.2, ""),
        at_most("bytes in the log for one of the users'", last["writtenPerSent"], 2.5, ""),
        at_most("state of a message that is kept", last["stateBytesARow"], 5, "B"),
        at_most(
            f"blocks, beside those at hour {middle['hour']:g}", last["blocks"], middle["blocks"], ""
        ),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Play, print the figures of each retention's time and the lines; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m e2e.bench.compaction",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--keys", type=int, default=25_000)
    parser.add_argument("--churn-percent", type=float, default=1.0, help="of the keys, an hour")
    parser.add_argument("--hours", type=int, default=432)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    keep_blocks()
    collect_seldom()  # as a node does
    churn = round(args.keys * args.churn_percent / 100)
    before = os.getloadavg()[0]
    lines = judge(play(args.keys, churn, args.hours, args.seed))
    print(f"{table(lines)}\nload {before:.1f} before, {os.getloadavg()[0]:.1f} after")
    return exit_code([line.verdict for line in lines])


if __name__ == "__main__":
    sys.exit(main())
