"""Options shared by all tests.

Property tests have no deadline for each example: machines are busy, and the examples small.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell has what it starts in the background ignore Ctrl-C, and so would the programs under
    # test, which inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write what really happens into scenario files; review the diff",
    )


@pytest.fixture(autouse=True)
def _log_as_it_was() -> Iterator[None]:
    """Let the next test hear what the nodes log: simulator and fuzzers silence a whole process."""
    logger = logging.getLogger("dledger")
    level, disabled = logger.level, logging.root.manager.disable
    yield
    logger.setLevel(level)
    logging.disable(disabled)


_TOGETHER = ("tests/operator/", "tests/pipeline/", "tests/sim/test_paths.py")
"""What shares an API server, Spark and a group, or what was counted: dear to have twice."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give tests one by one to whichever process is idle, but each of `_TOGETHER` to one of them.

    Those come first, being many. (``--dist loadgroup`` does not know its groups with pytest 9.2.)
    """
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415, only where it is asked for

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            return next((folder for folder in _TOGETHER if nodeid.startswith(folder)), nodeid)

    return Scheduling(config, log)
