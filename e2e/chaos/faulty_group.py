"""A group of real node processes on this machine, each behind proxies and on faulty files.

A node that ends is started again, as a kubelet does, unless the nemesis holds it down.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from dledger.client import AdminClient
from dledger.common.status import NodeStatus
from dledger.errors import DledgerError
from e2e.chaos.files import clear, flip_bit
from e2e.chaos.shim import Control, ControlFile
from e2e.harness.nodes import NodeSpec, allocate, member_of, node_command, status_of
from e2e.harness.processes import ChildProcess
from e2e.harness.proxy import Network
from e2e.harness.volume import Volume
from e2e.harness.waiting import HarnessError, eventually_async

_T = TypeVar("_T")

_RESTART_S: Final = 0.2
_POLL_S: Final = 0.05
_END_S: Final = 30.0
_START_S: Final = 60.0
_STATUS_S: Final = 1.0
_NEAR_ENTRIES: Final = 100
_REFUSED: Final = 3
_REFUSES_TO_START: Final = frozenset({2, _REFUSED})
RETENTION_HOURS: Final = 72
"""No run lives so long: whatever is gone at its end is lost."""
WATERMARK_PERCENT: Final = 85
_SETTINGS: Final = {
    "group": "chaos",
    "segment_bytes": 1 << 20,
    "snapshot_bytes": 1 << 20,
    "retention_hours": RETENTION_HOURS,
    "disk_watermark_percent": 0,  # but on a volume of its own: others use the machine's disk
    "shutdown_grace_s": 10,
}


@dataclass(frozen=True, slots=True)
class Exit:
    """One end of a node process that nobody asked for."""

    at_s: float
    node: str
    code: int


class FaultyNode:
    """One replica: where it is, its faults, and its process while there is one."""

    def __init__(self, spec: NodeSpec, *, own_volume: bool) -> None:
        self.spec = spec
        self.name = spec.name
        self.data = spec.directory
        self.log_path = spec.directory.with_suffix(".log")
        self.control_path = spec.directory.with_suffix(".control.json")
        self.control = ControlFile(self.control_path)
        self.volume = Volume(self.data) if own_volume else None
        self.admin = AdminClient(spec.own_address, timeout_s=_STATUS_S)
        self.process: ChildProcess | None = None
        self.may_run = asyncio.Event()
        self.may_run.set()

    @property
    def runs(self) -> bool:
        """Whether there is a process, paused or not."""
        return self.process is not None and self.process.is_running()

    def wipe(self) -> None:
        """Remove all its data; it must have ended. A directory that is a mount stays."""
        clear(self.data)

    def rot(self, place: float) -> bool:
        """Flip one bit of its log, that far from its beginning; it must have ended.

        Returns:
            Whether there was a byte to flip it in.
        """
        segments = sorted((self.data / "log").glob("*.seg"))
        used_bytes = [len(path.read_bytes().rstrip(b"\0")) for path in segments]
        offset = int(place * sum(used_bytes))
        for path, size_bytes in zip(segments, used_bytes, strict=True):
            if offset < size_bytes:
                flip_bit(path, offset)
                return True
            offset -= size_bytes
        return False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if there is a process."""
        if self.process is not None:
            self.process.send(number)

    async def status(self) -> NodeStatus | None:
        """Return what it says of itself; None if it does not answer within a second."""
        return await status_of(self.admin) if self.runs else None


class FaultyGroup:
    """All replicas, kept running."""

    def __init__(
        self,
        directory: Path,
        *,
        count: int,
        own_volume: bool,
        seed: int,
        durability: str = "sync",
    ) -> None:
        rng = random.Random(seed)
        self._durability = durability
        self.directory = directory
        self.group_id = str(uuid.uuid4())
        specs = allocate(directory, count=count, prefix="node-")
        self.nodes = {
            spec.name: FaultyNode(spec, own_volume=own_volume and spec.index == 0) for spec in specs
        }
        listens = {spec.name: (spec.peer_port, spec.replication_port) for spec in specs}
        self.network = Network(listens, rng)
        self.exits: list[Exit] = []
        self.ends: list[Exit] = []
        """Ends of nodes that were told to stop in order, and did not end in order."""
        self.refusals: list[str] = []
        self._stopping = False
        self._keepers: list[asyncio.Task[None]] = []
        self._started_s = time.monotonic()

    def now_s(self) -> float:
        """Return the run's clock: seconds since the group was made."""
        return time.monotonic() - self._started_s

    # -- life -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start all nodes and found the group. Raises HarnessError."""
        await self.network.start()
        for node in self.nodes.values():
            if node.volume is not None:
                node.volume.mount()
            self._keepers.append(asyncio.create_task(self._keep(node)))
        statuses = await self.wait_for("all nodes to answer", self._all_statuses, _START_S)
        members = [
            member_of(status, node.spec.own_address)
            for status, node in zip(statuses, self.nodes.values(), strict=True)
        ]
        await next(iter(self.nodes.values())).admin.bootstrap(self.group_id, members)
        await self.wait_for("the first leader", self.whole, _START_S)

    async def stop(self) -> None:
        """End all nodes in order; kill those that do not, and give volumes back."""
        self._stopping = True
        for node in self.nodes.values():
            node.may_run.set()
            node.signal(signal.SIGCONT)
            node.signal(signal.SIGTERM)
        with contextlib.suppress(HarnessError):
            await self.wait_ended(self.nodes, _END_S)
        for node in self.nodes.values():
            node.signal(signal.SIGKILL)
        await asyncio.gather(*self._keepers)
        await asyncio.gather(*(node.admin.close() for node in self.nodes.values()))
        await self.network.close()

    def release_volumes(self) -> None:
        """Unmount what was mounted; the nodes must have ended."""
        for node in self.nodes.values():
            if node.volume is not None:
                node.volume.unmount()

    async def _keep(self, node: FaultyNode) -> None:
        while True:
            await node.may_run.wait()
            if self._is_stopping():
                return
            node.process = self._spawn(node)
            code = await self._ended(node.process)
            if self._is_stopping():
                if code != 0:
                    self.ends.append(Exit(self.now_s(), node.name, code))
                return
            if node.may_run.is_set():
                self.exits.append(Exit(self.now_s(), node.name, code))
            if code in _REFUSES_TO_START:
                self.refusals.append(f"{_refusal_of(node.name)} (exit {code})")
                node.may_run.clear()
            await asyncio.sleep(_RESTART_S)

    async def _ended(self, process: ChildProcess) -> int:
        while True:
            if (code := process.exit_code) is not None:
                return code
            await asyncio.sleep(_POLL_S)

    def _is_stopping(self) -> bool:
        return self._stopping

    def _spawn(self, node: FaultyNode) -> ChildProcess:
        chaos = {
            "CHAOS_CONTROL": str(node.control_path),
            "CHAOS_ROUTES": json.dumps(self.network.routes(node.name)),
        }
        settings = {
            **_SETTINGS,
            "group_id": self.group_id,
            "data_dir": node.data,
            "durability": self._durability,
        }
        if node.volume is not None:
            settings["disk_watermark_percent"] = WATERMARK_PERCENT
        arguments = ("-m", "e2e.chaos.node", "--exit-with-parent", str(os.getpid()))
        command = node_command(node.spec, settings, arguments=arguments, environment=chaos)
        return ChildProcess(command, node.log_path)

    # -- faults of processes --------------------------------------------------------------------

    async def kill(self, names: Collection[str]) -> None:
        """SIGKILL these and hold them down until `release`."""
        for name in names:
            self.nodes[name].may_run.clear()
        for name in names:
            self.nodes[name].signal(signal.SIGKILL)
        await self.wait_ended(names, 10.0)
        await asyncio.sleep(2 * _POLL_S)  # who keeps them must see that they were held down

    def pause(self, name: str) -> None:
        """SIGSTOP one node until `release`."""
        self.nodes[name].signal(signal.SIGSTOP)

    async def starts(self, name: str, deadline_s: float) -> bool:
        """Wait until a node answers, or has refused to start; whether it answers.

        A refusal is then nothing wrong: whoever asks has damaged both copies of something.
        """
        node, sentence = self.nodes[name], _refusal_of(name)

        async def decided() -> bool:
            return any(one.startswith(sentence) for one in self.refusals) or bool(
                await node.status()
            )

        await self.wait_for(f"{name} to start or to refuse it", decided, deadline_s)
        refused = any(one.startswith(sentence) for one in self.refusals)
        self.refusals = [one for one in self.refusals if not one.startswith(sentence)]
        if refused:
            self.exits = [one for one in self.exits if (one.node, one.code) != (name, _REFUSED)]
        return not refused

    async def wait_ended(self, names: Collection[str], deadline_s: float) -> None:
        """Return when none of these has a process. Raises HarnessError."""

        async def ended() -> bool:
            return not any(self.nodes[name].runs for name in names)

        await self.wait_for(f"{', '.join(sorted(names))} to end", ended, deadline_s)

    def release(self) -> None:
        """Let all nodes run, without faults."""
        for node in self.nodes.values():
            node.control.set(Control())
            node.signal(signal.SIGCONT)
            node.may_run.set()

    # -- how it is ------------------------------------------------------------------------------

    async def statuses(self) -> dict[str, NodeStatus]:
        """Return what the nodes say that answer."""
        asked = await asyncio.gather(*(node.status() for node in self.nodes.values()))
        return {name: s for name, s in zip(self.nodes, asked, strict=True) if s is not None}

    async def leader(self) -> str | None:
        """Return the node that leads in the highest term, and serves."""
        leading = [s for s in (await self.statuses()).values() if s.role == "leader" and s.ready]
        return max(leading, key=lambda s: s.term).name if leading else None

    async def whole(self) -> dict[str, NodeStatus] | None:
        """Return the statuses when all nodes vote, are connected, and follow one leader closely.

        And no log has a damaged entry that is not repaired yet.
        """
        statuses = await self.statuses()
        if len(statuses) < len(self.nodes) or not all(s.ready for s in statuses.values()):
            return None
        leaders = {(s.term, s.leader_id) for s in statuses.values()}
        commits = [s.commit_index for s in statuses.values()]
        if len(leaders) > 1 or max(commits) - min(commits) > _NEAR_ENTRIES:
            return None
        if any(s.faulty_entries for s in statuses.values()):
            return None
        present = [sum(row.voter and row.connected for row in s.members) for s in statuses.values()]
        return statuses if set(present) == {len(self.nodes)} else None

    async def replace_disk(self, name: str, old_id: str, deadline_s: float) -> None:
        """Make the wiped node *name* a member again, in place of *old_id*. Raises HarnessError."""
        node = self.nodes[name]

        async def is_empty() -> NodeStatus | None:
            status = await node.status()
            return status if status is not None and status.role == "unjoined" else None

        status = await self.wait_for(f"{name} to wait for its group", is_empty, deadline_s)
        member = member_of(status, node.spec.own_address)
        asked = next(other for other in self.nodes.values() if other is not node)
        async with AdminClient(asked.spec.own_address, timeout_s=deadline_s) as admin:
            try:
                await admin.change_members(add=[member], remove=[old_id])
            except DledgerError as error:
                raise HarnessError(f"{name} could not be replaced: {error}") from error

    async def majority_answers(self) -> bool:
        """Whether a majority of the nodes runs and answers."""
        return 2 * len(await self.statuses()) > len(self.nodes)

    async def wait_for(
        self, what: str, probe: Callable[[], Awaitable[_T | None]], deadline_s: float
    ) -> _T:
        """Return the first truthy answer. Raises HarnessError."""

        async def probe_unless_refused() -> _T | None:
            if not (answer := await probe()) and self.refusals:
                raise HarnessError("; ".join(self.refusals))
            return answer

        return await eventually_async(what, probe_unless_refused, deadline_s)

    async def _all_statuses(self) -> Sequence[NodeStatus] | None:
        statuses = await self.statuses()
        return list(statuses.values()) if len(statuses) == len(self.nodes) else None


def _refusal_of(name: str) -> str:
    return f"{name} refuses to start"
