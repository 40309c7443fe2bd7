"""A node's Admin service over a log that the shipped store wrote, without the rest of a node."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc.aio

from dledger.broker.state import BrokerState
from dledger.common.status import NodeStatus
from dledger.errors import NotJoined, Refused
from dledger.files.files import RealFiles
from dledger.services.admin import AdminServicer
from dledger.services.export import CommittedLog
from dledger.store.commit_log import CommitLog
from dledger.store.identity import LOG_DIRECTORY, load_identity
from tests.services.part_of_admin_backend import PartOfAdminBackend


class LogBackend(PartOfAdminBackend):
    """Exports one log; the other calls of the service are not for it."""

    def __init__(
        self,
        log: CommitLog | None,
        group_id: str,
        *,
        committed: int,
        role: str,
        state: BrokerState | None = None,
        behind: int = 0,
    ) -> None:
        self.log = log
        self.group_id = group_id
        self.committed = committed
        self.role = role
        self.state = state or BrokerState()
        self.behind = behind

    def committed_log(self) -> CommittedLog:
        """Return the log, as the node does."""
        if self.log is None:
            raise NotJoined
        self.behind = max(self.behind - 1, 0)
        return CommittedLog(
            group="orders",
            group_id=self.group_id,
            log=self.log,
            last_index=self.committed - self.behind,
            kept_from=max(self.log.first_index, self.state.first_index),
            applied_index=self.state.applied_index or self.committed,
            topics=self.state.topics,
            snapshot=_no_snapshot,
        )

    def status(self) -> NodeStatus:
        """Return a status that says no more than the log does."""
        return NodeStatus(
            node_id="",
            name="",
            group="orders",
            group_id=self.group_id,
            role=self.role,
            term=1,
            leader_id="",
            commit_index=self.committed - self.behind,
            applied_index=self.committed,
            last_index=self.committed,
            synced_index=self.committed,
            ready=True,
            not_ready_reason="",
            members=(),
            last_failover=None,
            version="",
            storage_used_bytes=0,
            storage_capacity_bytes=0,
            writes_refused_reason="",
            recovered_to=0,
            now_ms=int(self.role == "leader"),
        )


async def _no_snapshot() -> AsyncGenerator[bytes, None]:
    """Refuse, as a node without a snapshot does."""
    for none in list[bytes]():
        yield none
    raise Refused("this node has taken no snapshot yet")


@contextmanager
def export_server(
    directory: Path | None,
    *,
    committed: int | None = None,
    role: str = "follower",
    state: BrokerState | None = None,
    without: str = "",
    behind: int = 0,
) -> Iterator[str]:
    """Serve the log of a data directory (None: of an Unjoined node); give the address.

    *state* is the broker's, of some entry; *without* a method that an older node does not have.
    The node learns of its last *behind* committed entries one by one, each time it is asked.
    """
    log, group_id = None, ""
    if directory is not None:
        identity = load_identity(RealFiles(), directory)
        assert identity is not None
        log = CommitLog.open(
            RealFiles(), directory / LOG_DIRECTORY, identity=identity, reserve_bytes=0
        )
        group_id = identity.group_id
    last = log.last_index if log and committed is None else committed or 0
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        backend = LogBackend(log, group_id, committed=last, role=role, state=state, behind=behind)
        serving = _serve(backend, without)
        server, port = asyncio.run_coroutine_threadsafe(serving, loop).result(10)
        try:
            yield f"127.0.0.1:{port}"
        finally:
            asyncio.run_coroutine_threadsafe(server.stop(0.1), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
        if log is not None:
            log.close()


class _Older(grpc.GenericRpcHandler):  # type: ignore[misc]  # gRPC has no types
    """A service without one of its methods."""

    def __init__(self, handler: grpc.GenericRpcHandler, without: str) -> None:
        self._handler, self._without = handler, without

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Return the handler of a method that is there."""
        is_there = not self._without or not details.method.endswith(f"/{self._without}")
        return self._handler.service(details) if is_there else None


async def _serve(backend: LogBackend, without: str) -> tuple[grpc.aio.Server, int]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Older(AdminServicer(backend).handler(), without),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port
