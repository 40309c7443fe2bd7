"""`dledger-operator`: takes the Lease, runs kopf, stops in order. Builds everything else."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, Final

import kopf

from dledger.common.http import HealthServer
from dledger.common.memory import keep_blocks
from dledger_operator.api import names
from dledger_operator.cluster.api import ApiConnection, ApiError
from dledger_operator.cluster.lease import Elector, LeaseName
from dledger_operator.controllers.handlers import Manager, registry, settings
from dledger_operator.garbage import Freezing
from dledger_operator.metrics.metrics import Metrics
from dledger_operator.options import Options, parse

log: Final = logging.getLogger(__name__)

SETTLED_S: Final = 60.0
"""After it took the Lease for so long, a process has long seen all groups that there are."""
STALLED_S: Final = 30.0
"""If the event loop or the API server has not responded for this long, a probe fails: twice the
duration of the Lease, in which another operator has taken over."""


class Operator:
    """One operator process."""

    def __init__(self, options: Options, api: ApiConnection) -> None:
        self._options = options
        self._api = api
        self._metrics = Metrics()
        self._stop = asyncio.Event()
        self._turned_s = time.monotonic()
        self._elector = Elector(
            api,
            LeaseName(
                namespace=options.namespace,
                name=options.lease_name,
                identity=options.identity,
            ),
            on_other=partial(self._metrics.keep, ()),
        )

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT; while not leading, wait for the Lease."""
        health = HealthServer(
            self._options.listen,
            live=self._live,
            ready=self._ready,
            registry=self._metrics.registry,
        )
        health.start()
        heartbeat = asyncio.create_task(self._beat())
        self._catch_signals()
        try:
            while not self._stop.is_set():
                await self._take_turns()
        finally:
            heartbeat.cancel()
            await self._elector.release()
            await self._api.close()
            health.close()

    async def _take_turns(self) -> None:
        """Wait for the Lease, then act until it is lost or the process is to stop."""
        if not await self._unless_stopped(self._prepare()):
            return
        keeping = asyncio.create_task(self._elector.keep())
        self._metrics.leading.set(1)
        try:
            await self._lead(keeping)
        finally:
            self._metrics.leading.set(0)
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _prepare(self) -> None:
        logged = ""
        while missing := await self._missing_crds():
            if missing != logged:
                log.warning("the API server does not serve %s yet", missing)
            logged = missing
            await asyncio.sleep(1)
        await self._elector.acquire()

    async def _missing_crds(self) -> str:
        """Return the kinds that are not served yet, or why that is not known; empty if all are."""
        try:
            missing = await self._api.missing_kinds(next(iter(self._options.namespaces), ""))
        except ApiError as error:
            return f"our kinds ({error})"
        return ", ".join(f"{kind}.{names.API_VERSION}" for kind in missing)

    async def _lead(self, keeping: asyncio.Task[None]) -> None:
        """Run kopf until *keeping* ends or the process is to stop."""
        manager = Manager(self._api, self._options.platform, self._metrics, self._elector.age_s)
        stop_kopf = asyncio.Event()
        keeping.add_done_callback(lambda _: stop_kopf.set())
        stopping = asyncio.create_task(self._pass_on(stop_kopf))
        forgetting = asyncio.create_task(self._forget_missed(manager))
        ours = asyncio.all_tasks()
        options = self._options
        tasks = await kopf.spawn_tasks(
            registry=registry(manager, self._api),
            settings=settings(),
            namespaces=options.namespaces,
            clusterwide=not options.namespaces,
            stop_flag=stop_kopf,
        )
        self._catch_signals()  # kopf has just taken them
        try:
            await kopf.run_tasks(tasks, ignored=ours)
        finally:
            stopping.cancel()
            forgetting.cancel()

    async def _forget_missed(self, manager: Manager) -> None:
        await asyncio.sleep(SETTLED_S)
        manager.forget_missed()

    async def _pass_on(self, stop_kopf: asyncio.Event) -> None:
        await self._stop.wait()
        stop_kopf.set()

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Await *work*; False when the process was to stop before it ended."""
        doing = asyncio.create_task(work)
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait((doing, stopping), return_when=asyncio.FIRST_COMPLETED)
        for task in (doing, stopping):
            task.cancel()
        await asyncio.gather(doing, stopping, return_exceptions=True)
        return not self._stop.is_set()

    def _catch_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)

    async def _beat(self) -> None:
        while True:
            self._turned_s = time.monotonic()
            await asyncio.sleep(1)

    def _live(self) -> str:
        still_s = time.monotonic() - self._turned_s
        return f"the event loop has not run for {still_s:.0f} s" if still_s > STALLED_S else ""

    def _ready(self) -> str:
        silent_s = time.monotonic() - self._elector.answered_s
        if silent_s > STALLED_S:
            return f"the API server has not answered for {silent_s:.0f} s"
        return ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the operator; the exit code is 0 after SIGTERM, 2 for options that cannot be used.

    Among these are options that lead to no cluster.
    """
    options = parse(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(
        level=options.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    logging.getLogger("kopf").setLevel(max(logging.getLogger().level, logging.WARNING))
    # It logs a traceback for each answer that cannot be parsed, which a condition reports already.
    logging.getLogger("grpc._common").setLevel(logging.CRITICAL)
    _allow_many_files()
    keep_blocks()
    gc.callbacks.append(Freezing())
    return asyncio.run(_main(options))


def _allow_many_files() -> None:
    """Allow as many open files as the process may have: each node of each group is a connection."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _main(options: Options) -> int:
    try:
        api = await ApiConnection.connect(options.kubeconfig)
    except ApiError as error:
        print(f"dledger-operator: {error}", file=sys.stderr)
        return 2
    await Operator(options, api).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
