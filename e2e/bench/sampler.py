"""A group watched from beside: memory, processor and term of each node, and the disk they share."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from e2e.bench.elections import Made
from e2e.bench.faults import SETTLED_S
from e2e.bench.process_group import ProcessGroup, leader_of
from e2e.harness.processes import Usage
from e2e.harness.waiting import HarnessError

_LOOK_S: Final = 1.0
_BYTES: Final = 4096
_EVERY_S: Final = 0.05
_HANG_S: Final = 0.4
"""A little less than the 0.5 s after which a leader that is behind gives way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What one process took, from its start to its end or the run's.

    Attributes:
        node: The node's name.
        rss_mb: (seconds since its first look, memory) at each look, in order.
    """

    node: str
    rss_mb: Sequence[tuple[float, float]]

    @property
    def peak_mb(self) -> float:
        """The most it took at any look."""
        return max(mb for _, mb in self.rss_mb)

    def growth(self, *, warm_up_s: float, least_s: float) -> float | None:
        """Return by which part memory grew: median of the last quarter over that of the first.

        Args:
            warm_up_s: What does not count: caches fill, and what was missed is fetched.
            least_s: What has to be left; None is returned for a shorter life.
        """
        counted = [(at_s, mb) for at_s, mb in self.rss_mb if at_s >= warm_up_s]
        if not counted or counted[-1][0] - counted[0][0] < least_s:
            return None
        values = [mb for _, mb in counted]
        quarter = max(1, len(values) // 4)
        return median(values[-quarter:]) / median(values[:quarter]) - 1


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


class Background:
    """Does `_watch` in a thread of its own, from `start` to `stop`, which sets `_over`."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for the last look; fine if it never began."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        raise NotImplementedError


class Sampler(Background):
    """Looks at *group* in a thread of its own, from `start` to `stop`.

    Attributes:
        group: Whose nodes are looked at.
        looks: What was seen, in order.
        problem: Why it ended by itself: what came later was not seen. "" if it did not.
    """

    def __init__(self, group: ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self.looks: list[Sample] = []
        self.problem = ""

    def check(self) -> None:
        """Raise HarnessError if it stopped early: what happened later is then unknown."""
        if self.problem:
            raise HarnessError(f"the group was not watched to the end: {self.problem}")

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


class DiskProbe(Background):
    """Writes a little to *path* and syncs, over and over: whether the disk hangs, seen from beside.

    A leader whose disk hangs gives way, which is what it should do, and an election without a fault
    of ours. Whether the disk did hang then is not for the nodes to say.

    Attributes:
        hangs: Each write and sync that took 0.4 s or more, as what was done to the group: it hits
            the leader as well, since all share the disk.
        longest_s: The longest one of all; None before the first has ended.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self.hangs: list[Made] = []
        self.longest_s: float | None = None

    def _watch(self) -> None:
        data = os.urandom(_BYTES)
        fd = os.open(self._path, os.O_CREAT | os.O_RDWR)
        try:
            while not self._over.wait(_EVERY_S):
                begin_s = time.monotonic()
                os.pwrite(fd, data, 0)
                os.fdatasync(fd)
                self.took(begin_s, time.monotonic())
        finally:
            os.close(fd)

    def took(self, begin_s: float, end_s: float) -> None:
        """Note one write and sync, by the monotonic clock."""
        self.longest_s = max(self.longest_s or 0.0, end_s - begin_s)
        if end_s - begin_s >= _HANG_S:
            self.hangs.append(
                Made(
                    name=f"the machine's disk hung for {end_s - begin_s:.1f} s",
                    begin_s=begin_s,
                    end_s=end_s + SETTLED_S,
                    hits_leader=True,
                )
            )


def until_s(at_s: float, step: Callable[[], None], *, every_s: float) -> None:
    """Call *step* every so often until *at_s* (monotonic)."""
    while (left_s := at_s - time.monotonic()) > 0:
        time.sleep(min(left_s, every_s))
        step()
