"""What serves the clients of a group in memory: ours, or in tests of the contract each server."""

from __future__ import annotations

import pytest

from dledger.server.config import GRPC, NATIVE
from tests.requests import memory_group

_NAME = "client_server"


@pytest.fixture(autouse=True)
def client_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What serves the clients in this test.

    It is autouse, since a fixture that no test asks for is otherwise not set up, parametrized or
    not.
    """
    kind: str = getattr(request, "param", NATIVE)
    monkeypatch.setattr(memory_group, "client_server", kind)
    return kind


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of the contract (docs/internals/edge-tests.md) on each of the three."""
    if metafunc.definition.get_closest_marker("contract"):
        metafunc.parametrize(_NAME, [GRPC, NATIVE, memory_group.DOOR], indirect=True)
