"""What every test of the simulator leaves behind: nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dledger_sim.loop import ProcessLoop


@pytest.fixture(autouse=True)
def _no_process_outlives_its_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A run that a check ends, ends amid the first steps of a process: its tasks never began.

    Whichever test came next would be told of them by the garbage collector.
    """
    loops: list[ProcessLoop] = []
    begin = ProcessLoop.__init__

    def begin_and_note(self: ProcessLoop, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        loops.append(self)

    monkeypatch.setattr(ProcessLoop, "__init__", begin_and_note)
    yield
    for loop in loops:
        loop.kill()
