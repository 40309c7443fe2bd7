"""``make scale``: what many groups cost one operator, on a real API server with played nodes.

exit codes: 0 all groups came up and every change was acted on; 1 not
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.operator.api_server import ApiServer, running
from tests.operator.live import Operator, chart
from tests.scale import audit
from tests.scale.world import FAILING, NAMESPACE, REFUSAL, World

RESULTS: Final = Path(__file__).parents[2] / "build" / "scale.json"
_LOOK_S: Final = 2.0
"""Each look lists all groups, which the API server has to do beside its work for the operator."""
_QUIET_S: Final = 20.0
_QUIET_DEADLINE_S: Final = 300.0
_ANSWER_S: Final = 20.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_CONTROLLERS: Final = ("--kube-api-qps=400", "--kube-api-burst=800")


def main() -> int:
    """Measure, print a table, and write all figures to build/scale.json."""
    arguments = _arguments()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as directory:
        figures = _measured(arguments, Path(directory))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(figures, indent=1) + "\n")
    for name, value in figures.items():
        print(f"{name:32} {value}")
    whole = figures["ready"] == arguments.groups and not figures["unanswered"]
    return 0 if whole else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make scale", description=__doc__)
    parser.add_argument("--groups", type=int, default=500, help="healthy groups")
    parser.add_argument("--failing", type=int, default=0, help="more, whose rounds all fail")
    parser.add_argument("--idle-s", type=float, default=600, help="how long nothing is changed")
    parser.add_argument("--changes", type=int, default=100, help="of leaders, and of Services")
    parser.add_argument("--ready-s", type=float, default=1800, help="for all groups to come up")
    parser.add_argument("--peer-tls", action="store_true", help="nodes ask for certificates")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def _measured(arguments: argparse.Namespace, directory: Path) -> dict[str, Any]:
    more = {
        "kube-apiserver": audit.arguments(directory),
        "kube-controller-manager": _CONTROLLERS,
    }
    first = [
        *chart(*(("peerTls=true",) if arguments.peer_tls else ())),
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        *(REFUSAL if arguments.failing else ()),
    ]
    with running(directory, first=first, more=more) as server:
        for plural in ("brokergroups", "brokerbackups"):
            server.kubectl("wait", "--for=condition=Established", f"crd/{plural}.dledger.io")
        operator = Operator(server, "scale", "--peer-tls", "on" if arguments.peer_tls else "off")
        try:
            return asyncio.run(_run(arguments, directory, server, operator))
        finally:
            operator.stop()


async def _run(
    arguments: argparse.Namespace, directory: Path, server: ApiServer, operator: Operator
) -> dict[str, Any]:
    world = World(server, directory, peer_tls=arguments.peer_tls)
    kubelet = asyncio.create_task(world.run_pods())
    try:
        figures = {"groups": arguments.groups, "failing": arguments.failing}
        figures |= {"peer_tls": arguments.peer_tls, "seed": arguments.seed}
        figures |= await _come_up(arguments, world, kubelet)
        figures |= await _settle(operator, directory)
        figures |= await _idle(arguments.idle_s, operator, directory)
        chosen = random.Random(arguments.seed)
        healthy = [name for name in world.groups if not name.startswith(FAILING)]
        names = [chosen.choice(healthy) for _ in range(arguments.changes)]
        figures |= await _changes(world, names, directory)
        figures["rounds_failed"] = sum(operator.metric("dledger_operator_reconcile_errors_total{"))
        figures |= _memory(operator.pid, "at_end")
        return figures
    finally:
        kubelet.cancel()
        await asyncio.gather(kubelet, return_exceptions=True)
        await world.close()


async def _come_up(
    arguments: argparse.Namespace, world: World, kubelet: asyncio.Task[None]
) -> dict[str, Any]:
    """Create all groups; return how many are ready, and after how many seconds."""
    began_s = time.monotonic()
    failing = [f"{FAILING}-{n}" for n in range(arguments.failing)]
    await world.create([*failing, *(f"group-{n}" for n in range(arguments.groups))])
    created_s = time.monotonic() - began_s
    ready = 0
    while ready < arguments.groups and time.monotonic() - began_s < arguments.ready_s:
        if kubelet.done():
            kubelet.result()
        await asyncio.sleep(_LOOK_S)
        statuses = (await world.statuses()).values()
        ready = sum(rows.get("Ready") == "True" for rows in statuses)
        _say(f"{ready} of {arguments.groups} ready after {time.monotonic() - began_s:.0f} s")
    up_s = time.monotonic() - began_s
    return {"ready": ready, "created_in_s": round(created_s, 1), "ready_in_s": round(up_s, 1)}


async def _settle(operator: Operator, directory: Path) -> dict[str, Any]:
    """Wait until the operator has written nothing for a while, but for its Lease."""
    end_s = time.time() + _QUIET_DEADLINE_S
    while True:
        written = [one.at_s for one in await _requests(directory) if _is_change(one)]
        quiet_s = time.time() - max(written, default=0.0)
        if quiet_s >= _QUIET_S or time.time() > end_s:
            return {**_memory(operator.pid, "settled"), "settled": quiet_s >= _QUIET_S}
        await asyncio.sleep(_QUIET_S - quiet_s + 0.1)


async def _idle(idle_s: float, operator: Operator, directory: Path) -> dict[str, Any]:
    """Leave everything alone; return what it costs all the same."""
    _say(f"idle for {idle_s:.0f} s")
    started_s, cpu_s = time.time(), _cpu_s(operator.pid)
    rounds = sum(operator.metric("dledger_operator_rounds_total{"))
    await asyncio.sleep(idle_s)
    ended_s, used_s = time.time(), _cpu_s(operator.pid) - cpu_s
    rounds = sum(operator.metric("dledger_operator_rounds_total{")) - rounds
    found = await _requests(directory)
    span = [one for one in found if started_s <= one.at_s < ended_s]
    return {
        "idle_s": idle_s,
        "idle_cpu_cores": round(used_s / (ended_s - started_s), 3),
        "idle_rounds_per_s": round(rounds / (ended_s - started_s), 1),
        "idle_writes": _by_kind(one for one in span if _is_change(one)),
        "idle_lease_writes": sum(one.is_write and one.resource == "leases" for one in span),
        "idle_reads": _by_kind(one for one in span if not one.is_write and one.verb != "watch"),
        **_memory(operator.pid, "idle"),
    }


async def _changes(world: World, names: list[str], directory: Path) -> dict[str, Any]:
    """Change leaders and delete Services; return after how long the operator acted."""
    _say(f"{len(names)} elections, and as many deleted Services")
    elected = [await _elect(world, name) for name in names]
    await asyncio.sleep(_ANSWER_S)
    deleted = []
    for name in dict.fromkeys(names):
        deleted.append(("services", f"{name}-leader", time.time()))
        await world.delete_service(name)
        await asyncio.sleep(0.1)
    await asyncio.sleep(_ANSWER_S)
    found = [one for one in await _requests(directory) if one.is_write]
    took = {
        kind: [_answered(found, *change) for change in changes]
        for kind, changes in (("election", elected), ("service", deleted))
    }
    figures: dict[str, Any] = {"unanswered": sum(t is None for each in took.values() for t in each)}
    for kind, each in took.items():
        told = sorted(t for t in each if t is not None)
        for share in (50, 99):
            at = min(len(told) - 1, len(told) * share // 100)
            figures[f"{kind}_to_action_p{share}_ms"] = round(told[at] * 1000, 1) if told else None
    return figures


async def _elect(world: World, name: str) -> tuple[str, str, float]:
    nodes = world.groups[name]
    ordinal = ((nodes.leader or 0) + 1) % 3
    at_s = time.time()
    nodes.elect(ordinal)
    await asyncio.sleep(0.1)
    return "pods", f"{name}-{ordinal}", at_s


def _answered(found: list[audit.Request], resource: str, name: str, at_s: float) -> float | None:
    """Return the seconds until the operator wrote to an object, or None."""
    after = (one.at_s - at_s for one in found if (one.resource, one.name) == (resource, name))
    return min((took for took in after if 0 <= took < _ANSWER_S), default=None)


def _is_change(one: audit.Request) -> bool:
    """Whether a request writes to something of a group that is well."""
    is_of_failing = one.name.startswith(FAILING)
    return one.is_write and one.resource != "leases" and not is_of_failing


def _by_kind(found: Any) -> Mapping[str, int]:
    counted: dict[str, int] = {}
    for one in found:
        counted[one.kind] = counted.get(one.kind, 0) + 1
    return counted


def _cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / _TICKS


async def _requests(directory: Path) -> list[audit.Request]:
    """Return the audit log, read beside the loop that plays the nodes: it takes seconds."""
    return await asyncio.to_thread(audit.requests, directory)


def _memory(pid: int, when: str) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return {f"memory_{when}_mib": kib >> 10}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
