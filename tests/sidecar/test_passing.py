"""While the group is away, some calls are answered here, and all others refused by name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dledger.door.contract import Code as GrpcCode
from dledger.door.contract import Headers, Pairs, Unary
from dledger.files.memory_files import MemoryFiles
from dledger.rpc.rocketmq_stubs import service
from dledger.rpc.status import Code
from dledger.sidecar.passing import Passing
from dledger.sidecar.reach import Reach
from dledger.sidecar.route_cache import RouteCache
from dledger.sidecar.routes import Here
from dledger.sidecar.sends import Sends
from dledger.sidecar.upstream import Metadata, path_of
from dledger.spool.counters import Counts
from tests.sidecar.fakes import LOST, REFUSED, headers


class Away:
    """Ways to a group that nobody reaches, or whose answers are lost."""

    tries = 2

    def __init__(self, error: Exception) -> None:
        self._error = error

    def of(self, _: Headers) -> Away:
        """Return the one way there is."""
        return self

    async def unary(self, path: str, body: bytes, metadata: Metadata, timeout_s: float) -> bytes:
        """Fail."""
        del path, body, metadata, timeout_s
        raise self._error


async def run_here(call: Callable[[], None]) -> None:
    """Run a call of the disk."""
    call()


def passing(error: Exception) -> Passing:
    """Return the handlers of a sidecar whose group is away."""
    away: Any = Away(error)
    reach = Reach()
    run: Callable[[Callable[[], None]], Awaitable[None]] = run_here
    return Passing(
        away,
        Sends(away, reach, Counts(), on_spooled=lambda: None, on_broken=lambda _: None),
        RouteCache(MemoryFiles(), Path("/spool"), run),
        named={},
        reach=reach,
        here=Here("127.0.0.1", 8081),
    )


async def called(name: str, error: Exception) -> Any:
    """Return the answer to an empty call of that name."""
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def fail(code: GrpcCode, message: str, trailers: Pairs = ()) -> None:
        raise AssertionError((code, message, trailers))

    handler = passing(error).handlers()[path_of(name)]
    assert isinstance(handler, Unary)
    handler.serve(headers(), b"", answer.set_result, fail)
    return getattr(service, f"{name}Response").FromString(await answer)


@pytest.mark.parametrize("error", [REFUSED, LOST], ids=["nobody is reached", "the answer is lost"])
@pytest.mark.parametrize("name", ["Heartbeat", "NotifyClientTermination"])
async def test_what_the_group_learns_again_is_answered_here(name: str, error: Exception) -> None:
    """SDKs count a client without heartbeats as unhealthy."""
    assert (await called(name, error)).status.code == Code.OK


@pytest.mark.parametrize("error", [REFUSED, LOST], ids=["nobody is reached", "the answer is lost"])
@pytest.mark.parametrize(
    "name", ["AckMessage", "ChangeInvisibleDuration", "EndTransaction", "RecallMessage"]
)
async def test_what_cannot_wait_is_refused_by_name(name: str, error: Exception) -> None:
    """OK would be a lie: nothing is kept of it."""
    response = await called(name, error)

    assert response.status.code == Code.HA_NOT_AVAILABLE
    assert f"{name} waits for nobody" in response.status.message
