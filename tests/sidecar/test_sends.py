"""Sends go to the group while it answers, else to the disk, in each lane's order; and back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dledger.door.contract import Code as GrpcCode
from dledger.errors import StorageError
from dledger.files.memory_files import Fault
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.rpc.status import Code
from dledger.sidecar.decisions import TRY_S, budget_s
from dledger.sidecar.reach import Reach
from dledger.sidecar.replay import REPLAY_HEADER, Replay, is_disk_failure
from dledger.sidecar.sends import Sends
from dledger.sidecar.upstream import Metadata, UpstreamError
from dledger.spool.counters import Counts
from dledger.spool.spool import Spool
from dledger.spool.worker import Worker
from tests.sidecar.fakes import LOST, REFUSED, Answers, FakeGroup, headers, request
from tests.spool.spool_harness import Disk
from tests.waiting import eventually


class Bench:
    """Sends and their replay over a fake group and a disk in memory."""

    def __init__(self, disk: Disk, group: FakeGroup) -> None:
        self.disk, self.group = disk, group
        self.counts, self.reach, self.answers = Counts(), Reach(), Answers()
        self.broken: list[StorageError] = []
        self.executor = ThreadPoolExecutor(1)
        self.sends = Sends(
            group,  # type: ignore[arg-type]
            self.reach,
            self.counts,
            on_spooled=self._wake,
            on_broken=self.broken.append,
        )
        self.replay: Replay | None = None
        self.task: asyncio.Task[None] | None = None

    def open(self) -> Spool:
        """Open the spool and replay it."""
        spool = self.disk.open()
        worker = Worker(self.executor, spool)
        self.replay = Replay(
            worker,
            self.group,  # type: ignore[arg-type]
            self.reach,
            self.counts,
            on_stored=self.sends.note_stored,
            on_drained=self.sends.note_drained,
        )
        self.sends.attach(worker)
        self.task = asyncio.create_task(self.replay.run())
        return spool

    def _wake(self) -> None:
        if self.replay is not None:
            self.replay.wake()

    def send(
        self, *numbers: int, client_id: str = "bob", topic: str = "orders", left_s: float = 3.0
    ) -> Callable[[], Any]:
        """Send one request; return what gives it up."""
        body = request(topic, *numbers)
        head = headers(client_id, left_s)
        cancel = self.sends.serve(head, body, self.answers, self.answers.fail)
        assert cancel is not None
        return cancel

    async def answered(self, count: int) -> list[int]:
        """Return the codes of so many answers, once they are there."""
        await eventually(lambda: len(self.answers.codes) >= count, "answers")
        return self.answers.codes

    async def drained(self) -> None:
        """Wait until nothing is spooled."""
        worker = self.sends.worker
        assert worker is not None
        spool = worker.spool
        await eventually(lambda: not spool.waiting and not self.sends._lanes, "an empty spool")

    async def end(self) -> None:
        """End as SIGKILL does."""
        self.disk.files.kill()
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        for task in tuple(self.sends._tasks):
            task.cancel()
        self.executor.shutdown()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """Return an open one."""
    made = Bench(Disk(max_bytes=1 << 22, file_bytes=1 << 16), FakeGroup())
    made.open()
    yield made
    await made.end()


async def test_while_the_group_answers_sends_pass(bench: Bench) -> None:
    """Nothing touches the disk."""
    for number in range(1, 6):
        bench.send(number)

    assert await bench.answered(5) == [Code.OK] * 5
    assert bench.group.numbers() == [1, 2, 3, 4, 5]
    assert (bench.counts.stored, bench.counts.spooled) == (5, 0)


async def test_an_outage_costs_no_error_and_no_order(bench: Bench) -> None:
    """Every send is answered OK; all are stored once, in order, when the group is back."""
    for number in range(1, 51):
        if number == 10:
            bench.group.error = REFUSED
        bench.send(number)
        await bench.answered(number)
    bench.group.error = None
    for number in range(51, 101):
        bench.send(number)
        await bench.answered(number)
    await bench.drained()

    assert bench.answers.codes == [Code.OK] * 100
    assert bench.group.numbers() == list(range(1, 101))
    assert bench.counts.spooled == bench.counts.replayed >= 41


async def test_the_first_that_finds_the_group_away_ends_the_tries_of_its_lane(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: what came two seconds after a break waited for two more, for the last of them."""

    async def unary(path: str, body: bytes, metadata: Metadata, timeout_s: float) -> bytes:
        del path, timeout_s
        if b"000001" in body and REPLAY_HEADER not in dict(metadata):
            await asyncio.Event().wait()
        raise LOST

    with monkeypatch.context() as patch:
        patch.setattr(bench.group, "unary", unary)
        bench.send(1)
        bench.send(2)
        codes = list(await bench.answered(2))
        worker = bench.sends.worker
        assert worker is not None
        unknown = worker.spool.tried
    await bench.drained()

    assert (codes, unknown) == ([Code.OK] * 2, 2)
    assert bench.group.numbers() == [1, 2]


@pytest.mark.parametrize("code", [each for each in GrpcCode if each is not GrpcCode.OK])
async def test_what_is_no_answer_at_all_is_an_outage(bench: Bench, code: GrpcCode) -> None:
    """A proxy's word, or gRPC's own."""
    bench.group.error = UpstreamError(code, "said by nobody of the group", sent=False)
    bench.send(1)

    assert await bench.answered(1) == [Code.OK]
    assert (bench.reach.away, bench.counts.spooled) == (True, 1)


async def test_a_body_that_says_not_available_is_an_outage(bench: Bench) -> None:
    """0.11: gRPC's status is OK then."""
    bench.group.code = lambda _: Code.HA_NOT_AVAILABLE
    bench.send(1)

    assert await bench.answered(1) == [Code.OK]
    assert bench.counts.spooled == 1
    assert bench.group.moved >= 1


@pytest.mark.parametrize("left_s", [0.6, 1.0, 3.0, 60.0])
async def test_all_tries_together_end_before_their_caller_gives_up(
    bench: Bench, left_s: float
) -> None:
    """What they may take is asked of `decisions`, whatever the number of addresses."""
    given_s: list[float] = []

    async def unary(path: str, body: bytes, metadata: Metadata, timeout_s: float) -> bytes:
        if REPLAY_HEADER not in dict(metadata):
            given_s.append(timeout_s)
        raise REFUSED

    bench.group.unary = unary
    bench.send(1, left_s=left_s)
    await bench.answered(1)

    assert given_s
    assert max(given_s) <= min(budget_s(left_s), TRY_S)


async def test_too_many_requests_is_not_passed_on(bench: Bench) -> None:
    """SDKs give up at once."""
    bench.group.code = lambda _: Code.TOO_MANY_REQUESTS
    bench.send(1)

    assert await bench.answered(1) == [Code.OK]
    assert not bench.reach.away


async def test_what_is_the_callers_fault_is_passed_on(bench: Bench) -> None:
    """And not spooled, while the group answers."""
    bench.group.code = lambda _: Code.TOPIC_NOT_FOUND
    bench.send(1)

    assert await bench.answered(1) == [Code.TOPIC_NOT_FOUND]
    assert (bench.counts.spooled, bench.counts.stored) == (0, 0)


async def test_what_a_node_would_refuse_is_refused_while_it_is_away(bench: Bench) -> None:
    """By the same rules: days later is too late."""
    bench.group.error = REFUSED
    bench.send(1, client_id="")

    assert await bench.answered(1) == [Code.CLIENT_ID_REQUIRED]


async def test_answers_that_are_lost_store_nothing_twice(bench: Bench) -> None:
    """The group has each message, and did not say so; the spool says of how many."""
    bench.group.error = LOST
    for number in range(1, 21):
        bench.send(number)
    await bench.answered(20)
    worker = bench.sends.worker
    assert worker is not None
    unknown = worker.spool.tried
    bench.group.error = None
    await bench.drained()

    assert unknown >= 1
    assert bench.group.numbers() == list(range(1, 21))
    assert bench.answers.codes == [Code.OK] * 20


async def test_sends_of_a_lane_wait_for_those_before_them(bench: Bench) -> None:
    """The first is under way when the second fails: they are spooled as they came."""
    bench.group.gate.clear()
    bench.send(1)
    bench.send(2)
    bench.group.error = REFUSED
    bench.group.gate.set()
    bench.send(3)
    await bench.answered(3)
    bench.group.error = None
    await bench.drained()

    assert bench.group.numbers() == [1, 2, 3]


async def test_a_lane_with_spooled_messages_is_overtaken_by_none_of_its_sends(bench: Bench) -> None:
    """The group takes sends again, and the replay of the lane is not through yet."""
    bench.group.code = lambda _: Code.TOO_MANY_REQUESTS
    bench.send(1)
    await bench.answered(1)
    take, busy = bench.group.unary, bench.group.code

    async def unary(path: str, body: bytes, metadata: Metadata, timeout_s: float) -> bytes:
        bench.group.code = busy if REPLAY_HEADER in dict(metadata) else lambda _: Code.OK
        return await take(path, body, metadata, timeout_s)

    bench.group.unary = unary
    bench.send(2)
    bench.send(3, client_id="alice")
    await bench.answered(3)
    before = bench.group.numbers(), bench.group.numbers("alice")
    bench.group.unary = take
    bench.group.code = lambda _: Code.OK
    await bench.drained()

    assert before == ([], [3])
    assert bench.group.numbers() == [1, 2]


async def test_what_failed_first_is_not_spooled_before_what_came_first(bench: Bench) -> None:
    """The second send's try ends while the first one's is still under way."""
    tried: list[bytes] = []

    async def unary(path: str, body: bytes, metadata: Metadata, timeout_s: float) -> bytes:
        if REPLAY_HEADER not in dict(metadata) and b"body 1" in body:
            tried.append(body)
            await bench.group.gate.wait()
        raise REFUSED

    take, bench.group.unary = bench.group.unary, unary
    bench.group.gate.clear()
    bench.send(1)
    bench.send(2)
    await eventually(lambda: tried and bench.reach.away, "the end of the second one's tries")
    early = bench.counts.spooled
    bench.group.gate.set()
    await bench.answered(2)
    bench.group.unary = take
    await bench.drained()

    assert early == 0
    assert bench.group.numbers() == [1, 2]


async def test_lanes_do_not_stand_behind_each_other(bench: Bench) -> None:
    """One client's topic waits, another's sends pass."""
    bench.group.code = lambda one: Code.TOO_MANY_REQUESTS if one.topic.name == "slow" else Code.OK
    bench.send(1, topic="slow")
    bench.send(2)
    await bench.answered(2)

    assert bench.group.numbers() == [2]
    assert (bench.counts.stored, bench.counts.spooled) == (1, 1)


async def test_a_send_that_was_given_up_is_not_spooled(bench: Bench) -> None:
    """Its caller was told nothing, and asks again."""
    bench.group.gate.clear()
    give_up = bench.send(1)
    give_up()
    bench.group.error = REFUSED
    bench.group.gate.set()
    bench.send(2)
    await bench.answered(1)

    assert bench.counts.spooled == 1


async def test_a_request_of_many_messages_is_kept_whole(bench: Bench) -> None:
    """And answered with an entry for each."""
    bench.group.error = REFUSED
    bench.send(1, 2, 3)
    await bench.answered(1)
    bench.group.error = None
    await bench.drained()

    assert bench.group.numbers() == [1, 2, 3]
    assert bench.counts.spooled == 3


async def test_a_full_disk_is_an_error_to_the_sender_and_to_nobody_else() -> None:
    """Nothing is answered OK that is not kept."""
    bench = Bench(Disk(max_bytes=3 * 8192, file_bytes=8192), FakeGroup())
    bench.open()
    bench.group.error = REFUSED
    for number in range(1, 101):
        bench.send(number)
    codes = list(await bench.answered(100))
    bench.group.error = None
    await bench.drained()
    bench.send(101)
    await bench.answered(101)

    kept = [n for n, code in enumerate(codes, start=1) if code == Code.OK]
    assert set(codes) == {Code.OK, Code.HA_NOT_AVAILABLE}
    assert bench.group.numbers() == [*kept, 101]
    assert "is full" in bench.answers.said[-2]
    await bench.end()


async def test_a_disk_that_fails_ends_the_process_after_saying_so(bench: Bench) -> None:
    """It alone knows then what it has; the next process opens it anew."""
    bench.group.error = REFUSED
    bench.disk.files.inject(Fault("fdatasync", 5, ".spool"))
    bench.send(1)

    assert await bench.answered(1) == [Code.HA_NOT_AVAILABLE]
    assert "the disk failed" in bench.answers.said[0]
    assert is_disk_failure(bench.broken[0])


async def test_without_a_disk_calls_pass_and_say_so_when_the_group_is_away() -> None:
    """Foreign, read-only, taken: no reason to keep sends from a group that is there."""
    bench = Bench(Disk(), FakeGroup())
    bench.sends.why = "read-only file system"
    bench.send(1)
    await bench.answered(1)
    bench.group.error = REFUSED
    bench.send(2)

    assert await bench.answered(2) == [Code.OK, Code.HA_NOT_AVAILABLE]
    assert "there is no spool: read-only file system" in bench.answers.said[1]
    await bench.end()


async def test_a_sidecar_that_comes_back_in_an_outage_knows_it() -> None:
    """Sends are answered at once, and do not wait for the replay's first failure."""
    disk, group = Disk(), FakeGroup()
    first = Bench(disk, group)
    first.open()
    group.error = REFUSED
    first.send(1)
    await first.answered(1)
    await first.end()
    group.error = None
    group.gate.clear()
    second = Bench(disk, group)
    second.open()
    second.send(2)
    second.send(1, client_id="alice")
    codes = list(await second.answered(2))
    group.gate.set()
    await second.drained()

    assert codes == [Code.OK] * 2
    assert second.counts.spooled == 2
    assert (group.numbers(), group.numbers("alice")) == ([1, 2], [1])
    await second.end()


async def test_a_killed_sidecar_goes_on_where_it_was() -> None:
    """Twice; what was answered OK is stored once, in order, and new sends go behind it."""
    disk, group = Disk(max_bytes=1 << 22, file_bytes=1 << 16), FakeGroup()
    answers: list[int] = []
    for life in range(3):
        bench = Bench(disk, group)
        bench.open()
        group.error = REFUSED if life < 2 else None
        for number in range(10 * life + 1, 10 * life + 11):
            bench.send(number)
            await bench.answered(number - 10 * life)
        if life == 2:
            await bench.drained()
        answers += bench.answers.codes
        await bench.end()

    assert answers == [Code.OK] * 30
    assert group.numbers() == list(range(1, 31))


async def test_a_message_of_a_transaction_waits_on_no_disk(bench: Bench) -> None:
    """Only the group can give it an id; it passes what waits there, while the group answers."""
    half = service.SendMessageRequest.FromString(request("orders", 1))
    half.messages[0].system_properties.message_type = definition.MessageType.TRANSACTION
    body = half.SerializeToString()
    bench.group.error = REFUSED
    bench.sends.serve(headers(), body, bench.answers, bench.answers.fail)

    assert await bench.answered(1) == [Code.HA_NOT_AVAILABLE]

    assert bench.sends.worker is not None
    assert not bench.sends.worker.spool.waiting
    bench.group.error = None
    bench.sends.serve(headers(), body, bench.answers, bench.answers.fail)
    assert (await bench.answered(2))[1] == Code.OK
