"""FIFO and delayed sends of the RocketMQ Java SDK, with our nodes and with RocketMQ, in turns.

NORMAL ones are beside them, by the same program in the same turn. The load program is
``java_sdk/TypedLoad.java``. Delayed messages are due 5 s ahead, so that in each row as many are
delivered as are sent; one in a hundred is consumed, and says how late it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from e2e.bench import rocketmq
from e2e.bench.cases import Case
from e2e.bench.contest import Contestant, Turns
from e2e.bench.figures import quantile
from e2e.bench.java_sdk import (
    DELAY,
    FIFO,
    NORMAL,
    OursBySdk,
    Program,
    Topic,
    costed_row,
    settle,
)
from e2e.bench.process_group import ProcessGroup
from e2e.bench.rocketmq import RocketMQ
from e2e.bench.rows import Row
from e2e.bench.sdk import SdkCalls

TYPED: Final = "typed-sends"
TYPES: Final = "types"
NORMAL_256: Final = SdkCalls("normal", 256, "NORMAL sends, 256 under way")
FIFO_256: Final = SdkCalls("fifo", 256, "FIFO sends, 256 under way")
DELAY_256: Final = SdkCalls("delay", 256, "delayed sends, 256 under way")
STEPS: Final = (NORMAL_256, FIFO_256, DELAY_256)
TYPED_LOAD: Final = Program(
    main="TypedLoad",
    topics=(
        Topic(name="bench-normal", type=NORMAL),
        Topic(name="bench-fifo", type=FIFO),
        Topic(name="bench-delay", type=DELAY),
        Topic(name="bench-watched-fifo", type=FIFO, groups=("bench-watch-fifo",)),
        Topic(name="bench-watched-delay", type=DELAY),
    ),
)
SYNCED: Final = "acknowledged when a majority has synced it"
_WARM_UP_S: Final = 30.0
_WARM_AGAIN_S: Final = 3.0
"""In later turns: what was frozen is still compiled."""
SETTLED_S: Final = 180.0


def typed_contestants(turns: Turns) -> Mapping[str, Contestant]:
    """Return both: each with three nodes, and a client of its own."""
    warm_up_s = _WARM_UP_S if turns.warm_up_s is None else turns.warm_up_s

    def rows(promise: str) -> TypedRows:
        return TypedRows(seconds=turns.seconds, warm_up_s=warm_up_s, promise=promise)

    return {
        "ours": Contestant(make=lambda: OursBySdk(TYPED_LOAD), measure=rows(SYNCED)),
        "rocketmq": Contestant(
            make=lambda: RocketMQ(TYPED_LOAD),
            measure=rows(rocketmq.PROMISE),
            place=rocketmq.placed,
        ),
    }


class TypedRows:
    """The rows of one system, turn after turn.

    Args:
        seconds: Length of a row.
        warm_up_s: For how long each type is sent before it counts, in the first turn.
        promise: What an acknowledgement means, as a note.
    """

    def __init__(self, *, seconds: float, warm_up_s: float, promise: str) -> None:
        self._seconds = seconds
        self._warm_up_s = warm_up_s
        self._promise = promise
        self._warm: set[tuple[int, str]] = set()

    def __call__(self, group: ProcessGroup) -> Iterator[Row]:
        """Yield a turn's rows; each begins when nothing is due any more."""
        for step in STEPS:
            yield self._row(group, step)

    def _row(self, group: ProcessGroup, step: SdkCalls) -> Row:
        load, case = group.load, Case(batch=1, window=step.window)
        group.wait_whole()
        settle(load, case, step.mode)
        who = (load.child.pid, step.mode)
        again_s = min(self._warm_up_s, _WARM_AGAIN_S)
        load.run(case, again_s if who in self._warm else self._warm_up_s, mode=step.mode)
        self._warm.add(who)
        row = costed_row(group, step, self._seconds, kind=TYPED)
        came = load.ask("settle", answer_s=SETTLED_S)
        figures = dict(row.figures) | late_figures(came["late_ms"], came["missing"])
        return replace(row, figures=figures, notes=(self._promise,))


def late_figures(late_ms: Sequence[float], missing: int) -> dict[str, float]:
    """Return how late sampled messages were, and how many did not come; nothing of none."""
    if not late_ms and not missing:
        return {}
    figures = {"sampled": float(len(late_ms)), "missing": float(missing)}
    if not late_ms:
        return figures
    ordered = sorted(late_ms)
    return figures | {
        "early": float(sum(each < 0 for each in ordered)),
        "late_p50_ms": float(quantile(ordered, 0.5)),
        "late_p99_ms": float(quantile(ordered, 0.99)),
        "late_max_ms": float(ordered[-1]),
    }
