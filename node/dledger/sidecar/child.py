"""The process that does the work of the sidecar; its `parent` starts it again when it ends.

It serves on the parent's sockets, with or without a disk: while there is none to write to, calls
pass all the same, and it looks for the disk again every few seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import logging
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import uvloop
from prometheus_client import CollectorRegistry, start_http_server

from dledger.common.memory import collect_seldom, give_back_now_and_then, keep_blocks
from dledger.common.turns import take_short_turns
from dledger.door.server import DoorServer
from dledger.door.tls import TlsCertificate
from dledger.errors import DledgerError, InvalidArgument, StorageError
from dledger.files.files import RealFiles
from dledger.server.client_certificate import self_signed
from dledger.server.config import ConfigError, resolve
from dledger.sidecar.options import add_run_arguments, split_address, upstream_of
from dledger.sidecar.passing import Passing
from dledger.sidecar.reach import Reach
from dledger.sidecar.replay import Replay, is_disk_failure
from dledger.sidecar.route_cache import RouteCache
from dledger.sidecar.routes import Here, named_topics
from dledger.sidecar.sends import Sends
from dledger.sidecar.upstream import Clients, Tls, Upstream
from dledger.sidecar.upstream_tls import upstream_tls
from dledger.spool.counters import Counts, SpoolCollector, SpoolCounters, counters_of
from dledger.spool.opening import limits_of, open_spool
from dledger.spool.requeue import take_up
from dledger.spool.spool import Spool
from dledger.spool.worker import Worker

logger = logging.getLogger(__name__)

EXIT_USAGE: Final = 2
_EXIT_DISK: Final = 3
_PR_SET_PDEATHSIG: Final = 1
_LOOK_S: Final = 5.0
"""Between looks for a disk that failed, and for clients that have gone."""
_ASKED_S: Final = 1.0
"""Between looks for rejected messages that somebody wants sent again."""
_GRACE_S: Final = 3.0
_RESOLVE_WAIT_S: Final = 60.0
_ANY: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - not to be told to clients


def main(argv: Sequence[str] | None = None) -> int:
    """Run the child; return its exit code."""
    parser = argparse.ArgumentParser(prog="dledger.sidecar", description="Started by its parent.")
    parser.add_argument("--sockets", required=True, help="file descriptors of the ports")
    add_run_arguments(parser)
    args = parser.parse_args(argv)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if not sys.stdin.readline():  # this one was a spare, and its parent has ended
        return 0
    logging.basicConfig(
        level=args.log_level,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s spool %(name)s: %(message)s",
    )
    keep_blocks()
    take_short_turns()
    sockets = [socket.socket(fileno=int(number)) for number in args.sockets.split(",")]
    try:
        return uvloop.run(_run(args, sockets))
    except InvalidArgument as error:
        print(f"dledger spool run: {error}", file=sys.stderr)
        return EXIT_USAGE


async def _run(args: argparse.Namespace, sockets: Sequence[socket.socket]) -> int:
    sidecar = Sidecar(
        upstream=upstream_of(args),
        directory=Path(args.dir),
        topics=args.topic,
        max_bytes=args.max_bytes,
        tls=upstream_tls(args),
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, sidecar.end, 0)
    certificates: list[TlsCertificate | None] = [None]
    if args.listen_tls:
        certificates.append(_certificate(args))
    await sidecar.start(sockets, certificates, await _address_of(args.advertise or ""))
    if args.metrics:
        registry = CollectorRegistry()
        registry.register(SpoolCollector({Path(args.dir).name: sidecar.counters}))
        host, port = split_address(args.metrics)
        try:
            start_http_server(port, host, registry)
        except OSError as error:
            raise InvalidArgument(f"cannot serve metrics at {args.metrics}: {error}") from error
    collect_seldom()
    give_back_now_and_then()
    code = await sidecar.ended
    await sidecar.stop()
    return code


async def _address_of(host: str) -> str:
    """Return the address of what clients are told to dial: a name in a route is none to SDKs."""
    if not host:
        return ""
    try:
        return await asyncio.to_thread(resolve, host, wait_s=_RESOLVE_WAIT_S)
    except ConfigError as error:
        raise InvalidArgument(f"--advertise: {error}") from error


def _certificate(args: argparse.Namespace) -> TlsCertificate:
    if args.tls_cert_file or args.tls_key_file:
        if not (args.tls_cert_file and args.tls_key_file):
            raise InvalidArgument("--tls-cert-file and --tls-key-file go together")
        try:
            return TlsCertificate.of_files(Path(args.tls_cert_file), Path(args.tls_key_file))
        except OSError as error:
            raise InvalidArgument(f"the certificate cannot be used: {error}") from error
    pair = self_signed("dledger-spool", "127.0.0.1")
    return TlsCertificate(pair.chain, pair.key)


class Sidecar:
    """All of the sidecar in one process. Built on the running event loop.

    Args:
        upstream: ``HOST:PORT`` of nodes or of a Service.
        directory: The spool's.
        topics: ``NAME:TYPE`` of topics that a route may be made up for.
        max_bytes: The limit of the directory.
        tls: What connections to the group believe and show.

    Attributes:
        ended: The exit code, once there is one.
        counts: What is counted.

    Raises:
        InvalidArgument: A topic or the limit is not valid.
    """

    def __init__(
        self,
        *,
        upstream: Sequence[str],
        directory: Path,
        topics: Sequence[str],
        max_bytes: int,
        tls: Tls = lambda: None,
    ) -> None:
        self._directory, self._limits = directory, limits_of(max_bytes)
        self._named = named_topics(topics)
        self._files = RealFiles()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="dledger-spool")
        self._clients = Clients(upstream, tls)
        self._to_replay = Upstream(upstream, tls)
        self._reach, self.counts = Reach(), Counts()
        self._routes = RouteCache(self._files, directory, self._on_disk)
        self._sends = Sends(
            self._clients,
            self._reach,
            self.counts,
            on_spooled=self._wake,
            on_broken=self._on_broken,
        )
        self._spool: Spool | None = None
        self._replay: Replay | None = None
        self._servers: list[DoorServer] = []
        self._tasks = set[asyncio.Task[None]]()
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def start(
        self,
        sockets: Sequence[socket.socket],
        certificates: Sequence[TlsCertificate | None],
        advertise: str = "",
    ) -> None:
        """Serve on these sockets, each with its certificate if it is a TLS port.

        What a former life left on the disk is known before anybody is served: its lanes' sends go
        behind it.
        """
        await self._open()
        for bound, certificate in zip(sockets, certificates, strict=True):
            host, port = bound.getsockname()[:2]
            told = advertise or ("127.0.0.1" if host in _ANY else host)
            passing = Passing(
                self._clients,
                self._sends,
                self._routes,
                named=self._named,
                reach=self._reach,
                here=Here(told, port),
            )
            server = DoorServer(bound, passing.handlers(), tls=certificate)
            self._servers.append(server)
            await server.start()
        self._run(self._look())

    async def _open(self) -> None:
        """Open the spool, unless its disk does not let us."""
        try:
            spool = await self._on_disk(self._open_spool)
        except DledgerError as error:
            self._sends.why = str(error)
            logger.critical("there is no spool, calls pass without one: %s", error)
            return
        self._spool = spool
        worker = Worker(self._executor, spool)
        self._replay = Replay(
            worker,
            self._to_replay,
            self._reach,
            self.counts,
            on_stored=self._sends.note_stored,
            on_drained=self._sends.note_drained,
        )
        self._replay.report_damage()
        self._sends.attach(worker)
        self._run(self._replaying(self._replay))
        self._run(self._taking_up(worker))

    def _open_spool(self) -> Spool:
        spool = open_spool(self._files, self._directory, limits=self._limits)
        own = spool.waiting - spool.of_lanes
        if own:
            spool.close()
            raise InvalidArgument(
                f"{own} messages of a SpoolingProducer wait in {self._directory}: let it send them"
            )
        take_up(spool, of_lanes=True)
        self._routes.load()
        return spool

    async def _replaying(self, replay: Replay) -> None:
        try:
            await replay.run()
        except* StorageError as failed:
            for error in failed.exceptions:
                if is_disk_failure(error):
                    self._on_broken(error)

    async def _taking_up(self, worker: Worker) -> None:
        """Do what `dledger spool requeue` asks for, now and then."""
        while True:
            await asyncio.sleep(_ASKED_S)
            if await worker.run(lambda: worker.spool.is_asked):
                try:
                    await self._sends.put_back(worker)
                except StorageError as error:
                    self._on_broken(error)
                    return

    async def _look(self) -> None:
        """Look now and then for the disk, and for clients that have gone."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await self._clients.close_idle()
            if self._spool is None:
                await self._open()

    def _wake(self) -> None:
        if self._replay is not None:
            self._replay.wake()

    def _on_broken(self, error: BaseException) -> None:
        """End, so that the next child opens the spool anew: it alone knows what the disk has."""
        logger.critical("the disk failed: %s", error)
        self.end(_EXIT_DISK)

    def end(self, code: int) -> None:
        """Have the process end with that code."""
        if not self.ended.done():
            self.ended.set_result(code)

    async def _on_disk(self, call: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    def _run(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.critical("the sidecar fails", exc_info=error)
            self.end(1)

    async def stop(self) -> None:
        """Finish what is under way, and close the spool; what is in it stays for the next start."""
        await asyncio.gather(*(server.stop(_GRACE_S) for server in self._servers))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_S):
                await self._sends.finish()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._spool is not None:
            try:
                await self._on_disk(self._spool.close)
            except DledgerError as error:
                logger.error("%s", error)
        self._executor.shutdown(wait=False)
        await self._clients.close()
        await self._to_replay.close()

    def counters(self) -> SpoolCounters:
        """Return what is exported. Any thread may call this."""
        away = self._reach.away or self._spool is None
        if self._spool is None:
            zeros = dict.fromkeys(SpoolCounters.__dataclass_fields__, 0)
            return SpoolCounters(**zeros | {"limit_bytes": self._limits.max_bytes, "degraded": 1})
        return counters_of(
            self.counts, self._spool, limit_bytes=self._limits.max_bytes, degraded=away
        )
