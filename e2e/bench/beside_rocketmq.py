"""The RocketMQ Java SDK with our nodes and with RocketMQ itself, in turns, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from e2e.bench import rocketmq
from e2e.bench.contest import Contestant, Turns
from e2e.bench.java_sdk import JavaSdkRows, OursBySdk
from e2e.bench.rocketmq import RocketMQ

ROCKETMQ: Final = "rocketmq"
_OURS: Final = "ours-by-java-sdk"
_SYNCED: Final = "acknowledged when a majority has synced it"
_CALLS_WARM_UP_S: Final = 20.0


def sdk_contestants(turns: Turns) -> Mapping[str, Contestant]:
    """Return both: each with three nodes, and a client of its own."""
    warm_up_s = _CALLS_WARM_UP_S if turns.warm_up_s is None else turns.warm_up_s

    def rows(promise: str) -> JavaSdkRows:
        return JavaSdkRows(seconds=turns.seconds, warm_up_s=warm_up_s, promise=promise)

    return {
        _OURS: Contestant(make=OursBySdk, measure=rows(_SYNCED)),
        ROCKETMQ: Contestant(make=RocketMQ, measure=rows(rocketmq.PROMISE), place=rocketmq.placed),
    }
