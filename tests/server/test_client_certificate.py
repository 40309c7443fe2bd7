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
from dledger_operator.cluster import issuing
from dledger_operator.cluster.issuing import Dates, Identity
from dledger_operator.decisions.certificates import LEAF_S
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
        credentials = certificate.credentials()
        assert credentials is not None
        server.add_secure_port(address, credentials)
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
    assert caplog.messages[0].startswith("no new certificate for clients: ")
    assert caplog.messages[0].endswith("clients are shown the last sound one")
    assert await _after(files, port)


async def _after(files: tuple[Path, Path], port: int) -> bool:
    return _renew(files) == await _shown(port)


def _dated(files: tuple[Path, Path], *, begins_s: float, ends_s: float) -> None:
    """Write a pair that holds between two moments, in Unix seconds."""
    dates = Dates(begins_s + 3600, ends_s - LEAF_S)
    authority = issuing.new_authority("clients", Dates(begins_s + 3600, ends_s))
    pair = issuing.issue(authority, Identity("admin", ("orders",)), dates)
    files[0].write_bytes(pair.chain)
    files[1].write_bytes(pair.key)


def test_files_that_are_no_pair_leave_the_port_without_a_certificate(
    files: tuple[Path, Path],
) -> None:
    """It says which, and what follows; a sound pair is taken as soon as it is there."""
    _renew(files)
    files[1].write_bytes(self_signed("other", HOST).key)
    certificate = _certificate(files)
    following = certificate.following()

    assert "tls.crt and" in certificate.fault
    assert "tls.key are not a pair" in certificate.fault
    assert certificate.fault.endswith("the port for TLS takes nobody until there is one")
    assert certificate.credentials() is None
    with pytest.raises(OSError, match="no certificate yet"):
        _ = following.context
    _renew(files)
    assert certificate.credentials() is not None
    assert following.context
    assert certificate.fault == ""


def test_a_certificate_that_openssl_alone_reads_keeps_no_node_from_starting(
    files: tuple[Path, Path],
) -> None:
    """Of a version that there is not: OpenSSL shows it, and nobody can say when it ends."""
    der = _renew(files)
    version_3, version_2 = b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x01"
    assert der.count(version_3) == 1
    files[0].write_text(ssl.DER_cert_to_PEM_cert(der.replace(version_3, version_2)))

    certificate = _certificate(files)

    assert certificate.shown is None
    assert "version" in certificate.fault


def test_a_certificate_that_has_ended_is_shown_rather_than_none(files: tuple[Path, Path]) -> None:
    """Most SDKs take any; it is told all the same."""
    _dated(files, begins_s=1_000, ends_s=2_000)

    certificate = ClientCertificate(*map(str, files), name="orders-0", host=HOST)

    assert certificate.shown is not None
    assert certificate.shown.ends_s == 2_000
    assert "it ended at 1970-01-01 00:33 UTC" in certificate.fault
    assert certificate.fault.endswith("clients are shown it all the same")


def test_a_certificate_that_holds_is_not_given_up_for_one_that_does_not(
    files: tuple[Path, Path],
) -> None:
    """Until it has ended itself, or the other begins."""
    now_s = 10_000.0
    _dated(files, begins_s=1_000, ends_s=20_000)
    certificate = ClientCertificate(
        *map(str, files), name="orders-0", host=HOST, now_s=lambda: now_s
    )
    _dated(files, begins_s=12_000, ends_s=90_000)

    certificate.refresh()
    assert certificate.shown is not None
    assert certificate.shown.ends_s == 20_000
    assert certificate.fault.endswith("clients are shown the last sound one")
    now_s = 12_000.0
    certificate.refresh()
    assert certificate.shown.ends_s == 90_000
    assert certificate.fault == ""
    now_s = 90_000.0
    certificate.refresh()
    assert "it ended at" in certificate.fault


def test_a_certificate_of_the_nodes_own_is_nobodys_to_watch() -> None:
    """It is made anew at each start, for ten years."""
    certificate = ClientCertificate("", "", name="orders-0", host=HOST)

    assert (certificate.is_mounted, certificate.fault) == (False, "")
    assert certificate.credentials() is not None
