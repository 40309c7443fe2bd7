"""A group of three nodes under measurement, whatever system it is of.

What differs between systems is in `System`: how a node is started, how it is asked who leads, how
it is loaded. Freezing a group (`pause`) takes it off the processor while others are measured.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from e2e.bench.loads import Load
from e2e.harness.nodes import Link, NodeSpec
from e2e.harness.processes import ChildProcess, Command, Usage
from e2e.harness.waiting import HarnessError, eventually

_WHOLE_S: Final = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """What a node says of itself.

    Attributes:
        leads: Whether it believes that it leads.
        term: In which term.
        is_ready: Whether it takes part: it follows a leader or is one.
        last_index: The newest entry of its log, where the system tells; else 0.
        phases: How long its last election took, phase by phase, where the system tells.
    """

    leads: bool
    term: int
    is_ready: bool
    last_index: int = 0
    phases: Mapping[str, float] = field(default_factory=dict)


def leader_of(states: Sequence[NodeState | None]) -> int | None:
    """Return the index of who leads in the newest term; None: nobody says so."""
    leading = [(told.term, at) for at, told in enumerate(states) if told and told.leads]
    return max(leading)[1] if leading else None


class System(Protocol):
    """What the bench has to know of a system to measure it."""

    @property
    def name(self) -> str:
        """As it stands in the rows."""

    @property
    def warm_up_s(self) -> float:
        """How long it is loaded before anything counts."""

    @property
    def link(self) -> Link:
        """How its peers can be led to a link."""

    def node(self, spec: NodeSpec, specs: Sequence[NodeSpec]) -> Command:
        """Return how the node of *spec* is started."""

    def load(self, specs: Sequence[NodeSpec]) -> Command:
        """Return the program that loads the group."""

    def found(self, specs: Sequence[NodeSpec]) -> None:
        """Make a group of nodes that run for the first time, if that takes an act."""

    def state(self, spec: NodeSpec) -> NodeState | None:
        """Ask the node of *spec*; None when it does not answer."""


class ProcessGroup:
    """Three running nodes of a system and the program that loads them."""

    def __init__(self, system: System, specs: Sequence[NodeSpec], logs: Path) -> None:
        self.system = system
        self.specs = specs
        self._logs = logs
        self._nodes: list[ChildProcess] = []
        self._load: Load | None = None

    @property
    def nodes(self) -> Sequence[ChildProcess]:
        """The nodes' processes, by index."""
        return self._nodes

    @property
    def load(self) -> Load:
        """The program that loads the group."""
        assert self._load is not None
        return self._load

    def start(self) -> None:
        """Start all nodes, found the group, wait for a leader, start the load program."""
        self._logs.mkdir(parents=True, exist_ok=True)
        self._nodes = [self._spawn(spec) for spec in self.specs]
        self.system.found(self.specs)
        self.wait_whole()
        command = self.system.load(self.specs)
        self._load = Load(ChildProcess(command, self._logs / "load.log"))

    def _spawn(self, spec: NodeSpec) -> ChildProcess:
        spec.directory.mkdir(parents=True, exist_ok=True)
        return ChildProcess(self.system.node(spec, self.specs), self._logs / f"{spec.name}.log")

    def restart(self, index: int) -> None:
        """Start a node that has ended again, on what it left."""
        if self._nodes[index].is_running():
            raise HarnessError(f"{self.system.name} node {index} still runs")
        self._nodes[index].stop()  # its pipes are still open
        self._nodes[index] = self._spawn(self.specs[index])

    def states(self) -> list[NodeState | None]:
        """Ask every node that runs."""
        return [
            self.system.state(spec) if node.is_running() else None
            for spec, node in zip(self.specs, self._nodes, strict=True)
        ]

    def leader(self) -> int | None:
        """Return the index of the node that leads in the newest term."""
        return leader_of(self.states())

    def whole(self) -> int | None:
        """Return the leader when every node takes part, else None."""
        states = self.states()
        whole = all(state and state.is_ready for state in states)
        return self.leader() if whole else None

    def wait_whole(self) -> int:
        """Wait until every node takes part and one leads; return which. Raises HarnessError."""
        what = f"{self.system.name} is whole (logs: {self._logs})"

        def whole() -> tuple[int] | None:
            leader = self.whole()
            return None if leader is None else (leader,)

        return eventually(what, whole, _WHOLE_S)[0]

    def pause(self) -> None:
        """Freeze every process of the group."""
        for child in self._children():
            child.send(signal.SIGSTOP)

    def resume(self) -> None:
        """Let every process go on, and wait until the group has found itself."""
        for child in self._children():
            child.send(signal.SIGCONT)
        self.wait_whole()

    def _children(self) -> list[ChildProcess]:
        return [*self._nodes, *([self._load.child] if self._load else [])]

    def usages(self) -> list[Usage | None]:
        """Return what each node took so far."""
        return [node.usage() for node in self._nodes]

    def disk_bytes(self) -> int:
        """Return what the nodes' directories take on the disk."""
        files = (path for spec in self.specs for path in spec.directory.rglob("*"))
        return sum(path.stat().st_blocks * 512 for path in files if path.is_file())

    def stop(self) -> None:
        """End every process."""
        for child in reversed(self._children()):
            child.stop()
        self._nodes, self._load = [], None

    def discard(self) -> None:
        """End every process and remove what they wrote, mount points excepted."""
        self.stop()
        for path in (path for spec in self.specs for path in spec.directory.glob("*")):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
