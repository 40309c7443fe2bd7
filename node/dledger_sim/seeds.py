"""Runs many seeds in several processes, and says of one that fails how to see it again."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from random import Random

from dledger_sim.options import Options
from dledger_sim.run import Outcome, run_seed
from dledger_sim.shrink import shrink
from dledger_sim.stalls import StalledError, ended_by_force


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that broke something."""

    seed: int
    off: tuple[str, ...]
    text: str

    @property
    def replay(self) -> str:
        """The command that shows it again."""
        return f"python -m dledger_sim --seed {self.seed}{_off(self.off)} --trace"


def options_of(seed: int, off: Sequence[str] = ()) -> Options:
    """Return what *seed* draws, with some faults turned off."""
    return Options.draw(Random(f"{seed}/options")).without(*off)


def try_seed(seed: int, off: tuple[str, ...] = ()) -> Outcome | Failure:
    """Run one seed; whatever breaks becomes a value."""
    silence()
    try:
        with ended_by_force():
            return run_seed(seed, options_of(seed, off))
    except (Exception, StalledError):  # noqa: BLE001 - whatever broke, the seed must be told
        return Failure(seed, off, traceback.format_exc())


def shrunk(failure: Failure) -> Failure:
    """Return a failure of the same seed with as few faults as possible."""

    def fails(off: tuple[str, ...]) -> bool:
        return isinstance(try_seed(failure.seed, off), Failure)

    options = options_of(failure.seed, failure.off)
    off = (*failure.off, *shrink(options.active(), fails))
    smaller = try_seed(failure.seed, off)
    return smaller if isinstance(smaller, Failure) else failure


def run_seeds(
    seeds: Sequence[int], *, jobs: int, twice: bool = False
) -> Iterator[Outcome | Failure]:
    """Run seeds in *jobs* processes; yields in their order.

    Args:
        seeds: Which.
        jobs: How many processes; with *twice* at least two.
        twice: Whether to run each in two processes, whose hashes differ, and compare.
    """
    if jobs == 1 and not twice:
        yield from map(try_seed, seeds)
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
        futures = [[one.submit(try_seed, seed) for one in executors] for seed in seeds]
        for seed, runs in zip(seeds, futures, strict=True):
            yield _same(seed, runs)


def _same(seed: int, runs: Sequence[Future[Outcome | Failure]]) -> Outcome | Failure:
    try:
        first, *others = [run.result() for run in runs]
    except BrokenProcessPool as error:
        return Failure(seed, (), f"a process died in this seed or one soon behind it: {error}\n")
    for other in others:
        if isinstance(first, Outcome) and first != other:
            text = f"two runs of one seed differ:\n{first}\n{other}\n"
            return Failure(first.seed, (), text)
    return first


def silence() -> None:
    """Let the nodes log nothing: torn tails and lost leaders are expected here."""
    logging.getLogger("dledger").setLevel(logging.CRITICAL + 1)


def _off(faults: Sequence[str]) -> str:
    return f" --off {','.join(faults)}" if faults else ""
