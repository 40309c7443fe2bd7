"""Telemetry streams when there are as many as there may be: a client that starts is served."""

from __future__ import annotations

import pytest

from dledger.common.shares import NO_ROOM
from dledger.door.contract import Code, Failed
from dledger.rocketmq import telemetry
from tests.rocketmq.telemetry_streams import Streams


@pytest.mark.found
async def test_who_has_most_streams_loses_his_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand of one address refused every SDK that started; his own neighbours stay, too."""
    monkeypatch.setattr(telemetry, "MAX_TELEMETRY_STREAMS", 8)
    async with Streams() as streams:
        honest = await streams.open("ipv4:10.0.0.1:1")
        neighbour = await streams.open("ipv4:10.0.0.2:1")
        stranger = [await streams.open("ipv4:10.0.0.2:2") for _ in range(6)]
        late = [await streams.open(f"ipv4:10.0.0.3:{n}") for n in range(2)]

        assert len(streams.telemetry) == 8
        for each in stranger[:2]:
            with pytest.raises(Failed) as ended:
                await each
            assert (ended.value.code, ended.value.message) == (Code.RESOURCE_EXHAUSTED, NO_ROOM)
        assert not any(each.done() for each in (honest, neighbour, *stranger[2:], *late))
