"""What tests of whole nodes begin with."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dledger import node

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "node")]

from live_nodes import LiveNodes  # noqa: E402 - it lies in the path above


@pytest.fixture
async def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LiveNodes]:
    """Return a founded group of three that ends without ceremony."""
    made = LiveNodes(tmp_path)
    monkeypatch.setattr(node, "_CALLS_GRACE_S", 0)
    await made.found(0, 1, 2)
    yield made
    monkeypatch.setattr(node, "_TRANSFER_DEADLINE_S", 0)
    await made.stop()
