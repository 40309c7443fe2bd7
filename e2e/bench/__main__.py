"""``make bench``: measure, print, and write one JSON file."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from e2e.bench import machine
from e2e.bench.bare_broker import bare_broker_rows
from e2e.bench.bare_calls import bare_rows
from e2e.bench.beside_rocketmq import ROCKETMQ, sdk_contestants
from e2e.bench.catch_up import CATCH_UP, catch_up_rows
from e2e.bench.contest import Turns, contest, contestants
from e2e.bench.etcd import Etcd
from e2e.bench.failover import Trials, failover_rows
from e2e.bench.java import JavaDLedger
from e2e.bench.ours import Ours
from e2e.bench.peers import PEERS, lost_leader_rows, peer_rows
from e2e.bench.process_group import System
from e2e.bench.results import BUILD, LOGS, add_arguments, home, keep, names
from e2e.bench.rows import Row
from e2e.bench.sidecar import SIDECAR, sidecar_rows
from e2e.bench.typed_failover import TYPES_FAILOVER, SteadyPlan, typed_failover_rows
from e2e.bench.typed_sends import TYPES, typed_contestants
from e2e.cluster.errors import ClusterError
from e2e.harness.checks import BROKEN, UNMEASURED
from e2e.harness.waiting import HarnessError

FAILOVERS: Final[Mapping[str, Callable[[], System]]] = {
    "ours-failover": lambda: Ours({"leader_follows_clients": "false"}),
    "java-failover": JavaDLedger,
    "java-fast-failover": lambda: JavaDLedger(heartbeat_ms=200),
    "etcd-failover": Etcd,
}
PEERS_FAILOVER: Final = "peers-failover"
SECTIONS: Final = (
    "disk",
    "calls",
    "ours",
    "sdk",
    "java",
    "java-push",
    "etcd",
    ROCKETMQ,
    TYPES,
    TYPES_FAILOVER,
    CATCH_UP,
    SIDECAR,
    *FAILOVERS,
    *PEERS,
    PEERS_FAILOVER,
)
_EXAMPLES: Final = f"""\
{", ".join(PEERS)}: beside ours, in turns of their own. For example:

  make bench BENCH_ARGS="--only {",".join(PEERS)},{PEERS_FAILOVER}"
  make bench BENCH_ARGS="--only nats --seconds 2 --rounds 1 --warm-up 5"   (quick: two minutes)
  make bench BENCH_ARGS="--only rocketmq --seconds 10 --record"
  make bench BENCH_ARGS="--only rocketmq --rounds 1 --seconds 2 --warm-up 4"  (three minutes)
  make bench BENCH_ARGS="--only types,types-failover --rounds 2 --seconds 10"  (ten minutes)
  make bench BENCH_ARGS="--only ours,etcd"
  make bench BENCH_ARGS="--only sidecar"   (two minutes; in full with --replay 1000000)
  make bench BENCH_ARGS="--full --trials 30 --record"
"""
_DISK_S: Final = 1.0
_SYNC_S: Final = 8.0
_BARE_CALLS_S: Final = 4.0
_HEADLINES: Final = {
    "per_s": "/s",
    "mb_s": "MB/s",
    "total_mb_s": "MB/s",
    "server_us": "us of a core a call, servers",
    "client_us": "client",
    "nodes_100k_s": "CPU s of 100k",
    "others_cores": "cores of others",
    "p50_ms": "ms p50",
    "p99_ms": "ms p99",
    "acknowledged": "acknowledged",
    "lost": "lost",
    "doubled": "doubled",
    "redelivered": "redelivered",
    "early": "early",
    "disordered": "disordered",
    "late_p50_ms": "ms late p50",
    "late_p99_ms": "ms late p99",
    "late_max_ms": "ms late at most",
    "gap_ms": "ms gap",
    "max_ms": "ms max",
    "sidecar_us": "us of a core a message, sidecar",
    "leader_us": "leader",
    "follower_us": "a follower",
    "after_p99_ms": "ms p99 after it",
    "sync_p99_ms": "ms p99 of a sync",
    "live_p50_ms": "ms p50 of others",
    "live_p99_ms": "ms p99 of others",
    "live_failures": "of others failed",
    "moved": "moved",
    "unrecovered": "unrecovered",
    "failures": "failed",
    "calm_p99_ms": "ms p99 before",
    "start_p99_ms": "ms p99 at its start",
    "busy_p99_ms": "ms p99 meanwhile",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen sections; return the exit code."""
    args = parser().parse_args(arguments)
    LOGS.mkdir(parents=True, exist_ok=True)
    at = time.gmtime()
    facts = machine.facts()
    print(f"{facts}\ncommit {machine.commit()}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    rows: list[Row] = []
    stolen = machine.Stolen()
    problem = ""
    try:
        with tempfile.TemporaryDirectory(dir=args.data or BUILD, prefix="data-") as scratch:
            for row in measure(args, Path(scratch)):
                print(line(row), flush=True)
                rows.append(row)
    except (HarnessError, ClusterError) as error:
        problem = str(error)
    facts["stolen_percent"] = stolen.percent()
    is_whole = bool(rows) and not problem
    print(f"\nstolen by the hypervisor: {facts['stolen_percent']} % of the cores")
    keep(rows, at, facts, into=home(record=args.record, is_kept=is_whole))
    if problem:
        print(f"bench: cut short: {problem}", file=sys.stderr)
        return BROKEN
    if not rows:
        print("bench: nothing was measured", file=sys.stderr)
        return UNMEASURED
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(
        prog="make bench",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--full", action="store_true", help="all cases instead of a representative few"
    )
    made.add_argument("--seconds", type=float, default=8, help="length of a row (default 8)")
    made.add_argument("--rounds", type=int, default=3, help="rounds of a row (default 3)")
    made.add_argument(
        "--warm-up", type=float, help="seconds before anything counts (default: JVMs 30, others 5)"
    )
    made.add_argument("--trials", type=int, default=5, help="of each fault (default 5)")
    made.add_argument(
        "--behind-mib", type=int, default=256, help="what a lagging follower misses (default 256)"
    )
    made.add_argument(
        "--replay", type=int, default=100_000, help="messages that a sidecar replays (100,000)"
    )
    made.add_argument(
        "--only", type=names, default=list(SECTIONS), metavar="SECTION,…",
        help=f"of {', '.join(SECTIONS)}",
    )  # fmt: skip
    add_arguments(made)
    return made


def measure(args: argparse.Namespace, scratch: Path) -> Iterator[Row]:
    """Yield every row as it is measured."""
    if unknown := set(args.only) - set(SECTIONS):
        raise HarnessError(f"no such section: {', '.join(sorted(unknown))}")
    if "disk" in args.only:
        yield from machine.disk_rows(scratch, _DISK_S)
        yield machine.sync_row(scratch, _SYNC_S)
    if "calls" in args.only:
        yield from bare_rows(_BARE_CALLS_S, LOGS / "bare-calls.log")
        yield from bare_broker_rows(_BARE_CALLS_S, LOGS / "bare-broker.log")
    turns = Turns(full=args.full, seconds=args.seconds, rounds=args.rounds, warm_up_s=args.warm_up)
    known = contestants(turns, LOGS)
    chosen = {name: known[name] for name in args.only if name in known}
    if chosen:
        yield from contest(chosen, turns, scratch, LOGS)
    if ROCKETMQ in args.only:
        yield from contest(sdk_contestants(turns), turns, scratch, LOGS)
    yield from _measure_typed(args, turns, scratch)
    yield from _of_ours(args, scratch)
    for name in (name for name in args.only if name in FAILOVERS):
        trials = Trials(count=args.trials)
        yield from failover_rows(FAILOVERS[name](), trials, scratch / name, LOGS / name)
    if peers := [name for name in args.only if name in PEERS]:
        yield from peer_rows(peers, turns, scratch / "peers", LOGS / "peers")
    if PEERS_FAILOVER in args.only:
        trials = Trials(count=args.trials)
        yield from lost_leader_rows(trials, scratch / PEERS_FAILOVER, LOGS / PEERS_FAILOVER)


def _measure_typed(args: argparse.Namespace, turns: Turns, scratch: Path) -> Iterator[Row]:
    """Yield what is measured of typed messages, beside RocketMQ."""
    chosen = typed_contestants(turns)
    if TYPES in args.only:
        yield from contest(chosen, turns, scratch / TYPES, LOGS / TYPES)
    if TYPES_FAILOVER in args.only:
        place, logs = scratch / TYPES_FAILOVER, LOGS / TYPES_FAILOVER
        yield from typed_failover_rows(chosen, SteadyPlan(), place, logs)


def _of_ours(args: argparse.Namespace, scratch: Path) -> Iterator[Row]:
    """Yield what is measured of ours alone."""
    if CATCH_UP in args.only:
        behind = args.behind_mib << 20
        yield from catch_up_rows(Ours(), behind, args.seconds, scratch / CATCH_UP, LOGS / CATCH_UP)
    if SIDECAR in args.only:
        place = scratch / SIDECAR
        yield from sidecar_rows(Ours(), args.replay, args.seconds, place, LOGS / SIDECAR)


def line(row: Row) -> str:
    """Return a row for the terminal."""
    figures = "  ".join(
        f"{row.figures[name]:,.1f} {unit}"
        for name, unit in _HEADLINES.items()
        if name in row.figures
    )
    return f"{row.system:18.18} {row.kind:13} {row.name:48} {figures}"


if __name__ == "__main__":
    sys.exit(main())
