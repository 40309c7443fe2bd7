"""What tests of whole nodes begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dledger.server import node
from tests.system.live_nodes import LiveNodes


@pytest.fixture
async def unfounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LiveNodes]:
    """Return nodes of no group yet; they end at once, without waiting for calls or a successor."""
    made = LiveNodes(tmp_path)
    monkeypatch.setattr(node, "_CALLS_GRACE_S", 0)
    yield made
    monkeypatch.setattr(node, "_TRANSFER_DEADLINE_S", 0)
    await made.stop()


@pytest.fixture
async def live(unfounded: LiveNodes) -> LiveNodes:
    """Return a group of three."""
    await unfounded.found(0, 1, 2)
    return unfounded
