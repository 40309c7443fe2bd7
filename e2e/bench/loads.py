"""The programs that load a group, and the one language in which all of them are asked.

One JSON object a line on standard input, one a line in answer:

- ``{"mode": "append", "node", "size_bytes", "batch", "window", "seconds", "rate"}``: *window*
  requests under way at once, through node *node*, for *seconds*; with a *rate* above 0, requests
  are due at fixed times instead and their latency counts from then. Answers
  ``{"requests", "failures", "seconds", "latencies_us"}``. A program that knows further modes of
  this shape (``read``, SDK calls) documents them itself.
- ``{"mode": "steady", "node", "size_bytes", "pace_s"}``: one writer in the background, one request
  at a time, trying again until it is stopped. ``acks`` takes ``{"acks_ns", "failures"}`` since
  the last question, on the machine's monotonic clock; ``stop`` ends it and does the same.

A program ends when its input does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from e2e.bench.cases import Case
from e2e.bench.figures import latency_figures
from e2e.harness.processes import ChildProcess

_ANSWER_S: Final = 60.0
_STEADY_BYTES: Final = 128
PACE_S: Final = 0.002
"""Between an acknowledgement and the steady writer's next request: how fine a gap can be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What came of a load.

    Attributes:
        requests: Answered in time (closed loop) or at all (open loop).
        failures: Requests that failed.
        seconds: How long it was loaded.
        latencies_us: Of each request that was answered.
    """

    requests: int
    failures: int
    seconds: float
    latencies_us: Sequence[float]

    def figures(self, batch: int) -> dict[str, float]:
        """Return messages, as many a second, failures and latencies."""
        messages = float(self.requests * batch)
        counts = {"messages": messages, "failures": float(self.failures)}
        return {"per_s": messages / self.seconds} | counts | latency_figures(self.latencies_us)


class Load:
    """A running load program."""

    def __init__(self, child: ChildProcess) -> None:
        self.child = child

    def run(
        self, case: Case, seconds: float, *, mode: str = "append", node: int = 0, rate: float = 0
    ) -> Loaded:
        """Load the group; *rate* is in requests a second, 0 for a closed loop."""
        answer = self.ask(
            mode, node=node, size_bytes=case.size_bytes, batch=case.batch, window=case.window,
            seconds=seconds, rate=rate,
        )  # fmt: skip
        return Loaded(**answer)

    def start_steady(self, *, node: int) -> None:
        """Start the steady writer, through *node* if the system's client lets one choose."""
        self.ask("steady", node=node, size_bytes=_STEADY_BYTES, pace_s=PACE_S)

    def acks_s(self) -> list[float]:
        """Return when the steady writer had acknowledgements, since the last question."""
        return _seconds(self.ask("acks"))

    def stop_steady(self) -> list[float]:
        """End the steady writer; return the acknowledgements since the last question."""
        return _seconds(self.ask("stop"))

    def ask(self, mode: str, *, answer_s: float = _ANSWER_S, **more: Any) -> dict[str, Any]:
        """Ask the program for one thing; it answers *answer_s* after the ``seconds`` it takes."""
        timeout_s = answer_s + more.get("seconds", 0)
        return self.child.ask({"mode": mode, **more}, timeout_s=timeout_s)


def _seconds(answer: dict[str, Any]) -> list[float]:
    return [ns / 1e9 for ns in answer["acks_ns"]]
