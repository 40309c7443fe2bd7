from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.replica.group import DriverGroup


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[DriverGroup]:
    """Return a group of three, not started; stopped afterwards."""
    made = DriverGroup(tmp_path)
    yield made
    await made.stop()
