"""`dledger spool requeue` beside a running sidecar: its lanes' sends go behind what went back."""

from __future__ import annotations

import asyncio

import pytest

from dledger.errors import InvalidArgument
from dledger.files.memory_files import Fault
from dledger.rpc.status import Code
from dledger.sidecar.asking import chosen_of, requeue
from dledger.sidecar.draining import is_used
from dledger.sidecar.showing import Choice
from dledger.spool.looking import Look
from dledger.spool.requeue import ask
from tests.sidecar.fakes import REFUSED, FakeGroup
from tests.sidecar.test_sends import Bench
from tests.spool.spool_harness import DIR, Disk
from tests.waiting import eventually

ALL = Choice()


async def with_poison() -> Bench:
    """Return a bench with message 3 of 6 set aside, and a group that takes it now."""
    bench = Bench(Disk(max_bytes=1 << 22, file_bytes=1 << 16), FakeGroup())
    bench.open()
    bench.group.error = REFUSED
    bench.send(*range(1, 7))
    await bench.answered(1)
    bench.group.code = lambda one: (
        Code.ILLEGAL_MESSAGE_ID if one.system_properties.message_id == "000003" else Code.OK
    )
    bench.group.error = None
    await bench.drained()
    bench.group.code = lambda _: Code.OK
    return bench


def set_aside(bench: Bench) -> list[str]:
    """Return the ids in ``rejected/``."""
    return [one.message.record.message_id for one in Look(bench.disk.files, DIR).refusals()]


async def test_what_went_back_is_stored_and_nobody_overtakes_it() -> None:
    """Sends of its lane that come meanwhile go behind it."""
    bench = await with_poison()
    worker = bench.sends.worker
    assert worker is not None
    look = Look(bench.disk.files, DIR)
    ask(bench.disk.files, DIR, [one.place for one in look.refusals()])
    bench.group.gate.clear()
    await bench.sends.put_back(worker)
    bench.send(7)
    behind = bench.sends._lanes["bob", "orders"].backlog
    bench.group.gate.set()
    await bench.drained()
    await bench.answered(2)

    assert behind >= 1
    assert bench.group.numbers() == [1, 2, 4, 5, 6, 3, 7]
    assert set_aside(bench) == []
    await bench.end()


async def test_a_lane_finds_its_end_also_if_nothing_could_go_back() -> None:
    """A spool without room: what does not wait is not waited for."""
    bench = await with_poison()
    worker = bench.sends.worker
    assert worker is not None
    ask(bench.disk.files, DIR, [one.place for one in Look(bench.disk.files, DIR).refusals()])
    bench.disk.files.inject(Fault("pwritev", 28, ".spool"))
    bench.disk.files.inject(Fault("preallocate", 28, ".new"))
    await bench.sends.put_back(worker)
    bench.send(7)
    await bench.answered(2)

    assert bench.answers.codes == [Code.OK] * 2
    assert bench.group.numbers() == [1, 2, 4, 5, 6, 7]
    assert set_aside(bench) == ["000003"]
    await bench.end()


async def test_the_command_asks_and_waits_for_the_one_that_has_the_directory() -> None:
    """The lock is the sidecar's; a file in the directory asks it."""
    bench = await with_poison()
    worker = bench.sends.worker
    assert worker is not None
    files, loop = bench.disk.files, asyncio.get_running_loop()
    chosen = chosen_of(Look(files, DIR), ["000003"], ALL, all_of_them=False)
    asking = loop.run_in_executor(
        None, lambda: requeue(files, DIR, chosen, max_bytes=1 << 22, timeout_s=20)
    )
    await eventually(lambda: worker.spool.is_asked, "the question")
    await bench.sends.put_back(worker)
    done = await asking
    await bench.drained()

    assert is_used(files, DIR)
    assert (done.went_back, done.left, done.asking) == (1, 0, None)
    assert bench.group.numbers()[-1] == 3
    await bench.end()


async def test_what_nobody_takes_up_in_time_goes_on_being_asked() -> None:
    """By a file, which is named; the next one that has the directory does it."""
    bench = await with_poison()
    files = bench.disk.files
    chosen = chosen_of(Look(files, DIR), [], ALL, all_of_them=True)

    done = requeue(files, DIR, chosen, max_bytes=1 << 22, timeout_s=0)

    assert (done.went_back, done.left) == (0, 1)
    assert done.asking is not None
    assert done.asking.name in files.list(DIR / "requeue")
    await bench.end()


async def test_without_a_sidecar_the_command_does_it_itself() -> None:
    """The next sidecar brings it to the group."""
    bench = await with_poison()
    await bench.end()
    files = bench.disk.files
    chosen = chosen_of(Look(files, DIR), [], Choice(topic="orders"), all_of_them=True)
    done = requeue(files, DIR, chosen, max_bytes=1 << 22, timeout_s=0)
    (waiting,) = Look(files, DIR).waiting()
    files.kill()
    again = Bench(bench.disk, bench.group)
    again.open()
    await again.drained()

    assert (done.went_back, done.left) == (1, 0)
    assert waiting.message.record.message_id == "000003"
    assert again.group.numbers() == [1, 2, 4, 5, 6, 3]
    await again.end()


async def test_what_is_not_there_cannot_go_back() -> None:
    """And one says either ids or all."""
    bench = await with_poison()
    look = Look(bench.disk.files, DIR)

    with pytest.raises(InvalidArgument, match="000009: not in rejected/"):
        chosen_of(look, ["000003", "000009"], ALL, all_of_them=False)
    with pytest.raises(InvalidArgument, match="not of that topic"):
        chosen_of(look, ["000003"], Choice(topic="prices"), all_of_them=False)
    for ids, all_of_them in (([], False), (["000003"], True)):
        with pytest.raises(InvalidArgument, match="one of the two"):
            chosen_of(look, ids, ALL, all_of_them=all_of_them)
    assert chosen_of(look, [], Choice(client_id="alice"), all_of_them=True) == []
    await bench.end()
