"""The same by uvloop, on which nodes run: its transports pause, close and fail in their own way."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from tests.door import test_bounds_of_a_port, test_grpc_calls, test_tls_port

Scenario = Callable[[], Awaitable[None]]


def _scenarios() -> list[Scenario]:
    """Return the tests that need no parameters and no fixtures."""
    return [
        each
        for module in (test_bounds_of_a_port, test_grpc_calls, test_tls_port)
        for name, each in sorted(vars(module).items())
        if name.startswith("test_") and not inspect.signature(each).parameters
    ]


@pytest.mark.parametrize("scenario", _scenarios(), ids=lambda each: each.__name__)
def test_on_uvloop(scenario: Scenario) -> None:
    """Each is its own statement."""

    async def run() -> None:
        await scenario()

    uvloop.run(run())
