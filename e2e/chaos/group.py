"""A group of real node processes on this machine, each behind proxies and on faulty files.

A node that ends is started again, as a kubelet does, unless the nemesis holds it down.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from dledger.client import AdminClient
from dledger.common.status import NodeStatus
from dledger.errors import DledgerError
from dledger.types import Member, NodeId
from e2e.chaos.proxy import Network
from e2e.chaos.shim import Control, ControlFile
from e2e.chaos.volume import Volume

_T = TypeVar("_T")

_HOST: Final = "127.0.0.1"
_PORTS: Final = (10_000, 32_000)
_PORTS_PER_NODE: Final = 4
_RESTART_S: Final = 0.2
_POLL_S: Final = 0.05
_END_S: Final = 30.0
_START_S: Final = 60.0
_STATUS_S: Final = 1.0
_NEAR_ENTRIES: Final = 100
_REFUSES_TO_START: Final = frozenset({2, 3})
_SETTINGS: Final = {
    "group": "chaos",
    "advertise_host": _HOST,
    "listen_host": _HOST,
    "client_tls_port": "0",
    "segment_bytes": str(1 << 20),
    "snapshot_bytes": str(1 << 20),
    "retention_hours": "0",  # what goes by policy would look like a loss
    "disk_watermark_percent": "0",
    "shutdown_grace_s": "10",
}


class GroupError(Exception):
    """The group is not as it must be; the message says what was waited for."""


@dataclass(frozen=True, slots=True)
class Exit:
    """One end of a node process that nobody asked for."""

    at_s: float
    node: str
    code: int


class Node:
    """One replica: where it is, its faults, and its process while there is one."""

    def __init__(self, directory: Path, name: str, first_port: int, *, own_volume: bool) -> None:
        self.name = name
        ports = range(first_port, first_port + _PORTS_PER_NODE)
        self.client_port, self.peer_port, self.http_port, self.replication_port = ports
        self.data = directory / name
        self.log_path = directory / f"{name}.log"
        self.control_path = directory / f"{name}.control.json"
        self.control = ControlFile(self.control_path)
        self.volume = Volume(self.data) if own_volume else None
        self.admin = AdminClient(f"{_HOST}:{self.peer_port}", timeout_s=_STATUS_S)
        self.process: asyncio.subprocess.Process | None = None
        self.may_run = asyncio.Event()
        self.may_run.set()

    @property
    def endpoint(self) -> str:
        """Where clients reach it."""
        return f"{_HOST}:{self.client_port}"

    @property
    def runs(self) -> bool:
        """Whether there is a process, paused or not."""
        return self.process is not None and self.process.returncode is None

    def wipe(self) -> None:
        """Remove all its data; it must have ended. A directory that is a mount stays."""
        for child in self.data.iterdir():
            if child.is_dir():
                shutil.rmtree(child)
            else:
                child.unlink()

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

    def signal(self, number: int) -> None:
        """Send a signal, if there is a process."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    async def status(self) -> NodeStatus | None:
        """Return what it says of itself; None if it does not answer within a second."""
        if not self.runs:
            return None
        with contextlib.suppress(DledgerError):
            return await self.admin.status()
        return None


class Group:
    """All replicas, kept running."""

    def __init__(self, directory: Path, *, count: int, own_volume: bool, seed: int) -> None:
        rng = random.Random(seed)
        self.directory = directory
        self.group_id = str(uuid.uuid4())
        first = _free_ports(_PORTS_PER_NODE * count)
        self.nodes = {
            name: Node(
                directory,
                name,
                first + _PORTS_PER_NODE * index,
                own_volume=own_volume and index == 0,
            )
            for index, name in enumerate(f"node-{index}" for index in range(count))
        }
        listens = {n.name: (n.peer_port, n.replication_port) for n in self.nodes.values()}
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
        """Start all nodes and found the group. Raises GroupError."""
        await self.network.start()
        for node in self.nodes.values():
            if node.volume is not None:
                node.volume.mount()
            self._keepers.append(asyncio.create_task(self._keep(node)))
        statuses = await self.wait_for("all nodes to answer", self._all_statuses, _START_S)
        members = [
            Member(id=NodeId(s.node_id), name=s.name, address=f"{_HOST}:{node.peer_port}")
            for s, node in zip(statuses, self.nodes.values(), strict=True)
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
        with contextlib.suppress(GroupError):
            await self.wait_for("all nodes to end", self._none_runs, _END_S)
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

    async def _keep(self, node: Node) -> None:
        while True:
            await node.may_run.wait()
            if self._is_stopping():
                return
            node.process = await self._spawn(node)
            code = await node.process.wait()
            if self._is_stopping():
                if code != 0:
                    self.ends.append(Exit(self.now_s(), node.name, code))
                return
            if node.may_run.is_set():
                self.exits.append(Exit(self.now_s(), node.name, code))
            if code in _REFUSES_TO_START:
                self.refusals.append(f"{node.name} refuses to start (exit {code})")
                node.may_run.clear()
            await asyncio.sleep(_RESTART_S)

    def _is_stopping(self) -> bool:
        return self._stopping

    async def _spawn(self, node: Node) -> asyncio.subprocess.Process:
        settings = {
            **_SETTINGS,
            "name": node.name,
            "group_id": self.group_id,
            "data_dir": str(node.data),
            "client_port": str(node.client_port),
            "peer_port": str(node.peer_port),
            "http_port": str(node.http_port),
            "replication_port": str(node.replication_port),
        }
        own = {key: value for key, value in os.environ.items() if not key.startswith("DLEDGER_")}
        chaos = {
            "CHAOS_CONTROL": str(node.control_path),
            "CHAOS_ROUTES": json.dumps(self.network.routes(node.name)),
        }
        with node.log_path.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-m", "e2e.chaos.node", "--exit-with-parent",
                env=own | chaos | {f"DLEDGER_{key.upper()}": v for key, v in settings.items()},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )  # fmt: skip

    # -- faults of processes --------------------------------------------------------------------

    async def kill(self, names: Collection[str]) -> None:
        """SIGKILL these and hold them down until `release`."""
        for name in names:
            self.nodes[name].may_run.clear()
        for name in names:
            self.nodes[name].signal(signal.SIGKILL)
        await self.wait_ended(names, 10.0)

    def pause(self, name: str) -> None:
        """SIGSTOP one node until `release`."""
        self.nodes[name].signal(signal.SIGSTOP)

    async def wait_ended(self, names: Collection[str], deadline_s: float) -> None:
        """Return when none of these has a process. Raises GroupError."""

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
        """Make the wiped node *name* a member again, in place of *old_id*. Raises GroupError."""
        node = self.nodes[name]

        async def is_empty() -> NodeStatus | None:
            status = await node.status()
            return status if status is not None and status.role == "unjoined" else None

        status = await self.wait_for(f"{name} to wait for its group", is_empty, deadline_s)
        member = Member(id=NodeId(status.node_id), name=name, address=f"{_HOST}:{node.peer_port}")
        asked = next(other for other in self.nodes.values() if other is not node)
        async with AdminClient(f"{_HOST}:{asked.peer_port}", timeout_s=deadline_s) as admin:
            try:
                await admin.change_members(add=[member], remove=[old_id])
            except DledgerError as error:
                raise GroupError(f"{name} could not be replaced: {error}") from error

    async def majority_answers(self) -> bool:
        """Whether a majority of the nodes runs and answers."""
        return 2 * len(await self.statuses()) > len(self.nodes)

    async def wait_for(
        self, what: str, probe: Callable[[], Awaitable[_T | None]], deadline_s: float
    ) -> _T:
        """Return the first truthy answer. Raises GroupError."""
        end_s = time.monotonic() + deadline_s
        while time.monotonic() < end_s:
            if answer := await probe():
                return answer
            if self.refusals:
                raise GroupError("; ".join(self.refusals))
            await asyncio.sleep(_POLL_S)
        raise GroupError(f"waited {deadline_s:.0f} s for {what}")

    async def _all_statuses(self) -> Sequence[NodeStatus] | None:
        statuses = await self.statuses()
        return list(statuses.values()) if len(statuses) == len(self.nodes) else None

    async def _none_runs(self) -> bool:
        return not any(node.runs for node in self.nodes.values())


def flip_bit(path: Path, offset: int) -> None:
    """Flip the lowest bit of one byte of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def _free_ports(count: int) -> int:
    """Return the first of *count* free ports below those that outgoing connections take."""
    low, high = _PORTS
    for _ in range(1000):
        first = random.randrange(low, high - count)
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise GroupError(f"no {count} free ports in a row between {low} and {high}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
    return True
