"""What a node admits at once, what waits, and what is refused."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from pathlib import Path

import pytest

from dledger.calls import admission as module
from dledger.calls.admission import MAX_ARRIVING, MAX_SLOW, AdmissionControl
from dledger.client import Client, Record
from dledger.common import http
from dledger.common.limits import MAX_BODY_BYTES
from dledger.common.shares import NO_ROOM
from dledger.errors import InvalidArgument, Overloaded, Refused, Unavailable
from dledger.requests import outflow
from dledger.rocketmq import polls, telemetry
from dledger.rpc.requests import MAX_ELEMENTS, SMALL_BYTES, TELEMETRY_BYTES, limit_of
from dledger.rpc.status import Rejected
from dledger.server.servers import HANDSHAKE_MS, MAX_CONNECTIONS, MAX_IDLE_MS, connections_of
from tests.requests.memory_group import memory_group
from tests.waiting import eventually

MIB = 1 << 20


class Call:
    """A call whose request arrives when told to."""

    def __init__(
        self, request: bytes | None = b"x", *, arrived: bool = True, of: str = "a"
    ) -> None:
        self.request, self.connection = request, of
        self.reads = 0
        self.arrives = asyncio.Event()
        if arrived:
            self.arrives.set()

    async def read(self) -> bytes | None:
        """Return the request."""
        self.reads += 1
        await self.arrives.wait()
        return self.request


async def served(
    admission: AdmissionControl, call: Call, until: asyncio.Event, method: str = "SendMessage"
) -> bytes:
    async with admission.request(call.connection, call.read, method) as raw:
        await until.wait()
        return raw


def serve(
    admission: AdmissionControl, calls: Sequence[Call], answered: asyncio.Event
) -> list[asyncio.Task[bytes]]:
    return [asyncio.create_task(served(admission, call, answered)) for call in calls]


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_request_is_not_read_before_there_is_room_for_it() -> None:
    """What is not read waits at its client; what is served keeps its room until the answer."""
    admission, answered = AdmissionControl(3 * MIB, shares=1), asyncio.Event()
    calls = [Call(bytes(MIB)) for _ in range(5)]
    tasks = serve(admission, calls, answered)
    await settled()

    assert [call.reads for call in calls] == [1, 1, 1, 0, 0]
    assert admission.taken == 3 * MIB
    answered.set()
    assert [len(raw) for raw in await asyncio.gather(*tasks)] == [MIB] * 5
    assert admission.taken == 0


async def test_small_requests_take_little_room_once_they_are_here() -> None:
    """Only their arrival takes room for a large one."""
    admission, answered = AdmissionControl(2 * MIB, shares=1), asyncio.Event()
    tasks = serve(admission, [Call(b"x") for _ in range(50)], answered)
    for _ in range(50):
        await settled()

    assert admission.waiting == 0
    assert admission.taken < MIB
    answered.set()
    await asyncio.gather(*tasks)


async def test_after_a_large_request_fewer_of_its_connection_are_read_at_once() -> None:
    """How large the next one is, is not known before it is read; others are not held up by it."""
    admission, answered, last = (
        AdmissionControl(16 * MIB, shares=2),
        asyncio.Event(),
        asyncio.Event(),
    )
    answered.set()
    first = asyncio.create_task(served(admission, Call(b"x"), last))
    await settled()
    await served(admission, Call(bytes(4 * MIB)), answered)

    own = [Call(arrived=False) for _ in range(3)]
    others = [Call(arrived=False, of="b") for _ in range(3)]
    tasks = [first, *serve(admission, [*own, *others], answered)]
    await settled()

    assert [call.reads for call in [*own, *others]] == [1, 0, 0, 1, 1, 1]
    for call in [*own, *others]:
        call.arrives.set()
    last.set()
    await asyncio.gather(*tasks)
    assert admission.taken == 0


@pytest.mark.found
async def test_a_connection_holds_up_itself_only() -> None:
    """found: S3. Calls whose request never comes take no more than their connection's share."""
    admission, answered = AdmissionControl(), asyncio.Event()
    answered.set()
    silent = serve(admission, [Call(arrived=False, of="loris") for _ in range(200)], answered)
    await settled()

    for number in range(50):
        async with asyncio.timeout(5):
            assert await served(admission, Call(b"x", of=f"honest {number}"), answered) == b"x"

    assert admission.taken <= intake_share()
    for task in silent:
        task.cancel()
    await asyncio.gather(*silent, return_exceptions=True)
    assert (admission.taken, admission.waiting) == (0, 0)


def intake_share() -> int:
    return module.MAX_BYTES // module.SHARES


@pytest.mark.found
async def test_what_is_slow_to_come_leaves_its_room_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """found: S3. Also where so many connections have sent nothing that all room was theirs."""
    monkeypatch.setattr(module, "_PROMPT_S", 0.01)
    monkeypatch.setattr(module, "_BEARABLE_S", 0.02)
    admission, answered = AdmissionControl(), asyncio.Event()
    answered.set()
    names = [f"loris {number}" for number in range(2 * (MAX_ARRIVING + MAX_SLOW))]
    calls = [Call(arrived=False, of=name) for name in names]
    silent = serve(admission, calls, answered)
    await settled()
    assert len(admission._arriving) == MAX_ARRIVING  # however long that took: 10 ms make them slow
    assert admission.waiting

    assert await served(admission, Call(b"x", of="honest"), answered) == b"x"

    assert len(admission._slow) <= MAX_SLOW
    for task in silent:
        task.cancel()
    await asyncio.gather(*silent, return_exceptions=True)
    assert (admission.taken, admission.waiting, admission._connections) == (0, 0, {})


async def test_connections_take_turns() -> None:
    """A long line of one does not stand before the next one's only request."""
    admission, answered = AdmissionControl(2 * MIB, shares=1), asyncio.Event()
    tasks = serve(admission, [Call(bytes(2 * MIB))], answered)
    await settled()
    many = [Call(bytes(MIB), of="many") for _ in range(5)]
    one = Call(bytes(MIB), of="one")
    tasks += serve(admission, [*many, one], asyncio.Event())
    await settled()
    assert one.reads == 0

    answered.set()
    await settled()

    assert [call.reads for call in [*many, one]] == [1, 0, 0, 0, 0, 1]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (admission.taken, admission.waiting, admission._connections) == (0, 0, {})


@pytest.mark.found
async def test_addresses_take_turns_and_share_the_places() -> None:
    """One address with many connections had most turns, and all places: a stranger got none."""
    admission = AdmissionControl(2 * MIB, shares=1, max_waiting=8)
    answered, ends = asyncio.Event(), asyncio.Event()
    tasks = serve(admission, [Call(bytes(2 * MIB), of="ipv4:192.0.2.9:1")], answered)
    await settled()
    many = [Call(bytes(MIB), of=f"ipv4:192.0.2.1:{number}") for number in range(12)]
    tasks += serve(admission, many, ends)
    await settled()
    few = [Call(bytes(MIB), of=f"ipv4:192.0.2.2:{number}") for number in range(2)]
    tasks += serve(admission, few, ends)
    await settled()
    turned_away = [task.done() for task in tasks[1:]]
    assert turned_away == [*[True] * 6, *[False] * 8]  # the oldest of who has most

    answered.set()
    await settled()

    assert [call.reads for call in few] == [1, 0]
    assert sum(call.reads for call in many) == 1
    ends.set()
    await settled()
    assert [call.reads for call in [*many[6:], *few]] == [1] * 8
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(each, Overloaded) for each in ended) == 6
    assert (admission.taken, admission.waiting, admission._connections) == (0, 0, {})


async def test_who_finds_no_room_is_told_to_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a moment; the oldest at once where many wait already."""
    monkeypatch.setattr(module, "_PATIENCE_S", 0.01)
    admission, answered = AdmissionControl(MIB, shares=1, max_waiting=1), asyncio.Event()
    first = asyncio.create_task(served(admission, Call(bytes(MIB)), answered))
    await settled()
    second = asyncio.create_task(served(admission, Call(), answered))
    await settled()

    with pytest.raises(Overloaded, match="1048576 bytes are under way"):
        await served(admission, Call(), answered)
    with pytest.raises(Overloaded, match=NO_ROOM):
        await second
    answered.set()
    await first
    assert (admission.taken, admission._connections) == (0, {})


async def test_a_request_that_does_not_arrive_keeps_its_place_for_a_time_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A shorter one if it can be but small."""
    monkeypatch.setattr(module, "_SMALL_ARRIVES_S", 0.01)
    admission = AdmissionControl()

    with pytest.raises(Unavailable, match="did not arrive"):
        await served(admission, Call(arrived=False), asyncio.Event(), "Heartbeat")
    monkeypatch.setattr(module, "_ARRIVES_S", 0.01)
    with pytest.raises(Unavailable, match="did not arrive"):
        await served(admission, Call(arrived=False), asyncio.Event())
    with pytest.raises(InvalidArgument, match="no request"):
        await served(admission, Call(None), asyncio.Event())

    assert (admission.taken, admission._connections) == (0, {})


@pytest.mark.found
@pytest.mark.parametrize(
    ("method", "limit"),
    [("Heartbeat", SMALL_BYTES), ("AckMessage", SMALL_BYTES), ("Telemetry", TELEMETRY_BYTES)],
)
async def test_a_request_larger_than_its_method_has_is_refused(method: str, limit: int) -> None:
    """found: S2. By its size, before anything is made of it; the room is free again."""
    admission, answered = AdmissionControl(), asyncio.Event()
    answered.set()

    assert len(await served(admission, Call(bytes(limit)), answered, method)) == limit
    with pytest.raises(
        Rejected, match=f"{method} request has {limit + 1} bytes; the limit is {limit}"
    ):
        await served(admission, Call(bytes(limit + 1)), answered, method)

    assert admission.taken == 0


async def test_a_stream_keeps_no_room_while_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be silent for hours; what comes at last is counted until it is done with."""
    monkeypatch.setattr(module, "_PROMPT_S", 0.01)
    admission, call = AdmissionControl(), Call(bytes(MIB), arrived=False)
    message, done = admission.message("a", call.read, "Produce"), asyncio.Event()

    async def take() -> None:
        async with message:
            await done.wait()

    task = asyncio.create_task(take())
    await eventually(lambda: call.reads == 1 and admission.taken == 0)
    call.arrives.set()
    await eventually(lambda: admission.taken == MIB)
    done.set()
    await task
    ended = admission.message("a", Call(None).read, "Produce", before_bytes=1)
    async with ended as raw:
        assert (raw, ended.ended) == (b"", True)

    assert (admission.taken, admission._connections) == (0, {})


def large_objects() -> int:
    """Return how many byte strings of 4 MiB and more something holds that is no cycle's rest."""
    referents = (each for holder in gc.get_objects() for each in gc.get_referents(holder))
    return len({id(x) for x in referents if type(x) is bytes and len(x) > MAX_BODY_BYTES})


@pytest.mark.contract
async def test_a_refused_request_leaves_nothing_behind() -> None:
    """Not even until the garbage collector comes by, which with large requests is too late."""
    record = Record(body=bytes(MAX_BODY_BYTES + 1), message_id="1")
    async with memory_group(1) as group, Client(group.addresses[0]) as client:
        await client.create_topic("orders")
        gc.collect()
        gc.disable()
        try:
            before = large_objects()
            for _ in range(5):
                with pytest.raises(Refused):
                    await client.append("orders", [record])
            after = large_objects()
        finally:
            gc.enable()

    assert after <= before


def test_connections_leave_files_for_the_log() -> None:
    """A node that can open no segment stops; a client that is turned away finds another node."""
    assert connections_of(20_000, 2) == 9_744
    assert connections_of(1_000_000, 3) == MAX_CONNECTIONS
    assert connections_of(1_024, 3) == 170


def test_the_documented_bounds_are_those_of_the_code() -> None:
    """docs/architecture.md, "Admission: what a node accepts, and what waits"."""
    words = (Path(__file__).parents[2] / "docs/architecture.md").read_text()
    words = " ".join(words.split())
    small, stuck_s = SMALL_BYTES >> 10, outflow.STUCK_S
    of_peers = module.MAX_BYTES // module.PEER_SHARES
    said = {
        f"Number: {limit_of('Produce') >> 20} MiB / {TELEMETRY_BYTES >> 10} KiB / {small} KiB.",
        f"Number: {MAX_ELEMENTS:,}.",
        f"Number: {module.MAX_BYTES >> 20} MiB / {module.MAX_BYTES // module.SHARES >> 20} MiB,",
        f"Number: {module.MAX_BYTES >> 20} MiB / {of_peers >> 20} MiB.",
        f"longer than {module._PROMPT_S:g} s**. Number: {MAX_ARRIVING} / {MAX_SLOW};",
        f"Number: {module._ARRIVES_S:g} s / {module._SMALL_ARRIVES_S:g} s.",
        f"Number: {polls.MAX_BYTES >> 20} MiB / {polls.MAX_BYTES_OF_CONNECTION >> 20} MiB.",
        f"Number: {telemetry.MAX_STREAMS}.",
        f"Number: {outflow.MAX_BYTES >> 20} MiB; a connection with an answer",
        f"that has not left for {stuck_s:g} s",
        f"Number: {HANDSHAKE_MS // 1000} s / {MAX_IDLE_MS // 60_000} min,",
        f"Number: {http.MAX_CONNECTIONS}, {http.TIMEOUT_S:g} s;",
    }

    assert {line for line in said if line not in words} == set()
