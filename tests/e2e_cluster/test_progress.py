"""Demo and stories give up on a client that stands still, not on one that is slow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from e2e.demo import __main__ as demo
from e2e.demo.demos import Timeline
from e2e.harness import world
from e2e.harness.progress import ProgressWatch
from e2e.harness.waiting import HarnessError
from e2e.harness.world import Workload


def test_what_is_slow_is_not_stuck() -> None:
    """One more a minute, for ten hours."""
    watch = ProgressWatch(90, 0)

    assert not any(watch.is_stuck((n, 0), 60 * n) for n in range(1, 600))


@pytest.mark.parametrize(
    "counts",
    [
        pytest.param([(0, 0)] * 20, id="it never began"),
        pytest.param([(7, 3)] * 20, id="it stopped"),
        pytest.param([(9, 0), (3, 0)] * 10, id="it goes round in a circle"),
    ],
)
def test_what_stands_still_is_stuck_after_its_patience(counts: list[tuple[int, int]]) -> None:
    """Not before; a count that falls and rises again is no progress."""
    watch = ProgressWatch(90, 0)

    found = [watch.is_stuck(each, 10 * n) for n, each in enumerate(counts)]

    assert found == [10 * n > 90 for n in range(20)]


def test_either_count_may_rise() -> None:
    """Once all is sent, what is received counts, and what was sent is not told any more."""
    watch = ProgressWatch(90, 0)

    assert not watch.is_stuck((5, 0), 80)
    assert not watch.is_stuck((0, 1), 160)
    assert not watch.is_stuck((0, 2), 240)
    assert watch.is_stuck((5, 2), 331)


class Pod(Workload):
    """A client whose newest lines are given; each look takes ten seconds of the clock."""

    def __init__(self, *newest: dict[str, Any]) -> None:
        self.name, self._looks = "traffic", iter(newest)
        self._printed: list[dict[str, Any]] = []
        self._namespace: Any = SimpleNamespace(phase=lambda _: "Running")

    def lines(self) -> list[dict[str, Any]]:
        self._printed += [line for line in [next(self._looks, None)] if line]
        return self._printed

    def tail(self) -> str:
        return ""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time goes on by sleeping alone, ten times as fast as is asked for."""
    now = SimpleNamespace(s=0.0)

    def sleep(seconds: float) -> None:
        now.s += 10 * seconds

    monkeypatch.setattr(world, "time", SimpleNamespace(monotonic=lambda: now.s, sleep=sleep))


def produced(acked: int, at: int) -> dict[str, Any]:
    return {"progress": "produce", "acked": acked, "atMs": at}


def test_acks_are_waited_for_as_long_as_they_come(clock: None) -> None:
    """For 600 s here, one ack every 30 s; the one that was asked for ends it."""
    pod = Pod({}, *(produced(n, n) for n in range(1, 30)))

    assert pod.wait_acked(20) == 20
    assert pod.wait_acked(5) >= 20


def test_a_client_that_only_says_so_is_stuck(clock: None) -> None:
    """It prints a line a second all the same."""
    pod = Pod(*(produced(7, at) for at in range(100)))

    with pytest.raises(HarnessError, match="got nothing on for 300 s"):
        pod.wait_acked(20)


def test_a_client_that_ended_too_early_is_told(clock: None) -> None:
    """Its summary is its last line."""
    pod = Pod(produced(3, 1), {"summary": True, "acked": 4})

    with pytest.raises(HarnessError, match="ended with 4 acks"):
        pod.wait_acked(20)


class Client:
    """As `world.Workload`; its leader is dead for good."""

    ended = 0
    error: BaseException = HarnessError("traffic got nothing on for 300 s")

    def __init__(self, *_: Any) -> None:
        """Take what a pod takes."""

    def start(self) -> None:
        """Begin."""

    def wait_acked(self, _: int) -> int:
        raise Client.error

    def end(self) -> None:
        Client.ended += 1


@pytest.mark.parametrize("error", [HarnessError("stuck"), KeyboardInterrupt()])
def test_a_demo_that_gives_up_leaves_no_client_at_work(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went on writing, on the machine of who had seen the demo fail."""
    monkeypatch.setattr(demo, "Workload", Client)
    monkeypatch.setattr(Client, "error", error)
    monkeypatch.setattr(Client, "ended", 0)
    group: Any = SimpleNamespace(namespace=None)
    image: Any = None

    with pytest.raises(type(error)):
        demo.traffic(group, image, Timeline(), 100)

    assert Client.ended == 1
