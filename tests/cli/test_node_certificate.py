"""A node whose certificate is not made yet: it waits, and is told what for."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from dledger.cli import node_command
from dledger.rpc.peer_tls import PeerTls
from dledger.server.config import Settings
from tests.system.peer_certificates import Mounted


def _settings(directory: Path) -> Settings:
    return Settings(
        name="orders-0",
        group="orders",
        data_dir=directory,
        advertise_host="127.0.0.1",
        peer_tls_dir=str(directory / "peer-tls"),
    )


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


async def test_a_node_waits_for_a_certificate_that_is_not_made_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its Secret has the bundle alone; what is missing is told once."""
    monkeypatch.setattr(node_command, "_CERTIFICATE_LOOK_S", 0.01)
    mounted = Mounted(tmp_path / "peer-tls")
    mounted.write({})
    starting = asyncio.create_task(
        node_command._waits_for_certificate(_settings(tmp_path), _future())
    )
    await asyncio.sleep(0.1)
    assert not starting.done()

    mounted.write({"orders-0": mounted.member("orders-0")})

    assert await starting
    (told,) = [each for each in caplog.messages if "waits for up to 240 s" in each]
    assert "tls.crt" in told


async def test_a_node_that_waits_can_be_told_to_end(tmp_path: Path) -> None:
    """A pod that is deleted meanwhile is gone at once."""
    Mounted(tmp_path / "peer-tls").write({})
    ended = _future()
    starting = asyncio.create_task(node_command._waits_for_certificate(_settings(tmp_path), ended))
    await asyncio.sleep(0)

    ended.set_result(None)

    assert not await starting


async def test_a_node_gives_up_waiting_and_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The last word says which file is wrong. For a directory that is missing it does not wait."""
    monkeypatch.setattr(node_command, "_CERTIFICATE_WAIT_S", 0.05)
    monkeypatch.setattr(node_command, "_CERTIFICATE_LOOK_S", 0.01)
    caplog.set_level(logging.ERROR)
    assert await node_command._waits_for_certificate(_settings(tmp_path), _future())
    assert caplog.messages == []
    Mounted(tmp_path / "peer-tls").write({})

    assert await node_command._waits_for_certificate(_settings(tmp_path), _future())
    with pytest.raises(OSError, match=r"no certificate for peers: .*tls\.crt"):
        PeerTls(tmp_path / "peer-tls", "orders-0")
