"""Has each test of a group in memory run on each server of client ports: gRPC's, ours, a door's."""

from __future__ import annotations

import pytest

from dledger.server.config import GRPC, NATIVE
from tests.requests import memory_group

_NAME = "client_server"


@pytest.fixture(autouse=True)
def client_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """What serves the clients in this test; None: it has no such group.

    It is autouse, since a fixture that no test asks for is otherwise not set up, parametrized or
    not.
    """
    kind: str | None = getattr(request, "param", None)
    if kind is not None:
        monkeypatch.setattr(memory_group, "client_server", kind)
    return kind


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize the tests of files that make such groups, or whose `group` is one."""
    if hasattr(metafunc.module, "memory_group") or "group" in metafunc.fixturenames:
        metafunc.parametrize(_NAME, [GRPC, NATIVE, memory_group.DOOR], indirect=True)
