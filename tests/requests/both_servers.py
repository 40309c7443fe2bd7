"""Has each test of a group in memory run on each server of client ports: gRPC's, ours, a door's."""

from __future__ import annotations

import pytest

from dledger.server.config import GRPC, NATIVE
from tests.requests import memory_group

_NAME = "client_server"


@pytest.fixture
def client_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What serves the clients in this test."""
    kind: str = request.param
    monkeypatch.setattr(memory_group, "client_server", kind)
    return kind


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize the tests of files that make such groups, or whose `group` is one."""
    if not hasattr(metafunc.module, "memory_group") and "group" not in metafunc.fixturenames:
        return
    if _NAME not in metafunc.fixturenames:
        metafunc.fixturenames.insert(0, _NAME)
    metafunc.parametrize(_NAME, [GRPC, NATIVE, memory_group.DOOR], indirect=True)
