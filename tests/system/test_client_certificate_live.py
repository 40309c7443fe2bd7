"""Whole nodes whose certificate for clients is bad when they start: served by each kind of server.

What is wrong with it never keeps a node from starting, nor from its other ports, and a sound pair
is taken without a restart.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dledger.client import Record
from dledger.server.client_certificate import self_signed
from dledger.server.config import GRPC, NATIVE
from e2e.harness.ports import HOST
from tests.system.live_nodes import LiveNodes
from tests.waiting import eventually, eventually_async

_TLS_PORT = 100
_METRICS = ("refused", "expiry_timestamp_seconds")


@pytest.fixture(
    params=[{"client_server": GRPC}, {"client_server": NATIVE}, {"door_processes": 1}],
    ids=["grpc", "native", "a door process"],
)
async def live(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[LiveNodes]:
    """Return a node that is not started yet, with garbage for a certificate."""
    chain, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    chain.write_bytes(b"garbage")
    key.write_bytes(b"garbage")
    nodes = LiveNodes(tmp_path)
    port = nodes._port + _TLS_PORT
    nodes.where(
        client_tls_port=port, tls_cert_file=str(chain), tls_key_file=str(key), **request.param
    )
    yield nodes
    await nodes.stop()


async def _shown(nodes: LiveNodes) -> str:
    """Return the certificate at the TLS port; empty if nobody is taken there."""
    address = HOST, nodes.settings(0).client_tls_port
    try:
        return await asyncio.to_thread(ssl.get_server_certificate, address, timeout=3)
    except OSError:
        return ""


def _metric(nodes: LiveNodes, name: str) -> float | None:
    value: float | None = nodes.nodes[0]._metrics.registry.get_sample_value(
        f"dledger_client_certificate_{name}", {"group": "orders", "node": "orders-0"}
    )
    return value


async def test_a_node_with_a_bad_certificate_for_clients_starts_and_takes_a_good_one(
    live: LiveNodes, tmp_path: Path
) -> None:
    """Its other ports serve meanwhile; status and metrics say what is wrong, until it is not."""
    await live.found(0)
    async with live.client(0) as client:
        await client.append("t", [Record(body=b"x")])
    assert await _shown(live) == ""
    assert "not a pair" in live.status(0).client_certificate_fault
    await eventually(lambda: [_metric(live, name) for name in _METRICS] == [1, None])

    pair = self_signed("orders", HOST)
    (tmp_path / "tls.key").write_bytes(pair.key)
    (tmp_path / "tls.crt").write_bytes(pair.chain)

    async def is_shown() -> bool:
        return await _shown(live) == pair.chain.decode()

    await eventually_async(is_shown)
    await eventually(lambda: _metric(live, "refused") == 0)
    assert (_metric(live, "expiry_timestamp_seconds") or 0) > time.time()
    assert live.status(0).client_certificate_fault == ""
    assert live.status(0).client_certificate_ends_ms > time.time() * 1000

    (tmp_path / "tls.crt").write_bytes(b"garbage")
    await eventually(lambda: _metric(live, "refused") == 1)
    assert await is_shown()
