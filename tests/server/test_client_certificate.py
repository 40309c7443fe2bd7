"""The certificate of the clients' TLS port: renewed without a restart, and never for the worse."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from dledger.door.server import DoorServer
from dledger.server.client_certificate import ClientCertificate, self_signed
from dledger.server.config import GRPC, NATIVE
from e2e.harness.ports import HOST, free_ports


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Return where the chain and the key are."""
    return tmp_path / "tls.crt", tmp_path / "tls.key"


def _renew(files: tuple[Path, Path]) -> bytes:
    """Write another pair, each file at once; return its certificate as the handshake has it."""
    pair = self_signed("orders", HOST)
    for path, text in zip(files, (pair.chain, pair.key), strict=True):
        fresh = path.with_suffix(".fresh")
        fresh.write_bytes(text)
        fresh.rename(path)
    return ssl.PEM_cert_to_DER_cert(pair.chain.decode())


def _certificate(files: tuple[Path, Path]) -> ClientCertificate:
    return ClientCertificate(str(files[0]), str(files[1]), name="orders-0", host=HOST)


@pytest.fixture(params=[GRPC, NATIVE])
async def port(files: tuple[Path, Path], request: pytest.FixtureRequest) -> AsyncIterator[int]:
    """Return the port of a server that shows what is in the files."""
    _renew(files)
    (number,) = free_ports(1)
    address, certificate = f"{HOST}:{number}", _certificate(files)
    server: Any
    if request.param == GRPC:
        server = grpc.aio.server()
        server.add_secure_port(address, certificate.credentials())
    else:
        server = DoorServer(address, {}, tls=certificate.following())
    await server.start()
    yield number
    await server.stop(0)


async def _shown(port: int) -> bytes:
    pem = await asyncio.to_thread(ssl.get_server_certificate, (HOST, port))
    return ssl.PEM_cert_to_DER_cert(pem)


async def test_a_renewed_certificate_is_shown_to_the_next_connection(
    files: tuple[Path, Path], port: int
) -> None:
    """A Secret is renewed in place; nobody restarts for that."""
    before = await _shown(port)

    renewed = _renew(files)

    assert await _shown(port) == renewed != before


@pytest.mark.parametrize("broken", ["cut", "of another", "gone", "no key at all"])
async def test_a_damaged_certificate_leaves_the_last_sound_one(
    files: tuple[Path, Path], port: int, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told once, and a sound one is taken after it."""
    chain, key = files
    before = await _shown(port)
    match broken:
        case "cut":
            chain.write_bytes(chain.read_bytes()[:100])
        case "of another":
            key.write_bytes(self_signed("other", HOST).key)
        case "gone":
            key.unlink()
        case _:
            key.write_bytes(b"")

    with caplog.at_level(logging.ERROR):
        assert [await _shown(port), await _shown(port)] == [before, before]

    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("clients are shown the last sound certificate: ")
    assert await _after(files, port)


async def _after(files: tuple[Path, Path], port: int) -> bool:
    return _renew(files) == await _shown(port)


def test_a_node_does_not_start_with_files_that_are_no_pair(files: tuple[Path, Path]) -> None:
    """It says which."""
    _renew(files)
    files[1].write_bytes(self_signed("other", HOST).key)

    with pytest.raises(OSError, match=r"tls\.crt and .*tls\.key are not a pair"):
        _certificate(files)
