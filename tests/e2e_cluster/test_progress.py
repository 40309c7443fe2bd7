"""Demo and stories give up on a client that stands still, not on one that is slow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from e2e.demo import __main__ as demo
from e2e.demo.demos import Timeline
from e2e.harness.progress import ProgressWatch
from e2e.harness.waiting import HarnessError


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
