"""``dledger dev``: a whole broker group on this machine, without Kubernetes.

Starts one ``dledger node`` process for each replica, bootstraps the group on first use, restarts a
node that dies, and keeps the pids and the leader in ``DIR/dev.json`` current. A node that refuses
to start stays down, and is told; a majority goes on without it. Ctrl-C stops the whole group; its
data stays.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dledger.cli.dev_members import DevMembers
from dledger.client import AdminClient
from dledger.common.status import NodeStatus
from dledger.errors import AlreadyBootstrapped, DledgerError, Unavailable
from dledger.files.atomic import replace_file
from dledger.files.files import RealFiles
from dledger.server import config
from dledger.store.identity import load_identity
from dledger.store.tombstone import NAME as TOMBSTONE_NAME
from dledger.types import Member, NodeId

_HOST: Final = "127.0.0.1"
_POLL_S: Final = 0.2
_RESTART_S: Final = 0.1
_WRITABLE_DEADLINE_S: Final = 60.0
_STOP_DEADLINE_S: Final = 15.0
_HOPELESS_EXITS: Final = frozenset({2, 3, 5})


class DevError(Exception):
    """The group cannot be started with these options; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of one node; a group uses four ranges above the client port."""

    client: int
    tls: int
    peer: int
    http: int

    @classmethod
    def of(cls, client_port: int, index: int) -> Ports:
        """Return node *index*'s ports."""
        first = client_port + index
        return cls(first, first + 100, first + 200, first + 300)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger dev``."""
    parser.add_argument("--nodes", type=int, default=3, help="replicas, odd, 1 to 9 (default 3)")
    parser.add_argument("--data", type=Path, required=True, help="directory for logs and state")
    parser.add_argument(
        "--client-port", type=int, default=18081, help="node i listens on this + i (default 18081)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON line when writable")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a node setting for every node, such as auto_create_topics=false; repeatable",
    )


def run(args: argparse.Namespace) -> int:
    """Run a group until Ctrl-C; return the exit code."""
    try:
        return asyncio.run(_Group(args).run())
    except (DevError, DledgerError) as error:
        print(f"dledger dev: {error}", file=sys.stderr)
        return 2


async def found(
    admin: AdminClient, group_id: str, members: Sequence[Member], *, no_answer: Callable[[], None]
) -> None:
    """Bootstrap a group of *members*; retry while no answer comes, as on a slow machine.

    *no_answer* is called before each retry; it raises to give up.
    """
    while True:
        try:
            return await admin.bootstrap(group_id, members)
        except AlreadyBootstrapped as error:
            if error.group_id != group_id:
                raise
            return None  # by this command: an earlier answer was lost
        except Unavailable:
            no_answer()
        await asyncio.sleep(_POLL_S)


class _Group:
    def __init__(self, args: argparse.Namespace) -> None:
        if args.nodes not in range(1, 10, 2):
            raise DevError(f"--nodes must be odd and 1 to 9, not {args.nodes}")
        if not 1 <= args.client_port <= 65535 - 310:
            raise DevError(f"--client-port must be 1 to 65225, not {args.client_port}")
        self._data: Path = args.data.absolute()
        self._json: bool = args.json
        self._client_port: int = args.client_port
        self._ports = [Ports.of(args.client_port, index) for index in range(args.nodes)]
        self._overrides = _overrides(args.set)
        self._group_id = ""
        self._processes: list[asyncio.subprocess.Process | None] = [None] * args.nodes
        self._admins: list[AdminClient] = []
        self._stopping = asyncio.Event()
        self._members = DevMembers(args.nodes)

    async def run(self) -> int:
        self._check_settings()
        self._check_data()
        self._check_ports()
        self._group_id = group_id_in(self._data)
        self._admins = [AdminClient(f"{_HOST}:{p.peer}", timeout_s=1.0) for p in self._ports]
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stopping.set)
        keepers = [asyncio.create_task(self._keep(index)) for index in range(len(self._ports))]
        try:
            await self._until_stopped(self._serve())
        finally:
            self._stopping.set()
            await asyncio.gather(*keepers)
            await asyncio.gather(*(admin.close() for admin in self._admins))
        self._check_majority()
        return 0

    def _check_majority(self) -> None:
        if not self._members.have_majority:
            raise DevError(self._members.refusals())

    async def _until_stopped(self, work: Any) -> None:
        tasks = {asyncio.create_task(work), asyncio.create_task(self._stopping.wait())}
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        for task in done:
            task.result()

    async def _serve(self) -> None:
        await self._found()
        self._announce(await self._wait_writable())
        while True:
            self._write_state(self._state(await self._statuses()))
            await asyncio.sleep(_POLL_S)

    # -- bootstrap ------------------------------------------------------------------------------

    def _check_settings(self) -> None:
        """Refuse settings that every node would refuse, before shape.json is written."""
        try:
            config.load(None, self._environment(0))
        except config.ConfigError as error:
            raise DevError(f"--set: {error}") from error

    def _check_data(self) -> None:
        """Refuse a directory that belongs to a group of another size or port."""
        shape = {"nodes": len(self._ports), "clientPort": self._client_port}
        path = self._data / "shape.json"
        try:
            self._data.mkdir(parents=True, exist_ok=True)
            if path.exists():
                found = json.loads(path.read_text("utf-8"))
                if found != shape:
                    raise DevError(
                        f"{self._data} holds a group of {found.get('nodes')} nodes at "
                        f"--client-port {found.get('clientPort')}; use these, or another --data"
                    )
            path.write_text(json.dumps(shape), "utf-8")
        except OSError as error:
            raise DevError(
                f"--data {self._data} cannot be used ({error.strerror}); name another directory"
            ) from error

    def _check_ports(self) -> None:
        for ports in self._ports:
            for port in (ports.client, ports.tls, ports.peer, ports.http):
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    try:
                        probe.bind((_HOST, port))
                    except OSError as error:
                        raise DevError(
                            f"port {port} is taken ({error.strerror}); choose another --client-port"
                        ) from error

    async def _found(self) -> None:
        statuses = await self._answers()
        if any(status.group_id for status in statuses):
            return
        if len(statuses) < len(self._ports):
            raise DevError(f"a new group needs all its nodes: {self._members.refusals()}")
        members = [
            Member(id=NodeId(s.node_id), name=s.name, address=f"{_HOST}:{ports.peer}")
            for s, ports in zip(statuses, self._ports, strict=True)
        ]
        give_up = self._give_up("the group was not bootstrapped")
        await found(self._admins[0], self._group_id, members, no_answer=give_up)

    async def _answers(self) -> list[NodeStatus]:
        """Wait until every node has answered that does not stay down."""
        give_up = self._give_up("not all nodes answered")
        while True:
            answered = [status for status in await self._statuses() if status is not None]
            if self._members.all_answered(len(answered)) and answered:
                return answered
            give_up()
            await asyncio.sleep(_POLL_S)

    async def _wait_writable(self) -> dict[str, Any]:
        give_up = self._give_up("no leader was elected")
        while (state := self._state(await self._statuses()))["leader"] is None:
            give_up()
            await asyncio.sleep(_POLL_S)
        return state

    def _give_up(self, what: str) -> Callable[[], None]:
        """Return a function that raises DevError once the deadline from now has passed."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _WRITABLE_DEADLINE_S

        def check() -> None:
            self._check_majority()
            if loop.time() > deadline_s:
                within = f"within {_WRITABLE_DEADLINE_S:.0f} s"
                raise DevError(f"{what} {within}; see the logs in {self._data}")

        return check

    async def _statuses(self) -> list[NodeStatus | None]:
        asked = (
            own_status(admin, self._data / f"node-{index}")
            for index, admin in enumerate(self._admins)
        )
        return await asyncio.gather(*asked)

    # -- output ---------------------------------------------------------------------------------

    def _state(self, statuses: Sequence[NodeStatus | None]) -> dict[str, Any]:
        ready = [bool(status and status.ready) for status in statuses]
        leaders = [
            (status.term, index)
            for index, status in enumerate(statuses)
            if status is not None and status.role == "leader" and status.ready
        ]
        return {
            "endpoints": [f"{_HOST}:{ports.client}" for ports in self._ports],
            "tlsEndpoints": [f"{_HOST}:{ports.tls}" for ports in self._ports],
            "adminEndpoints": [f"{_HOST}:{ports.peer}" for ports in self._ports],
            "pids": [process.pid if process else None for process in self._processes],
            "leader": max(leaders)[1] if leaders else None,
            "ready": ready,
        }

    def _announce(self, state: dict[str, Any]) -> None:
        self._write_state(state)
        if self._json:
            print(json.dumps(state), flush=True)
            return
        print(f"group of {len(self._ports)} is writable; leader is node {state['leader']}")
        for index, (endpoint, pid) in enumerate(
            zip(state["endpoints"], state["pids"], strict=True)
        ):
            print(f"  node {index}: {endpoint}  TLS {state['tlsEndpoints'][index]}  pid {pid}")
        print(f"logs and state in {self._data}; Ctrl-C stops the group", flush=True)

    def _write_state(self, state: dict[str, Any]) -> None:
        path = self._data / "dev.json"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(state), "utf-8")
        temporary.replace(path)

    # -- processes ------------------------------------------------------------------------------

    async def _keep(self, index: int) -> None:
        """Run node *index* until the group stops; restart it when it dies."""
        while not self._stopping.is_set():
            process = await self._spawn(index)
            self._processes[index] = process
            await self._watch(process)
            self._processes[index] = None
            code = process.returncode
            if self._stopping.is_set():
                return
            if (self._data / f"node-{index}" / TOMBSTONE_NAME).exists():
                self._members.removed.add(index)
                self._tell(f"node {index} was removed from the group")
                return
            if code in _HOPELESS_EXITS:
                self._members.down[index] = f"refuses to start (exit {code}): {self._tail(index)}"
                if not self._members.have_majority:
                    self._stopping.set()
                    return
                why = self._members.down[index]
                self._tell(f"node {index} stays down, and the others go on without it: it {why}")
                return
            self._tell(f"node {index} died (exit {code}); restarting")
            await asyncio.sleep(_RESTART_S)

    @staticmethod
    def _tell(what: str) -> None:
        print(what, file=sys.stderr, flush=True)

    async def _spawn(self, index: int) -> asyncio.subprocess.Process:
        with self._log_path(index).open("ab") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-m", "dledger", "node", "--exit-with-parent", str(os.getpid()),
                env=self._environment(index),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )  # fmt: skip

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        ended = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not ended.done():
            process.terminate()
            try:
                async with asyncio.timeout(_STOP_DEADLINE_S):
                    await asyncio.shield(ended)
            except TimeoutError:
                process.kill()
        await ended

    def _environment(self, index: int) -> dict[str, str]:
        ports = self._ports[index]
        settings = {
            "name": f"node-{index}",
            "group": "dev",
            "group_id": self._group_id,
            "data_dir": str(self._data / f"node-{index}"),
            "advertise_host": _HOST,
            "listen_host": _HOST,
            "client_port": str(ports.client),
            "client_tls_port": str(ports.tls),
            "peer_port": str(ports.peer),
            "replication_port": "0",
            "http_port": str(ports.http),
            "storage_bytes": str(self._share_bytes()),
            **self._overrides,
        }
        own = {key: value for key, value in os.environ.items() if not key.startswith("DLEDGER_")}
        return own | {f"DLEDGER_{key.upper()}": value for key, value in settings.items()}

    def _share_bytes(self) -> int:
        """Return each node's part of the disk; else all would be full by what the others have."""
        there = next(each for each in (self._data, *self._data.parents) if each.exists())
        return shutil.disk_usage(there).total // len(self._ports)

    def _log_path(self, index: int) -> Path:
        return self._data / f"node-{index}.log"

    def _tail(self, index: int) -> str:
        lines = self._log_path(index).read_text("utf-8", "replace").splitlines()
        return lines[-1] if lines else "no output"


def group_id_in(directory: Path) -> str:
    """Return the id of the group in *directory*; created once, before the bootstrap."""
    path = directory / "group-id"
    try:
        if not path.exists():
            replace_file(RealFiles(), path, str(uuid.uuid4()).encode())
        return path.read_text("utf-8")
    except (OSError, DledgerError) as error:
        raise DevError(f"--data {directory}: {error}") from error


async def own_status(admin: AdminClient, directory: Path) -> NodeStatus | None:
    """Return the status of the node that uses *directory*; None if it does not answer.

    Two groups that start at the same time may both find the ports free. Then another group's node
    may answer, which must not be bootstrapped or reported as ours; its node id shows that.
    """
    with contextlib.suppress(DledgerError):
        status = await admin.status()
        identity = load_identity(RealFiles(), directory)
        if identity is not None and identity.node_id == status.node_id:
            return status
    return None


def _overrides(pairs: Sequence[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise DevError(f"--set {pair}: must be KEY=VALUE")
    return dict(pair.split("=", 1) for pair in pairs)
