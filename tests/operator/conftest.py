"""What the operator's tests share: `--rewrite` for golden files, and a real API server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.operator.api_server import ApiServer, running
from tests.operator.live import Operator, Story, chart, new_story


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written instead of compared."""
    return bool(request.config.getoption("--rewrite", default=False))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server with the chart's contents, but for its Deployment."""
    with running(tmp_path_factory.mktemp("api-server"), first=chart()) as made:
        for plural in ("brokergroups", "brokerbackups", "brokeroperations"):
            made.kubectl("wait", "--for=condition=Established", f"crd/{plural}.dledger.io")
        yield made


@pytest.fixture(scope="module")
def operator(server: ApiServer) -> Iterator[Operator]:
    """The operator, acting."""
    made = Operator(server, "first")
    yield made
    assert made.stop() == 0


@pytest.fixture
def operators(server: ApiServer) -> Iterator[list[Operator]]:
    """The operator's processes, each killed but the last one, which runs (`replace_operator`)."""
    made = [Operator(server, "first")]
    yield made
    made[-1].stop()


@pytest.fixture
def namespace(server: ApiServer, request: pytest.FixtureRequest) -> str:
    """A namespace of the test's own, where every pod must be restricted."""
    name = f"t{abs(hash(request.node.nodeid)) % 10**10}"
    server.kubectl("create", "namespace", name)
    server.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    return name


@pytest.fixture
async def story(server: ApiServer, operator: Operator, namespace: str) -> AsyncIterator[Story]:
    """A group `orders` whose nodes answer."""
    async with new_story(server, namespace, "orders") as made:
        yield made
