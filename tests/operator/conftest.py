"""What the operator's tests share: `--rewrite` for golden files."""

from __future__ import annotations

import pytest


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written instead of compared."""
    return bool(request.config.getoption("--rewrite", default=False))
