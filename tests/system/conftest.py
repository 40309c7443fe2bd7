"""What tests of whole nodes begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dledger.server import node
from tests.system.live_nodes import LiveNodes


@pytest.fixture
async def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LiveNodes]:
    """Return a founded group of three that ends without ceremony."""
    made = LiveNodes(tmp_path)
    monkeypatch.setattr(node, "_CALLS_GRACE_S", 0)
    await made.found(0, 1, 2)
    yield made
    monkeypatch.setattr(node, "_TRANSFER_DEADLINE_S", 0)
    await made.stop()
