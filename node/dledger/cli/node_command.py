"""``dledger node``: runs one node until SIGTERM, as in the container."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import dataclasses
import logging
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import uvloop

from dledger.common.memory import collect_seldom, give_back_now_and_then, keep_blocks
from dledger.common.turns import take_short_turns
from dledger.common.watchdog import Watchdog
from dledger.errors import NewerCommand, NewerFormat, NodeRemoved, StorageError
from dledger.rpc.peer_tls import PeerTls
from dledger.server import config
from dledger.server.config import ConfigError, Settings
from dledger.server.live_settings import SettingsFollower
from dledger.server.node import Node

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG: Final = 1
_RESOLVE_WAIT_S: Final = 60.0
_CERTIFICATE_WAIT_S: Final = 240.0
"""Below the five minutes of the startup probe. The operator needs four if an authority is lost."""
_CERTIFICATE_LOOK_S: Final = 1.0
EXIT_FATAL: Final = 1
_EXIT_CONFIG: Final = 2
_EXIT_DATA: Final = 3
EXIT_TOO_OLD: Final = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger node``."""
    parser.add_argument(
        "--config",
        type=Path,
        default=os.environ.get("DLEDGER_CONFIG"),
        help="TOML file of settings; DLEDGER_<KEY> in the environment overrides it",
    )
    parser.add_argument(
        "--group-id",
        metavar="ID",
        help="the group to join with an empty disk; overrides DLEDGER_GROUP_ID and the file",
    )
    parser.add_argument(
        "--client-server",
        choices=(config.GRPC, config.NATIVE),
        help="what serves the client ports; overrides DLEDGER_CLIENT_SERVER and the file",
    )
    parser.add_argument(
        "--door-processes",
        metavar="N",
        help="how many processes serve the client ports for the node; 0: none; overrides "
        "DLEDGER_DOOR_PROCESSES and the file",
    )
    parser.add_argument(
        "--exit-with-parent",
        type=int,
        metavar="PID",
        help="stop when the parent process, which has this pid, ends",
    )


def run(args: argparse.Namespace) -> int:
    """Run one node; return the exit code."""
    keep_blocks()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if args.exit_with_parent and not _ends_with(args.exit_with_parent):
        return 0
    try:
        told = {
            "DLEDGER_GROUP_ID": args.group_id,
            "DLEDGER_CLIENT_SERVER": args.client_server,
            "DLEDGER_DOOR_PROCESSES": args.door_processes,
        }
        told = {name: value for name, value in told.items() if value}
        path = Path(args.config) if args.config else None
        read = partial(config.load, path, os.environ | told)
        settings = read()
        host = config.resolve(settings.advertise_host, wait_s=_RESOLVE_WAIT_S)
        settings = dataclasses.replace(settings, advertise_host=host)
    except ConfigError as error:
        print(f"dledger node: configuration: {error}", file=sys.stderr)
        return _EXIT_CONFIG
    logging.basicConfig(
        level=settings.log_level,
        stream=sys.stderr,
        format=f"%(asctime)s %(levelname)s {settings.group} %(name)s: %(message)s",
    )
    try:
        ended_by = uvloop.run(_serve(settings, read if path else None))
    except StorageError as refused:
        logger.critical("refusing to start: %s", refused)
        return _last_word(refused, _EXIT_DATA)
    except OSError as failed:
        logger.critical("cannot start: %s", failed)
        return _EXIT_CONFIG
    return _last_word(ended_by, EXIT_FATAL) if ended_by is not None else 0


def _ends_with(parent: int) -> bool:
    """Have this process end when its parent does; False if that has ended already.

    Only what ends after the request is told, and it takes a second to come so far.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    return os.getppid() == parent


def _last_word(error: BaseException, otherwise: int) -> int:
    """Print the reason for the exit, if someone has to act on it; return the exit code.

    Kubernetes keeps the last line as the container's termination message. A restart does not help
    a node whose version is too old or whose data directory cannot be used.
    """
    if isinstance(error, NewerCommand | NewerFormat):
        print(f"dledger node: {error}", file=sys.stderr)
        return EXIT_TOO_OLD
    return _EXIT_DATA if isinstance(error, NodeRemoved) else otherwise


async def _serve(settings: Settings, read: Callable[[], Settings] | None) -> BaseException | None:
    """Run until a signal, or until the node fails; return the error in that case.

    *read* reads the settings again, from a file that may change.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[BaseException | None] = loop.create_future()

    def end(error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result(error)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, None)
    take_short_turns()
    watchdog = Watchdog()
    if not await _waits_for_certificate(settings, ended):
        return None
    node = Node(settings, on_fatal=end, watchdog=watchdog)
    await node.start()
    collect_seldom()
    watchdog.start()
    give_back_now_and_then()
    following = (
        loop.create_task(SettingsFollower(settings, read).run(node.take_over)) if read else None
    )
    error = await ended
    if following is not None:
        following.cancel()
    stop = partial(node.stop, drain=error is None)
    await stop_within(settings.shutdown_grace_s, stop)
    watchdog.stop()
    return error


async def _waits_for_certificate(settings: Settings, ended: asyncio.Future[Any]) -> bool:
    """Wait a while for a certificate that is not in its directory yet; False if told to end.

    After that the node does not start, and says why.
    """
    told = ""
    for _ in range(int(_CERTIFICATE_WAIT_S / _CERTIFICATE_LOOK_S)):
        fault = _certificate_fault(settings)
        if not fault:
            return True
        if fault != told:
            told = fault
            logger.error("waits for up to %g s: %s", _CERTIFICATE_WAIT_S, told)
        await asyncio.wait((ended,), timeout=_CERTIFICATE_LOOK_S)
        if ended.done():
            return False
    return True


def _certificate_fault(settings: Settings) -> str:
    """Return what is wrong in the directory of the certificate; empty if nothing, or without it."""
    directory = Path(settings.peer_tls_dir)
    if settings.peer_tls_dir and directory.is_dir():
        try:
            PeerTls(directory, settings.name)
        except OSError as error:
            return str(error)
    return ""


async def stop_within(grace_s: float, stop: Callable[[], Awaitable[None]]) -> None:
    """Stop gracefully; exit the process if that hangs on a disk.

    A thread that waits for a disk can be neither cancelled nor abandoned.
    """
    try:
        async with asyncio.timeout(grace_s):
            await stop()
    except TimeoutError:
        logger.critical(
            "not stopped after %g s, perhaps because the disk hangs: exiting now", grace_s
        )
        logging.shutdown()
        os._exit(EXIT_FATAL)
