"""``make overload``: four kinds of overload, and how the group recovers from each.

Each row: a rate to begin with (closed loop), the overload for some time, then relief, and how long
it takes until the rate of a second is back. Nodes are watched meanwhile. The exit code is 1 if a
refusal has no name, memory or latency has no bound, or the rate does not come back, and 2 if one of
these could not be measured: an overload that did not come about, writers of whom nothing was
accepted. Requests that expired waited at the client that floods: HTTP/2 told it to send no more.
`--record` keeps a run that has passed.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from e2e.bench import machine
from e2e.bench.cases import Case
from e2e.bench.figures import latency_figures
from e2e.bench.loads import Load
from e2e.bench.ours import Ours
from e2e.bench.process_group import ProcessGroup
from e2e.bench.results import BUILD, LOGS, add_arguments, home, keep, names
from e2e.bench.rows import OURS, Row
from e2e.bench.sampler import Life, Sampler
from e2e.harness.checks import BROKEN, Bound, exit_code, judged, keeps
from e2e.harness.nodes import allocate
from e2e.harness.processes import ChildProcess
from e2e.harness.waiting import HarnessError

OVERLOAD: Final = "overload"
CASE: Final = Case(batch=16, window=32)
"""What sustains, and comes back."""
_SHAPE: Final[dict[str, Any]] = {"batch": CASE.batch, "size_bytes": CASE.size_bytes}
_LARGE: Final = 4 << 20
_SLICE_S: Final = 1.0
_SLICES: Final = 3
"""So many say what a slice comes to: each connects anew, so it is less than of a longer loop."""
_BACK_SHARE: Final = 0.8
_GIVE_UP_S: Final = 30.0
_CALM_S: Final = 4.0


@dataclass(frozen=True, slots=True)
class Bench:
    """A running group, and a second load program: *flood* overloads, the group's own does not."""

    group: ProcessGroup
    flood: Load

    def flooded(self, node: int, rate: float, seconds: float, **more: Any) -> dict[str, Any]:
        """Return what came of too many requests at fixed times; *more* is of them."""
        return self.flood.ask(
            "flood", **_SHAPE | more | {"node": node, "rate": rate, "seconds": seconds}
        )

    def written(self, node: int, rate: float, seconds: float) -> dict[str, Any]:
        """Return what came of the normal writers' requests, at fixed times."""
        return self.group.load.ask("flood", node=node, rate=rate, seconds=seconds, **_SHAPE)

    def closed(self, node: int, seconds: float) -> dict[str, Any]:
        """Return what came of the closed loop."""
        window = CASE.window
        return self.group.load.ask("closed", node=node, window=window, seconds=seconds, **_SHAPE)


Overload = Callable[[Bench, int, float, float], Mapping[str, Any]]
"""Too much for so many seconds: at a leader that sustains so many requests a second."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen rows; return the exit code."""
    args = parser().parse_args(arguments)
    LOGS.mkdir(parents=True, exist_ok=True)
    at, facts = time.gmtime(), machine.facts()
    rows: list[Row] = []
    lines: list[Bound] = []
    is_kept = True
    try:
        with tempfile.TemporaryDirectory(dir=args.data or BUILD, prefix="overload-") as scratch:
            for row in overload_rows(args.only, args.seconds, Path(scratch)):
                rows.append(row)
                judgement = said(row)
                is_kept &= keeps(judgement)
                lines += judgement
    except HarnessError as error:
        print(f"overload: cut short: {error}", file=sys.stderr)
        return BROKEN
    keep(rows, at, facts, into=home(record=args.record, is_kept=is_kept and bool(rows)))
    return exit_code([line.verdict for line in lines])


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(prog="make overload", description=__doc__)
    made.add_argument("--seconds", type=float, default=20, help="length of an overload (20)")
    made.add_argument(
        "--only", type=names, default=list(OVERLOADS), metavar="ROW,…",
        help=f"of {', '.join(OVERLOADS)}",
    )  # fmt: skip
    add_arguments(made)
    return made


def overload_rows(names: Sequence[str], seconds: float, root: Path) -> Iterator[Row]:
    """Yield a row for each overload; each has a group of its own. Raises HarnessError."""
    if unknown := set(names) - OVERLOADS.keys():
        raise HarnessError(f"no such row: {', '.join(sorted(unknown))}")
    for name in names:
        with _running(root / name, LOGS / OVERLOAD / name) as bench:
            yield _row(bench, name, seconds)


@contextmanager
def _running(root: Path, logs: Path) -> Iterator[Bench]:
    system = Ours(load_module="e2e.bench.overload_load")
    group = ProcessGroup(system, allocate(root), logs)
    flood: ChildProcess | None = None
    try:
        group.start()
        flood = ChildProcess(system.load(group.specs), logs / "flood.log")
        yield Bench(group, Load(flood))
    finally:
        if flood is not None:
            flood.stop()
        group.discard()


def _row(bench: Bench, name: str, seconds: float) -> Row:
    leader = bench.group.wait_whole()
    bench.closed(leader, _CALM_S / 2)
    calm = bench.closed(leader, _CALM_S)
    if not calm["per_s"]:
        raise HarnessError(f"{name}: nothing was acknowledged before the overload began")
    before_per_s = median(bench.closed(leader, _SLICE_S)["per_s"] for _ in range(_SLICES))
    before_mb = _rss_mb(bench.group)
    sampler = Sampler(bench.group)
    sampler.start()
    term = max(state.term for state in bench.group.states() if state)
    try:
        busy = OVERLOADS[name](bench, leader, calm["per_s"], seconds)
        back_s = _back(bench, before_per_s * _BACK_SHARE)
    finally:
        sampler.stop()
    sampler.check()
    alive = [node.is_running() for node in bench.group.nodes]
    return Row(
        kind=OVERLOAD,
        system=OURS,
        name=name,
        size_bytes=CASE.size_bytes,
        batch=CASE.batch,
        figures={
            "calm_per_s": calm["per_s"] * CASE.batch,
            "calm_p99_ms": latency_figures(calm["latencies_us"]).get("p99_ms", 0.0),
            "sent": float(busy["sent"]),
            "accepted": float(len(busy["latencies_us"])),
            "refused": float(sum(busy["refused"].values())),
            "expired": float(busy["expired"]),
            "pressed": float(busy["pressed"]),
            "before_mb": before_mb,
            **under_pressure(busy, sampler.lives(), back_s),
            "after_mb": _rss_mb(bench.group),
            "died": float(alive.count(False)),
            "elections": float(max((t for _, t in sampler.terms()), default=term) - term),
        },
        notes=[f"{what}: {count}" for what, count in {**busy["refused"], **busy["untyped"]}.items()]
        + list(busy.get("notes", ())),
    )


def under_pressure(
    busy: Mapping[str, Any], lives: Sequence[Life], back_s: float
) -> dict[str, float]:
    """Return what is judged: nothing of it if there was no overload to be under."""
    if not busy["pressed"]:
        return {}
    peak = {"peak_mb": max(life.peak_mb for life in lives)} if lives else {}
    return {
        "untyped": float(sum(busy["untyped"].values())),
        **latency_figures(busy["latencies_us"]),
        **peak,
        "back_s": back_s,
    }


def _rss_mb(group: ProcessGroup) -> float:
    return max(usage.rss_mb for usage in group.usages() if usage)


def _back(bench: Bench, per_s: float) -> float:
    """Return after how many seconds a slice of the closed loop reached *per_s* again."""
    began_s = time.monotonic()
    while (passed_s := time.monotonic() - began_s) < _GIVE_UP_S:
        leader = bench.group.leader()
        if leader is not None and bench.closed(leader, _SLICE_S)["per_s"] >= per_s:
            return passed_s
    return _GIVE_UP_S


# -- too much, four ways -------------------------------------------------------------------------


def _too_many(bench: Bench, leader: int, per_s: float, seconds: float) -> Mapping[str, Any]:
    """Ten times the requests that sustain, at fixed times; writers as ever beside."""

    def flood() -> list[dict[str, Any]]:
        rate = 10 * per_s
        done = bench.flooded(leader, rate, seconds)
        note = f"{done['sent']} sent of {rate * seconds:.0f} offered"
        return [done | {"pressed": done["sent"], "notes": [note]}]

    return _beside(bench, leader, per_s / 10, seconds, flood)


def _too_large(bench: Bench, leader: int, per_s: float, seconds: float) -> Mapping[str, Any]:
    """Bodies at the limit and just above it, many at once; writers as ever beside."""

    def large() -> list[dict[str, Any]]:
        rates = {_LARGE: 60.0, _LARGE + 1: 20.0}
        each_s = seconds / len(rates)
        floods = [
            bench.flooded(leader, rate, each_s, batch=1, size_bytes=size_bytes)
            for size_bytes, rate in rates.items()
        ]
        return [done | {"pressed": done["sent"]} for done in floods]

    return _beside(bench, leader, per_s / 4, seconds, large)


def _too_many_connections(
    bench: Bench, leader: int, per_s: float, seconds: float
) -> Mapping[str, Any]:
    """10,000 connections to the leader that ask for nothing; writers as ever beside."""

    def hold() -> list[dict[str, Any]]:
        began_s = time.monotonic()
        held = bench.flood.ask("hold", node=leader, connections=10_000)
        time.sleep(max(0.0, began_s + seconds - time.monotonic()))
        bench.flood.ask("release")
        note = f"{held['open']} connections open, {held['turned_away']} turned away"
        return [{"pressed": held["open"], "notes": [note]}]

    return _beside(bench, leader, per_s / 4, seconds, hold)


def _deaf_follower(bench: Bench, leader: int, per_s: float, seconds: float) -> Mapping[str, Any]:
    """A follower that holds its connections and reads nothing; writers as ever beside."""
    follower = bench.group.nodes[(leader + 1) % len(bench.group.nodes)]

    def deaf() -> list[dict[str, Any]]:
        follower.send(signal.SIGSTOP)
        try:
            time.sleep(seconds)
            is_deaf = follower.is_running()
        finally:
            follower.send(signal.SIGCONT)
        return [{"pressed": is_deaf}]

    return _beside(bench, leader, per_s / 2, seconds, deaf)


def _beside(
    bench: Bench,
    leader: int,
    per_s: float,
    seconds: float,
    overload: Callable[[], list[dict[str, Any]]],
) -> Mapping[str, Any]:
    """Write at a rate that sustains while *overload* runs; latencies are those of the writers."""
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(overload)
        written = bench.written(leader, per_s, seconds)
        others = under_way.result()
    joined = {
        kind: sum((Counter(each.get(kind, {})) for each in (written, *others)), Counter[str]())
        for kind in ("refused", "untyped")
    }
    expired = sum(each.get("expired", 0) for each in (written, *others))
    notes = [note for each in others for note in each.get("notes", ())]
    pressed = sum(each.get("pressed", 0) for each in others)
    return written | joined | {"expired": expired, "pressed": pressed, "notes": notes}


OVERLOADS: Final[Mapping[str, Overload]] = {
    "10x the rate": _too_many,
    "10k connections": _too_many_connections,
    "4 MiB bodies": _too_large,
    "a follower that stops reading": _deaf_follower,
}


def said(row: Row) -> list[Bound]:
    """Print a row; return the lines it has to keep."""
    print(f"\n{row.name}")
    for name, value in row.figures.items():
        print(f"  {name}: {value:,.1f}")
    for note in row.notes:
        print(f"  {note}")
    lines = verdict(row.figures)
    print("\n".join(map(str, lines)), flush=True)
    return lines


def verdict(figures: Mapping[str, float]) -> list[Bound]:
    """Return the lines that an overload has to keep."""
    return judged(
        figures,
        {
            "untyped": ("errors without a name", 0),
            "died": ("nodes that ended", 0),
            "peak_mb": ("most memory of a node, MB", 300),
            "p99_ms": ("p99 of what was accepted, ms", 2000),
            "back_s": ("seconds until the rate was back", 5),
        },
    )


if __name__ == "__main__":
    sys.exit(main())
