"""Consumers with the official SDK through the sidecar: what takes long is delivered once.

A node renews what a push consumer holds while it believes that it lives: for 600 s without
Telemetry on the connection of its calls. Here those are shortened; the message takes its minute.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from dledger.rocketmq import client_registry
from dledger.rpc.status import Code
from tests.system.live_nodes import LiveNodes
from tests.system.test_sidecar_live import TOPIC, Beside
from tests.waiting import eventually

PROGRAM = Path(__file__).with_name("sidecar_consumer.py")
BELIEVED_S = 25.0
"""More than two of an SDK's heartbeats, which come every ten seconds."""
TAKES_S = 60.0
COMES_AGAIN_S = 12.0
"""More than the first lease, and than a look at who is alive."""


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.long
@pytest.mark.found
async def test_a_message_that_takes_a_minute_is_delivered_once(
    unfounded: LiveNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """found: compaction B. With Telemetry answered by the sidecar alone it came twice after 630 s.

    To a push consumer and to a simple one, longer after their start than a client is believed that
    has no Telemetry.
    """
    monkeypatch.setattr(client_registry, "_WITHOUT_TELEMETRY_S", BELIEVED_S)
    await unfounded.found(0)
    async with unfounded.client(0) as client:
        await client.create_topic(TOPIC, queues=1)
    (tmp_path / "home").mkdir()
    async with Beside(unfounded.client_addresses, tmp_path / "spool") as beside:
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, str(PROGRAM), f"127.0.0.1:{beside.port}", TOPIC, str(TAKES_S)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "HOME": str(tmp_path / "home")},
        )
        told: list[list[str]] = []
        reading = asyncio.create_task(_read(program, told))
        try:
            await eventually(lambda: ["started"] in told, "consumers")
            await asyncio.sleep(BELIEVED_S + 5)
            assert await beside.send(1) == Code.OK
            for name in ("push", "simple"):
                await eventually(
                    lambda name=name: ["acked", name] in told,  # type: ignore[misc]
                    f"the end of what the {name} consumer does",
                    2 * TAKES_S,
                )
            await asyncio.sleep(COMES_AGAIN_S)
        finally:
            program.kill()
            await program.wait()
            await reading

    for name in ("push", "simple"):
        assert told.count([name, "body 1"]) == 1


async def _read(program: asyncio.subprocess.Process, told: list[list[str]]) -> None:
    """Take what the program tells, until it ends."""
    assert program.stdout is not None
    while line := await program.stdout.readline():
        if line.startswith(b"["):
            told.append(json.loads(line))
