"""The RocketMQ Java SDK with our nodes and with RocketMQ itself, in turns, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Final

from e2e.bench import rocketmq
from e2e.bench.contest import Contestant, Turns
from e2e.bench.java_sdk import JAVA_SDK, JavaSdkRows, OursBySdk
from e2e.bench.markdown import number, paragraph
from e2e.bench.rocketmq import RocketMQ
from e2e.bench.rows import Run

ROCKETMQ: Final = "rocketmq"
_OURS: Final = "ours-by-java-sdk"
_SYNCED: Final = "acknowledged when a majority has synced it"
_CALLS_WARM_UP_S: Final = 20.0
_METHOD: Final = (
    "Bodies of 1 KiB. Servers are all processes of a system: our three nodes; RocketMQ's three "
    "brokers in DLedger mode, its name server and its proxy. RocketMQ acknowledges from the "
    "page cache of a majority, and in this mode nothing makes it sync; ours is synced on a "
    "majority. CPU is that of all threads, by message: it changes less with what else a machine "
    "does than a rate, which falls by what others take, and further for who asks for the "
    "processor with fewer threads."
)


def sdk_contestants(turns: Turns) -> Mapping[str, Contestant]:
    """Return both: each with three nodes, and a client of its own."""
    warm_up_s = _CALLS_WARM_UP_S if turns.warm_up_s is None else turns.warm_up_s

    def rows(promise: str) -> JavaSdkRows:
        return JavaSdkRows(seconds=turns.seconds, warm_up_s=warm_up_s, promise=promise)

    return {
        _OURS: Contestant(make=OursBySdk, measure=rows(_SYNCED)),
        ROCKETMQ: Contestant(make=RocketMQ, measure=rows(rocketmq.PROMISE), place=rocketmq.placed),
    }


def about(run: Run) -> str:
    """Return the page's words before the rows of a run; "" if it has none."""
    others = [
        row.figures["others_cores"]
        for row in run.rows
        if row.kind == JAVA_SDK and "others_cores" in row.figures
    ]
    if not others:
        return ""
    facts = run.machine
    text = (
        f"Run of {run.at}, commit `{run.commit}`: load {facts['load_before']} before it began, and "
        f"of {facts['cores']} cores others took {number(median(others))} in the median row "
        f"({number(min(others))} to {number(max(others))})."
    )
    return f"{paragraph(text)}\n{paragraph(_METHOD)}"
