"""Options shared by all tests.

Property tests have no deadline for each example: machines are busy, and the examples small.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write what really happens into scenario files; review the diff",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests that share a fixture in one of pytest-xdist's processes: it is dear to make."""
    for item in items:
        if shared := _shared_fixtures(item):
            item.add_marker(pytest.mark.xdist_group(min(shared)))


def _shared_fixtures(item: pytest.Item) -> set[str]:
    """Return where the fixtures of *item* are defined that outlive it."""
    info = getattr(item, "_fixtureinfo", None)
    used = [known[-1] for known in info.name2fixturedefs.values()] if info else []
    return {
        fixture.baseid
        for fixture in used
        if fixture.scope != "function" and fixture.baseid.startswith("tests/")
    }
