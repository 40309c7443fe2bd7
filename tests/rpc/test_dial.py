"""Every channel of ours begins in one place, and waits for no DNS that does not answer."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys

import grpc
import grpc.aio
import pytest

from dledger.rpc import dial as dialled
from dledger.rpc.channel import OPTIONS
from dledger.rpc.mutual_tls import MutualTls
from e2e.cluster.pki import Authority
from e2e.harness.swallowing_dns import inside
from tests.house.sources import ROOT

SHIPPED = ("node/dledger", "operator", "pipeline")
HOME = "node/dledger/rpc/dial.py"
MAKING = {"insecure_channel", "secure_channel"}
CONNECTING = {"create_connection", "open_connection", "getaddrinfo"}
ASKING = {"host_to_ask", "dial", "dial_blocking"}


def _called(path: str) -> set[str]:
    """Return the names of what a file calls."""
    calls = [
        node.func
        for node in ast.walk(ast.parse((ROOT / path).read_text("utf-8")))
        if isinstance(node, ast.Call)
    ]
    attributes = {call.attr for call in calls if isinstance(call, ast.Attribute)}
    return attributes | {call.id for call in calls if isinstance(call, ast.Name)}


FILES = [
    str(path.relative_to(ROOT))
    for folder in SHIPPED
    for path in sorted((ROOT / folder).rglob("*.py"))
]


def test_every_channel_begins_in_one_place() -> None:
    """There names are made whole; a channel made elsewhere would search for them."""
    assert [path for path in FILES if _called(path) & MAKING] == [HOME]


def test_every_other_connection_asks_for_whole_names_too() -> None:
    """Frames between nodes, the link to the leader, and the look whether a peer speaks TLS."""
    connecting = [path for path in FILES if _called(path) & CONNECTING]

    assert connecting
    assert [path for path in connecting if not _called(path) & ASKING] == []


@pytest.mark.parametrize("name", ["", "orders-0"])
async def test_a_server_is_known_by_the_name_as_it_was_given(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its certificate has no name of the cluster's domain, and need not."""
    authority, host = Authority("dial"), "orders-0.orders-nodes.ns.svc"
    pair = authority.issue("node", hosts=("orders-0", host))
    key, chain = pair.key.encode(), pair.certificate.encode()
    trusted = authority.pair.certificate.encode()
    server = grpc.aio.server()
    credentials = grpc.ssl_server_credentials([(key, chain)], trusted, True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    monkeypatch.setattr(dialled, "address_to_ask", lambda _: f"localhost:{port}")

    tls = MutualTls(name=name, trusted=trusted, chain=chain, key=key)
    try:
        async with dialled.dial(f"{host}:{port}", OPTIONS, tls) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary("/no.Service/Call")(b"", timeout=10)
    finally:
        await server.stop(None)

    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


CALLS = """
import asyncio, json, time
from concurrent import futures
import dledger
import grpc, grpc.aio
from dledger.client import AdminClient, Client
from dledger.client.produce_call import GrpcConnection
from dledger.errors import DledgerError
from dledger.rpc.mutual_tls import speaks_tls
from dledger.rpc.peer_tls import PeerChannel
from dledger_pipeline.errors import ExportError
from dledger_pipeline.log.export_client import ExportClient

PEER, ABSENT = "orders-0.orders-nodes.ns.svc:20911", "absent-1.orders-nodes.ns.svc:20911"
took = {}

async def timed(what, call):
    began_s = time.monotonic()
    try:
        await asyncio.wait_for(call, 20)
    except (DledgerError, ExportError, grpc.aio.AioRpcError, OSError):
        pass
    took[what] = time.monotonic() - began_s

async def client():
    async with Client("orders:8081", timeout_s=15) as connected:
        await connected.append("t", [b"x"])

async def admin(address):
    async with AdminClient(address, timeout_s=15) as connected:
        await connected.status()

async def producing():
    async with GrpcConnection("orders:8081") as connected:
        async for _ in connected.produce(iter(()), 15):
            pass

async def peer(address):
    channel = PeerChannel(address, "orders-0", None)
    try:
        await channel.unary_unary("/a/b")(b"", timeout=15)
    finally:
        await channel.close()

def export():
    with ExportClient(PEER, timeout_s=15) as connected:
        connected.plan()

async def main():
    server = grpc.aio.server()
    for port in (8081, 20911):
        server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await timed("client", client())
    await timed("admin", admin(PEER))
    await timed("admin, absent", admin(ABSENT))
    await timed("producing", producing())
    await timed("peer", peer(PEER))
    await timed("peer, absent", peer(ABSENT))
    await timed("export", asyncio.to_thread(export))
    await timed("TLS, absent", asyncio.to_thread(speaks_tls, ABSENT))
    await server.stop(None)

asyncio.run(main())
print(json.dumps(took))
"""
"""Prints how long each kind of connection took to be answered, or refused by name."""


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a network namespace")
def test_no_connection_waits_for_a_dns_that_does_not_answer() -> None:
    """With gRPC's resolver or searched names: 3 s for each, and 10 s for a pod that is away."""
    ran = subprocess.run(
        inside(sys.executable, "-c", CALLS),
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    took = json.loads(ran.stdout)
    assert {what: s for what, s in took.items() if s > 1.0} == {}
