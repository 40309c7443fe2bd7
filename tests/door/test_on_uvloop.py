"""The same by uvloop, on which nodes run: its transports pause, close and fail in their own way."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from types import ModuleType

import pytest
import uvloop

from tests.door import test_bounds_of_a_port, test_grpc_calls, test_tls_port
from tests.door.ports import OVER_TLS

Scenario = Callable[[], Awaitable[None]]


def _scenarios(*modules: ModuleType) -> list[Scenario]:
    """Return the tests that need no parameters and no fixtures."""
    return [
        each
        for module in modules
        for name, each in sorted(vars(module).items())
        if name.startswith("test_") and not inspect.signature(each).parameters
    ]


@pytest.mark.parametrize(
    "scenario",
    _scenarios(test_bounds_of_a_port, test_grpc_calls, test_tls_port),
    ids=lambda each: each.__name__,
)
def test_on_uvloop(scenario: Scenario) -> None:
    """Each is its own statement."""

    async def run() -> None:
        await scenario()

    uvloop.run(run())


BEFORE_TLS = {test_bounds_of_a_port.test_connections_beyond_the_number_are_closed_at_once}
"""What happens before the first byte of TLS, so that its client has no handshake."""


@pytest.mark.parametrize(
    "scenario",
    [each for each in _scenarios(test_bounds_of_a_port) if each not in BEFORE_TLS],
    ids=lambda each: each.__name__,
)
def test_over_tls(scenario: Scenario) -> None:
    """Each bound of a port holds behind TLS, too, with ciphertext in the sockets' buffers."""

    async def run() -> None:
        OVER_TLS.set(True)
        await scenario()

    uvloop.run(run())
