"""A port that stops, and clients that say goodbye first: what runs ends well, and nothing fails."""

from __future__ import annotations

import asyncio
import logging

import pytest

from dledger.door import connection
from tests.door.ports import door
from tests.door.raw import frame, prefixed, raw_client
from tests.waiting import eventually

pytestmark = pytest.mark.found

PING, ACK = 6, 1


@pytest.mark.parametrize("runs", [True, False])
async def test_a_client_that_answers_goaway_with_its_own_is_drained(
    runs: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As grpc-js does: in one write with the acknowledgement of the PING behind ours."""
    async with door() as port, raw_client(port.port) as client:
        await client.hello()
        if runs:
            stream_id = client.request("/t/Hold")
            client.h2.send_data(stream_id, prefixed(1) + b"x", end_stream=True)
            await client.flush()
            await eventually(lambda: port.seen.held)
        leaving = asyncio.create_task(port.server.stop(20))
        # By hand: the library acknowledges a PING, and says nothing more, before it is asked.
        data = b""
        while connection._DRAINING not in data:
            data += await client._reader.read(1 << 16)
        client.h2.send_goaway(last_stream_id=0)
        bye = client.h2.data_to_send()
        await client.raw(frame(PING, 0, connection._DRAINING, ACK) + bye)

        if runs:
            await asyncio.sleep(0.05)  # what it must not do is cut the call
            answer, _ = port.seen.held[0]
            answer(b"done")
            assert (await client.status(stream_id))[0] == 0
        async with asyncio.timeout(20):
            await leaving

    failed = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert not failed, failed


async def test_a_client_that_left_before_the_port_stops_is_drained(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its GOAWAY came, and a call of its runs on."""
    async with door() as port, raw_client(port.port) as client:
        await client.hello()
        stream_id = client.request("/t/Hold")
        client.h2.send_data(stream_id, prefixed(1) + b"x", end_stream=True)
        client.h2.send_goaway(last_stream_id=0)
        await client.flush()
        await eventually(lambda: port.seen.held)
        leaving = asyncio.create_task(port.server.stop(20))
        await asyncio.sleep(0)
        port.seen.held[0][0](b"done")

        assert (await client.status(stream_id))[0] == 0
        async with asyncio.timeout(20):
            await leaving

    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]
