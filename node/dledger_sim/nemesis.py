"""Makes things go wrong: each kind of fault of `Options`, at random times."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

from dledger.errors import DledgerError
from dledger.files.memory_files import Fault
from dledger_sim.cluster import Cluster, S
from dledger_sim.members import Members
from dledger_sim.process import Process
from dledger_sim.rot import Rot

_OPERATIONS: Final = ("pread", "pwritev", "fdatasync", "rename", "open", "fsync_dir", "remove")


class Nemesis:
    """Schedules faults until the cluster is calm."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rng = cluster.random("nemesis")
        self._members = Members(cluster)
        self._rot = Rot(cluster)

    def start(self) -> None:
        """Let faults happen from now on."""
        options = self._cluster.options
        for mean_s, action in (
            (options.crash_s, self._crash),
            (options.away_s, self._leave),
            (options.kill_s, self._kill),
            (options.power_cut_s, self._cut_power),
            (options.partition_s, self._partition),
            (options.clog_s, self._clog),
            (options.pause_s, self._pause),
            (options.clock_jump_s, self._jump),
            (options.hint_s, self._hint),
            (options.order_s, self._order),
            (options.change_s, self._members.change),
            (options.wipe_s, self._members.wipe),
            (options.eio_s, self._fail_call),
            (options.full_s, self._fill),
            (options.rot_s, lambda: self._rot.flip(self._any())),
            (options.misdirect_s, lambda: self._rot.misdirect(self._any())),
            (options.lie_s, lambda: self._rot.lie(self._any())),
        ):
            if mean_s:
                self._repeat(mean_s, action)

    def _repeat(self, mean_s: float, action: Callable[[], None]) -> None:
        def again() -> None:
            if not self._cluster.calm:
                action()
                self._repeat(mean_s, action)

        self._cluster.clock.after(int(self._rng.expovariate(1 / mean_s) * S), again)

    def _any(self) -> Process:
        return self._rng.choice(list(self._cluster.processes.values()))

    def _crash(self) -> None:
        self._cluster.crash_after(0, self._any())

    def _leave(self) -> None:
        """Let a node lose power, for so long that retention may drop what it lacks."""
        process = self._any()
        if process.is_up:
            self._cluster.crash(process)
            self._cluster.restart_after(self._rng.randint(2 * S, 6 * S), process)

    def _kill(self) -> None:
        self._cluster.crash_after(0, self._any(), kill=True)

    def _cut_power(self) -> None:
        for process in self._cluster.up():
            self._cluster.crash_after(0, process)

    def _partition(self) -> None:
        nodes = list(self._cluster.processes)
        if len(nodes) < 2:
            return
        self._cluster.note(f"partition: {self._cluster.links.partition(nodes)}")
        self._cluster.clock.after(self._rng.randint(1, 3 * S), self._heal)

    def _heal(self) -> None:
        if not self._cluster.calm:
            self._cluster.links.heal()

    def _clog(self) -> None:
        sender, recipient = self._any().id, self._any().id
        self._cluster.links.clog(sender, recipient, self._rng.randint(1, 2 * S))

    def _pause(self) -> None:
        process, pause_us = self._any(), self._rng.randint(1, 2 * S)
        if process.is_up:
            self._cluster.note(f"{process.id} pauses for {pause_us} us")
            process.loop.pause(pause_us)

    def _jump(self) -> None:
        process = self._any()
        process.clock.offset_ms += self._rng.choice((-1, 1)) * self._rng.randint(1, 3_600_000)

    def _hint(self) -> None:
        process, peer = self._any(), self._any()
        if process.is_up:
            process.loop.run(process.driver.peer_disconnected, peer.id)

    def _order(self) -> None:
        process = self._any()
        if process.is_up:
            order = self._rng.choice((_hand_over, _step_down, _campaign))
            process.loop.run(order, process)

    def _fail_call(self) -> None:
        fault = Fault(
            operation=self._rng.choice(_OPERATIONS),
            errno=errno.EIO,
            skip=self._rng.randint(0, 5),
            partial_bytes=self._rng.randint(0, 600),
        )
        self._any().files.inject(fault)

    def _fill(self) -> None:
        files = self._any().files
        files.fill(self._rng.choice((0, 1, 10_000)))
        self._cluster.clock.after(self._rng.randint(1, 3 * S), files.empty)


def _hand_over(process: Process) -> None:
    try:
        process.driver.transfer_leadership(None)
    except DledgerError:
        return


def _step_down(process: Process) -> None:
    process.driver.core.step_down()


def _campaign(process: Process) -> None:
    process.driver.campaign()
