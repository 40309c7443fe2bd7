"""A group with clocks that may be wrong by anything: real log clocks, dates and lived time.

Everything between is a few lines of model: who leads, what is committed, who hears whom. All times
of the world are exact; `Reality` is what no node knows.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from dledger.broker.lived_time import LivedTime
from dledger.common.metrics import NodeMetrics
from dledger.common.reports import Report
from dledger.replica.dating import Dating
from dledger.replica.log_clock import LogClock
from dledger.replica.reports import Heard
from dledger.types import Member, Membership, NodeId, Role

_START_MS = 1_700_000_000_000
_DAY_S = 86_400
_METRICS = NodeMetrics("test", "any")
KEEP_MS = 1_800_000
"""How long messages are kept: half an hour, so that a run has many of them."""
ROUND_TRIP_MS = 1_000


@dataclass
class Reality:
    """What is true: the time, and how much of it a leader has led."""

    s: float = 0.0
    led_s: float = 0.0
    common_s: float = 0.0  # how far all clocks are wrong together

    @property
    def ms(self) -> int:
        return _START_MS + round(self.s * 1000)


@dataclass
class Committed:
    """An entry: its time, whether it is a LEAP, and how long the group had been led then."""

    ms: int
    leap: tuple[int, int] | None
    led_s: float


class Node:
    """One process: its clocks, its log's time, its state."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.id = world, NodeId(f"n{number}")
        self.error_s = 0.0
        self.mono_s = 0.0
        self.time = LivedTime()
        self.applied = 0
        self.role = Role.FOLLOWER
        self.term = 1
        self.start()

    def start(self) -> None:
        """A start of the process: it knows what it applied, and not when."""
        self.log_clock = LogClock(self)
        self.log_clock.applied(self.time.log_ms, self.time.leapt_ms)
        self.dating = Dating(
            self,
            clock=self,
            log_clock=self.log_clock,
            reports=self,  # type: ignore[arg-type]  # the part that is asked
            metrics=_METRICS,
            leap=self.leap,
        )

    # -- its clocks, its core and its reports --

    def monotonic_s(self) -> float:
        return self.mono_s

    def unix_ms(self) -> int:
        wrong_s = self.error_s + self.world.reality.common_s
        return max(0, self.world.reality.ms + round(wrong_s * 1000))

    @property
    def memberships(self) -> Any:
        return SimpleNamespace(current=self.world.membership)

    def ask(self, members: object, *, term: int) -> None:
        """Ask nobody: what is heard is drawn."""

    def heard(self) -> dict[NodeId, Heard]:
        found = {}
        for other in self.world.heard_by[self.id]:
            age_s = self.world.rng.choice([0.0, 0.2, 2.9])
            then_ms = max(0, other.unix_ms() - round(age_s * 1000))
            report = Report(incarnation="1", unix_ms=then_ms)
            found[other.id] = Heard(report=report, heard_s=self.mono_s - age_s, waited_s=0.0)
        return found

    # -- what it does --

    def leap(self, to_ms: int) -> int:
        from_ms = self.log_clock.leap(to_ms)
        return self.world.propose(to_ms, leap=(from_ms, to_ms))

    def apply(self, end: int) -> None:
        for entry in self.world.log[self.applied : end]:
            self.time.advance(entry.ms)
            if entry.leap is not None:
                self.time.leap(*entry.leap)
            self.log_clock.applied(entry.ms, self.time.leapt_ms)
        self.applied = max(self.applied, end)

    def look(self) -> None:
        self.dating.look(
            self.mono_s, serves=self.role is Role.LEADER, applied_index=self.world.committed
        )


@dataclass
class World:
    """A random run. *minority*: never more than that are wrong, since the founding."""

    seed: int
    minority: bool
    rng: random.Random = field(init=False)
    reality: Reality = field(default_factory=Reality)
    log: list[Committed] = field(default_factory=list)
    committed: int = 0
    leader: Node | None = None
    dropped: int = 0
    leaps: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        count = self.rng.choice((1, 2, 3, 3, 5))
        self.wrong = (count - 1) // 2
        self.heard_by: dict[NodeId, list[Node]] = {}
        ids = [NodeId(f"n{number}") for number in range(count)]
        self.membership = Membership.of(Member(id=i, name=i, address=i) for i in ids)
        self.nodes = [Node(self, number) for number in range(count)]
        self.kept: list[Committed] = []
        self._led_from: tuple[Node, float, int] | None = None
        self._all_right_s = 0.0
        self._draw_clocks()
        self._draw_hearing()
        self._lead(self.nodes[0])

    # -- what the world does --

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._happens()
            self._passes(self.rng.choice((0.05, 1.0, 5.0, 5.0)))
            if self.leader is not None:
                self._entry(self.leader)
                self._retain(self.leader)

    def _happens(self) -> None:
        chance = self.rng.random()
        if chance < 0.02:
            self._draw_clocks()
        elif chance < 0.05:
            self._draw_hearing()
        elif chance < 0.08:
            self._change_leader()
        elif chance < 0.09:
            self._no_leader()
        elif chance < 0.095:
            self._all_off()
        elif chance < 0.1:
            self._all_frozen()
        elif chance < 0.11:
            self._restart(self.rng.choice(self.nodes))
        elif chance < 0.2:
            self._quiet(self.rng.choice((20, 300)))

    def _draw_clocks(self) -> None:
        """Once more wrong clocks, after a while in which those that were heard are forgotten."""
        for node in self.nodes:
            node.error_s = self.rng.uniform(-0.05, 0.05)
        wrong = self.rng.randint(0, self.wrong)
        if not self.minority:
            wrong = self.rng.randint(0, len(self.nodes))
            if self.rng.random() < 0.5:  # each time a bit more
                self.reality.common_s += self.rng.choice((-3_600, 6, 60, 3_600, _DAY_S))
        for node in self.rng.sample(self.nodes, wrong):
            by_s = self.rng.choice((7, 60, 3_600, 73 * 3_600, 100 * _DAY_S))
            node.error_s = self.rng.choice((-1, 1)) * by_s
        self._all_right_s = 0.0

    def _draw_hearing(self) -> None:
        everyone = self.rng.random() < 0.6
        for node in self.nodes:
            others = [other for other in self.nodes if other is not node]
            fewer = self.rng.randint(0, len(others))
            self.heard_by[node.id] = self.rng.sample(others, len(others) if everyone else fewer)
        self._all_right_s = 0.0

    def _passes(self, s: float) -> None:
        before_ms = self.leader.log_clock.now_ms() if self.leader is not None else 0
        self.reality.s += s
        self.reality.led_s += s if self.leader is not None else 0
        for node in self.nodes:
            node.mono_s += s
            node.log_clock.look()
        if self.leader is not None:
            passed_ms = self.leader.log_clock.now_ms() - before_ms
            assert passed_ms >= round(s * 1000) * 7 // 8 - 1, self.told("the log's time stood")
        for node in self.nodes:
            node.look()
        self._check_date(s)

    def _quiet(self, count: int) -> None:
        for _ in range(count):
            self._passes(5.0)

    def _lead(self, node: Node) -> None:
        self.leader = node
        for each in self.nodes:
            each.role = Role.LEADER if each is node else Role.FOLLOWER
            each.term += 1
            if each is not node:
                each.log_clock.follows(led=True)
        node.apply(self.committed)
        node.log_clock.lead()
        self._all_right_s = 0.0

    def _step_down(self) -> None:
        """What was not committed is cut."""
        del self.log[self.committed :]
        self.leader = None
        for node in self.nodes:
            node.role = Role.FOLLOWER
            node.log_clock.follows(led=False)

    def _change_leader(self) -> None:
        if self.leader is not None and self.rng.random() < 0.3:
            self._uncommitted(self.leader)
        self._step_down()
        self._lead(self.rng.choice(self.nodes))

    def _uncommitted(self, leader: Node) -> None:
        """The leader is cut off from now on, looks at its clock, and writes what nobody gets."""
        if leader.log_clock.is_dated:
            self.log.append(self._stamped(leader))
            leader.leap(leader.log_clock.now_ms() + 9_000_000)

    def _no_leader(self) -> None:
        self._step_down()
        for _ in range(self.rng.choice((1, 400))):
            self._passes(5.0)
        self._lead(self.rng.choice(self.nodes))

    def _all_off(self) -> None:
        """All processes end; later they start."""
        self._step_down()
        self.reality.s += self.rng.choice((60, 60 * 3_600))
        for node in self.nodes:
            self._restart(node)
        self._lead(self.rng.choice(self.nodes))

    def _restart(self, node: Node) -> None:
        """A node restarts; the clock that it had is gone."""
        was_leader = node is self.leader
        if was_leader:
            self._step_down()
        node.mono_s = self.rng.uniform(0, 10**6)
        node.start()
        if was_leader or self.leader is None:
            self._lead(self.rng.choice(self.nodes))
        else:
            node.log_clock.follows(led=True)

    def _all_frozen(self) -> None:
        """All processes are stopped, as paused containers are: monotonic time goes on."""
        s = self.rng.choice((60, 60 * 3_600))
        self.reality.s += s
        for node in self.nodes:
            node.mono_s += s
            node.log_clock.look()
        self.reality.led_s += 5  # what is counted of it at most

    # -- entries --

    def propose(self, ms: int, *, leap: tuple[int, int] | None = None) -> int:
        self.leaps += leap is not None
        self.log.append(Committed(ms, leap, self.reality.led_s))
        return len(self.log)

    def _stamped(self, leader: Node) -> Committed:
        return Committed(leader.log_clock.now_ms(), None, self.reality.led_s)

    def _entry(self, leader: Node) -> None:
        if not leader.log_clock.is_dated:
            return
        if self.rng.random() < 0.7:
            self.log.append(self._stamped(leader))
        new = self.log[self.committed :]
        newest_ms = self.log[self.committed - 1].ms if self.committed else 0
        for entry in new:
            assert entry.ms >= newest_ms, self.told("the log's time went back")
            newest_ms = entry.ms
        self.committed = len(self.log)
        self.kept += [entry for entry in new if entry.leap is None]
        for node in self.nodes:
            if node is leader or self.rng.random() < 0.8:
                node.apply(self.committed)
        if self.minority:
            latest_ms = self.reality.ms + 50
            assert newest_ms <= latest_ms + 5_000 + ROUND_TRIP_MS, self.told("ahead of all right")

    def _retain(self, leader: Node) -> None:
        lived_ms, time = leader.log_clock.lived_ms(), leader.time
        while self.kept and lived_ms - time.lived_at(self.kept[0].ms) >= KEEP_MS:
            gone = self.kept.pop(0)
            led_ms = (self.reality.led_s - gone.led_s) * 1000
            assert led_ms >= KEEP_MS * 7 / 8, self.told(f"gone after {led_ms / 1000:.0f} s led")
            self.dropped += 1
        if self.kept:
            led_ms = (self.reality.led_s - self.kept[0].led_s) * 1000
            assert led_ms <= 3 * KEEP_MS + 3_600_000, self.told("kept far beyond")

    def _check_date(self, s: float) -> None:
        leader = self.leader
        if leader is None or not leader.log_clock.is_dated:
            self._all_right_s = 0.0
            return
        everyone = len(self.heard_by[leader.id]) == len(self.nodes) - 1
        right = all(abs(node.error_s) <= 0.05 for node in self.nodes)
        self._all_right_s = self._all_right_s + s if everyone and right else 0.0
        if self.minority and self._all_right_s > 60:
            apart_ms = leader.log_clock.now_ms() - self.reality.ms
            assert abs(apart_ms) <= 5_000 + ROUND_TRIP_MS, self.told(f"{apart_ms} ms off")

    def told(self, what: str) -> str:
        return f"seed {self.seed}, {len(self.nodes)} nodes, after {self.reality.s:.0f} s: {what}"
