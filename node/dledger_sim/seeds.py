"""Runs many seeds in several processes, and prints how to replay one that fails.

A run that does not end is stopped by a signal and reported with its seed, like any that fails: an
endless loop takes CPU; a lock that is never released takes none. Normal runs take a second or two
of CPU. With ``--shrink`` faults are turned off one by one, as long as the run still fails.
"""

from __future__ import annotations

import gc
import logging
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from types import FrameType
from typing import Final, TypeAlias

from dledger_sim.edge import EdgeOptions, EdgeRun
from dledger_sim.edge import Outcome as EdgeOutcome
from dledger_sim.loop import StalledError
from dledger_sim.options import Options
from dledger_sim.run import Outcome as GroupOutcome
from dledger_sim.run import Run

Outcome: TypeAlias = GroupOutcome | EdgeOutcome
CPU_S: Final = 120.0
WALL_S: Final = 1800.0
_AGAIN_S: Final = 1.0
"""A task keeps what is raised in it, whatever it is; then it is raised again elsewhere."""


@contextmanager
def ended_by_force(*, cpu_s: float = CPU_S, wall_s: float = WALL_S) -> Iterator[None]:
    """Raise StalledError in what takes longer, where it is then; in the main thread only.

    Args:
        cpu_s: CPU seconds of this process.
        wall_s: Seconds on the wall: far more, since others may have the machine.
    """
    timers = (
        (signal.ITIMER_PROF, signal.SIGPROF, cpu_s, f"{cpu_s:.0f} s of CPU"),
        (signal.ITIMER_REAL, signal.SIGALRM, wall_s, f"{wall_s:.0f} s"),
    )
    before = [signal.signal(number, _raiser(what)) for _, number, _, what in timers]
    others = [signal.setitimer(timer, limit_s, _AGAIN_S) for timer, _, limit_s, _ in timers]
    try:
        yield
    finally:
        for (timer, number, _, _), handler, other in zip(timers, before, others, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)
            signal.setitimer(timer, *other)  # such as the limit of the test that this runs in


def _raiser(what: str) -> signal._HANDLER:
    def stalled(_: int, __: FrameType | None) -> None:
        raise StalledError(f"the run has not ended after {what}")

    return stalled


def shrink(faults: Sequence[str], fails: Callable[[tuple[str, ...]], bool]) -> tuple[str, ...]:
    """Return which of *faults* can be off, all together, in a run that still fails.

    Args:
        faults: Those that are on.
        fails: Whether the run fails with these turned off. The failure may be another one.
    """
    off: tuple[str, ...] = ()
    for fault in faults:
        if fails((*off, fault)):
            off = (*off, fault)
    return off


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that broke something."""

    seed: int
    off: tuple[str, ...]
    text: str
    edge: bool = False
    world: str = ""

    @property
    def replay(self) -> str:
        """The command that shows it again."""
        edge = " --edge" if self.edge else ""
        world = f" --world {self.world}" if self.world else ""
        return f"python -m dledger_sim{edge}{world} --seed {self.seed}{_off(self.off)} --trace"


def run_of(
    seed: int,
    off: Sequence[str] = (),
    *,
    edge: bool = False,
    world: str = "",
    tell: Callable[[str], None] | None = None,
) -> Run | EdgeRun:
    """Return the run of a seed with some faults turned off: of the group, or of its edge.

    The group's may be in a *world* that the seed did not draw.
    """
    if edge:
        return EdgeRun(seed, EdgeOptions.of(seed).without(*off), tell=tell)
    return Run(seed, Options.of(seed, world).without(*off), tell=tell)


def try_seed(
    seed: int, off: tuple[str, ...] = (), edge: bool = False, world: str = ""
) -> Outcome | Failure:
    """Run one seed; whatever breaks becomes a value."""
    silence()
    gc.disable()
    try:
        with ended_by_force():
            return run_of(seed, off, edge=edge, world=world).run()
    except (Exception, StalledError):  # noqa: BLE001 - whatever broke, the seed must be told
        return Failure(seed, off, traceback.format_exc(), edge, world)
    finally:
        gc.enable()
        if edge:
            gc.collect()  # a world is one large cycle: 40 MB a seed would wait for a full one


def shrunk(failure: Failure) -> Failure:
    """Return a failure of the same seed with as few faults as possible."""

    def fails(off: tuple[str, ...]) -> bool:
        return isinstance(try_seed(failure.seed, off, failure.edge, failure.world), Failure)

    run = run_of(failure.seed, failure.off, edge=failure.edge, world=failure.world)
    off = (*failure.off, *shrink(run.options.active(), fails))
    smaller = try_seed(failure.seed, off, failure.edge, failure.world)
    return smaller if isinstance(smaller, Failure) else failure


def run_seeds(
    seeds: Sequence[int],
    *,
    jobs: int,
    twice: bool = False,
    edge: bool = False,
    world: str = "",
) -> Iterator[Outcome | Failure]:
    """Run seeds in *jobs* processes; yields in their order.

    Args:
        seeds: Which.
        jobs: How many processes; with *twice* at least two.
        twice: Whether to run each in two processes, whose hashes differ, and compare.
        edge: Whether to run the edge; else the group.
        world: One of `worlds`, for all of them; "": what each seed draws.
    """
    if jobs == 1 and not twice:
        yield from (try_seed(seed, (), edge, world) for seed in seeds)
        return
    context = get_context("spawn")
    pools = 2 if twice else 1
    with ExitStack() as stack:
        executors = [
            stack.enter_context(ProcessPoolExecutor(max(1, jobs // pools), context))
            for _ in range(pools)
        ]
        for one in executors:
            stack.callback(one.shutdown, cancel_futures=True)
        futures = [
            [one.submit(try_seed, seed, (), edge, world) for one in executors] for seed in seeds
        ]
        for seed, runs in zip(seeds, futures, strict=True):
            yield _same(seed, runs, edge=edge)


def _same(seed: int, runs: Sequence[Future[Outcome | Failure]], *, edge: bool) -> Outcome | Failure:
    try:
        first, *others = [run.result() for run in runs]
    except BrokenProcessPool as error:
        text = f"a process died in this seed or one soon behind it: {error}\n"
        return Failure(seed, (), text, edge)
    for other in others:
        if not isinstance(first, Failure) and first != other:
            text = f"two runs of one seed differ:\n{first}\n{other}\n"
            return Failure(seed, (), text, edge)
    return first


def silence() -> None:
    """Let the nodes log nothing: torn tails and lost leaders are expected here."""
    logging.getLogger("dledger").setLevel(logging.CRITICAL + 1)


def _off(faults: Sequence[str]) -> str:
    return f" --off {','.join(faults)}" if faults else ""
