"""One attack on a group of its own: calm, meanwhile, afterwards; everything started is ended."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import grpc

from dledger.broker.message import Columns
from dledger.broker.produce import encode_produce
from e2e.cluster.pki import Authority
from e2e.cluster.shell import run
from e2e.harness.checks import Check
from e2e.harness.dev_group import DevGroup, running
from e2e.harness.tasks import meanwhile
from e2e.harness.waiting import came_true
from e2e.hostile.attacks import ATTACKS
from e2e.hostile.judging import (
    A_TLS_CONNECTION_MIB,
    GROWTH_MIB,
    LEFT_MIB,
    LEFT_S,
    LIMIT_MIB,
    RECOVERY_S,
    Seen,
    lines,
)
from e2e.hostile.scene import Scene, memory_mib
from e2e.hostile.victim import Victim, at_work
from e2e.hostile.ways import WAYS

ROOT: Final = Path(__file__).parents[2]
CALM_S: Final = 4.0
AFTERWARDS_S: Final = 3.0
_CACHED_MIB: Final = 64
"""A little more than `CommitLog` keeps (48 MiB)."""
_LEAST_S: Final = 2.0
"""A shorter attack is watched as long: what it left goes on."""
_LONGEST_S: Final = 300.0
_FILL_S: Final = 60.0
_DRAIN_S: Final = 20.0
_SAMPLE_S: Final = 0.1


@dataclass(slots=True)
class Memory:
    """The resident memory of the nodes: at first, and at its highest since."""

    pids: Sequence[int]
    first: list[float | None]
    highest: list[float]

    @classmethod
    def of(cls, pids: Sequence[int]) -> Memory:
        """Begin with what they have now."""
        found = [memory_mib(pid) for pid in pids]
        return cls(pids, found, [each or 0.0 for each in found])

    def look(self) -> None:
        """Look again; who is gone keeps what was seen."""
        for node, pid in enumerate(self.pids):
            self.highest[node] = max(self.highest[node], memory_mib(pid) or 0.0)

    async def watch(self) -> None:
        """Look again and again. Ends by cancellation."""
        while True:
            self.look()
            await asyncio.sleep(_SAMPLE_S)

    def growth(self) -> list[float | None]:
        """Return by how much each grew."""
        pairs = zip(self.first, self.highest, strict=True)
        return [None if first is None else round(high - first, 1) for first, high in pairs]

    def growth_now(self) -> list[float | None]:
        """Return by how much each is larger now; who was killed by the attack is not."""
        now = [memory_mib(pid) or 0.0 for pid in self.pids]
        pairs = zip(self.first, now, strict=True)
        return [None if first is None else round(one - first, 1) for first, one in pairs]

    def is_back(self) -> bool:
        """Whether all have given back what they may not keep."""
        return all(each is not None and each <= LEFT_MIB for each in self.growth_now())


async def attacked(name: str, way: str, data: Path) -> list[Check]:
    """Make an attack on a new group; return its lines and those of the promise."""
    known, how = ATTACKS[name], WAYS[way]
    trusted, certificate = _certificate(data)
    settings = ["leader_follows_clients=false", *certificate, *how.settings]
    async with running(data, settings, under=_limits(known.files)) as group:
        state = await group.until_whole()
        scene = Scene(
            endpoints=group.tls_endpoints if how.tls else group.endpoints,
            tls_endpoints=group.tls_endpoints,
            admins=group.admins,
            pids=state["pids"],
            leader=int(state["leader"]),
            seconds=known.seconds,
            tls=how.tls,
            trusted=trusted if how.tls else "",
            sources=how.sources,
        )
        async with at_work(scene, group.endpoints) as victim:
            return await _around(name, f"{name}/{way}", scene, victim, group)


def _limits(files: int) -> tuple[str, ...]:
    """Return what runs a group under its limits, by process: private memory, and files."""
    limits = [f"--data={LIMIT_MIB << 20}", *([f"--nofile={files}"] if files else [])]
    return ("prlimit", *limits, "--")


def _certificate(data: Path) -> tuple[str, list[str]]:
    """Return an authority, PEM, and the settings by which all nodes show a certificate of it.

    One that a node makes for itself is another after each start, and some attacks kill a node.
    """
    authority = Authority("hostile")
    pair = authority.issue("node", hosts=("127.0.0.1", "localhost"))
    files = data.with_suffix(".crt"), data.with_suffix(".key")
    for file, text in zip(files, (pair.certificate, pair.key), strict=True):
        file.write_text(text, "utf-8")
    shown = [f"tls_{kind}_file={file}" for kind, file in zip(("cert", "key"), files, strict=True)]
    return authority.pair.certificate, shown


async def _around(
    name: str, case: str, scene: Scene, victim: Victim, group: DevGroup
) -> list[Check]:
    known = ATTACKS[name]
    await asyncio.to_thread(_fill_caches, scene)
    calm_s = time.monotonic() + 1
    await asyncio.sleep(1 + CALM_S)
    memory, died = Memory.of(scene.pids), group.deaths()
    began_s = time.monotonic()
    async with meanwhile(memory.watch()):
        own = await _made(name, scene)
        await asyncio.sleep(max(0.0, began_s + _LEAST_S - time.monotonic()))
        ended_s = time.monotonic()
        await asyncio.sleep(RECOVERY_S)
    after_s = time.monotonic()
    new_client = await _new_client(scene)
    await asyncio.sleep(AFTERWARDS_S)
    await came_true(memory.is_back, ended_s + LEFT_S - time.monotonic())
    left_mib = memory.growth_now()  # what is read below is none of the attack's
    sent = victim.acknowledged()
    await came_true(lambda: sent <= set(victim.received), _DRAIN_S)
    seen = Seen(
        calm_rate=victim.rate(calm_s, began_s),
        attacked_rate=victim.rate(began_s, ended_s),
        calm_deliveries=victim.deliveries(calm_s, began_s),
        attacked_deliveries=victim.deliveries(began_s, ended_s),
        acknowledged=frozenset(sent),
        stored=await victim.stored(),
        received=frozenset(victim.received),
        restarts=group.deaths() - died - known.kills,
        growth_mib=memory.growth(),
        left_mib=left_mib,
        allowed_mib=GROWTH_MIB + (A_TLS_CONNECTION_MIB * known.connections if scene.tls else 0),
        is_crowd=known.is_crowd,
        refusals=victim.refusals(after_s),
        new_client=new_client,
    )
    own = [replace(line, what=f"{case}: {line.what.removeprefix(f'{name}: ')}") for line in own]
    return [*own, *lines(case, seen)]


def _fill_caches(scene: Scene) -> None:
    """Write more than a node keeps of the newest entries, so that this is no growth later."""
    end_s = time.monotonic() + _FILL_S
    with scene.channel(scene.endpoints[scene.leader]) as channel:
        scene.create_topic(channel, "before", 1)
        for number in range(_CACHED_MIB):
            columns = Columns(
                message_ids=[f"{number}"], bodies=[os.urandom(1 << 20)], born_at_ms=[0]
            )
            command = encode_produce(columns, client_id="before", topic="before")
            while not _is_produced(scene, channel, command) and time.monotonic() < end_s:
                time.sleep(_SAMPLE_S)  # on a busy machine there may be no leader for a moment


def _is_produced(scene: Scene, channel: grpc.Channel, command: bytes) -> bool:
    try:
        return bool(scene.produce(channel, command))
    except grpc.RpcError:
        return False


async def _made(name: str, scene: Scene) -> list[Check]:
    """Run the attack in a process of its own, so that it takes no time of the victim's loop."""
    command = (sys.executable, "-m", "e2e.hostile.attacks", name, scene.encode())
    told = await asyncio.to_thread(run, *command, cwd=ROOT, timeout_s=_LONGEST_S)
    return [Check(**row) for row in json.loads(told)]


async def _new_client(scene: Scene) -> str:
    """Return what a client that comes now is told; "" if it is served."""

    def send() -> str:
        with scene.channel(scene.endpoints[scene.leader]) as channel:
            said = scene.send(channel, "victim-later", "a-new-client", b"x")
        return "" if said == "OK" else said

    return await asyncio.to_thread(send)
