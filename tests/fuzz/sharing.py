"""The work of a run, cut up and shared among processes that may not take the machine's memory."""

from __future__ import annotations

import logging
import multiprocessing
import resource
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Final

from tests.fuzz.running import Tally, run
from tests.fuzz.targets import TARGETS

_MEMORY_BYTES: Final = 6 << 30
_SLICE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of the work: one target, for a time or a number of inputs."""

    target: str
    seed: str
    inputs: int | None
    seconds: float | None


def slices(
    names: Sequence[str], *, seed: str, jobs: int, minutes: float, inputs: int | None
) -> Iterator[Slice]:
    """Yield the work, each target's cut so that no process is left over at the end."""
    if inputs is not None:
        each = -(-inputs // len(names))
        for name in names:
            share = -(-each // jobs)
            yield from (Slice(name, f"{seed}.{n}", share, None) for n in range(jobs))
        return
    whole_s = minutes * 60 * jobs / len(names)
    parts = max(1, round(whole_s / _SLICE_S))
    for part in range(parts):
        yield from (Slice(name, f"{seed}.{part}", None, whole_s / parts) for name in names)


def work(part: Slice) -> Tally:
    """Do one part, in a process of its own that may not take the machine's memory."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, hard))
    logging.disable(logging.CRITICAL)  # decoders' lines about damage, by the thousand
    target = TARGETS[part.target]()
    try:
        return run(target, seed=part.seed, inputs=part.inputs, seconds=part.seconds)
    finally:
        target.close()


def fuzz(parts: Sequence[Slice], jobs: int) -> dict[str, Tally]:
    """Do all parts; return what came of each target."""
    found = {part.target: Tally(part.target) for part in parts}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        for done in as_completed([pool.submit(work, part) for part in parts]):
            tally = done.result()
            found[tally.target].add(tally)
            for finding in tally.findings:
                print(f"FOUND {finding.target}: {finding.found}", flush=True)
    return found
