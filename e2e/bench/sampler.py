"""A group watched from beside: memory, processor and term of each node, every second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from e2e.bench.flatness import Life
from e2e.bench.process_group import ProcessGroup, leader_of
from e2e.harness.processes import Usage
from e2e.harness.waiting import HarnessError

_LOOK_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The group at one moment.

    Attributes:
        at_s: When (monotonic).
        term: The newest that any node tells; 0 if none answers.
        leader: The node that leads in the newest term; None if none says so.
        pids: The nodes' processes.
        usages: What each took so far; None for one that has ended.
    """

    at_s: float
    term: int
    leader: str | None
    pids: Sequence[int]
    usages: Sequence[Usage | None]


@dataclass(slots=True)
class Sampler:
    """Looks at *group* in a thread of its own, from `start` to `stop`.

    Attributes:
        group: Whose nodes are looked at.
        looks: What was seen, in order.
        problem: Why it ended by itself: what came later was not seen. "" if it did not.
    """

    group: ProcessGroup
    looks: list[Sample] = field(default_factory=list)
    problem: str = ""
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for the last look."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def check(self) -> None:
        """Raise HarnessError if it did not look to the end: nothing says then what happened."""
        if self.problem:
            raise HarnessError(f"nobody watched the group to the end: {self.problem}")

    def _watch(self) -> None:
        try:
            with ThreadPoolExecutor(len(self.group.specs)) as pool:
                while not self._over.wait(_LOOK_S):
                    self.looks.append(self._look(pool))
        except Exception as error:  # noqa: BLE001 - whatever it was, the run has to say so
            self.problem = repr(error)

    def _look(self, pool: ThreadPoolExecutor) -> Sample:
        group = self.group
        states = list(pool.map(group.system.state, group.specs))
        nodes = tuple(group.nodes)
        leader = leader_of(states)
        return Sample(
            term=max((told.term for told in states if told), default=0),
            leader=None if leader is None else group.specs[leader].name,
            at_s=time.monotonic(),
            pids=[node.pid for node in nodes],
            usages=[node.usage() for node in nodes],
        )

    def terms(self) -> list[tuple[float, int]]:
        """Return (when, newest term) of each look at which a node answered."""
        return [(look.at_s, look.term) for look in self.looks if look.term]

    def table(self) -> str:
        """Return the looks as lines: seconds, leader, MB of each node; separated by tabs."""
        if not self.looks:
            return ""
        names = [spec.name for spec in self.group.specs]
        rows = [["seconds", "leader", *names]]
        for look in self.looks:
            sizes = [f"{usage.rss_mb:.1f}" if usage else "" for usage in look.usages]
            rows.append([f"{look.at_s - self.looks[0].at_s:.0f}", look.leader or "", *sizes])
        return "".join("\t".join(row) + "\n" for row in rows)

    def lives(self) -> list[Life]:
        """Return what each process took, by its age at each look."""
        found: dict[tuple[int, int], list[tuple[float, float]]] = {}
        for look in self.looks:
            for index, (pid, usage) in enumerate(zip(look.pids, look.usages, strict=True)):
                if usage is not None:
                    found.setdefault((index, pid), []).append((look.at_s, usage.rss_mb))
        return [
            Life(
                node=self.group.specs[index].name,
                rss_mb=[(at_s - rows[0][0], mb) for at_s, mb in rows],
            )
            for (index, _), rows in found.items()
        ]


def until_s(at_s: float, step: Callable[[], None], *, every_s: float) -> None:
    """Call *step* every so often until *at_s* (monotonic)."""
    while (left_s := at_s - time.monotonic()) > 0:
        time.sleep(min(left_s, every_s))
        step()
