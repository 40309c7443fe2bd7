"""Commands on their way into the log: bounds, joining, and who is told what."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.errors import DiskFull, InvalidArgument, LeadershipLost, NotLeader, Overloaded
from dledger.replica.proposals import MAX_ENTRY_BYTES, Proposal, ProposalQueue, Waiters, closed


def proposal(command: bytes = b"x", *, grows: bool = False) -> Proposal:
    return Proposal(command, asyncio.get_running_loop().create_future(), grows=grows)


async def test_a_batch_takes_what_fits_into_an_entry() -> None:
    """In order; what does not fit waits for the next."""
    queue = ProposalQueue(10 * MAX_ENTRY_BYTES)
    half = bytes(MAX_ENTRY_BYTES // 2)
    proposals = [proposal(half) for _ in range(3)]
    for each in proposals:
        queue.push(each)

    assert queue.take_batch() == proposals[:2]
    assert queue.take_batch() == proposals[2:]
    assert queue.size_bytes == 0


async def test_a_command_larger_than_an_entry_goes_alone() -> None:
    """It is bounded by the services, not here."""
    queue = ProposalQueue(10 * MAX_ENTRY_BYTES)
    large, small = proposal(bytes(2 * MAX_ENTRY_BYTES)), proposal()
    queue.push(large)
    queue.push(small)

    assert queue.take_batch() == [large]


async def test_a_full_queue_refuses() -> None:
    """P11: overload is a typed error, not growing memory."""
    queue = ProposalQueue(100)
    queue.push(proposal(bytes(60), grows=True))

    with pytest.raises(Overloaded, match="60 of 100"):
        queue.push(proposal(bytes(60), grows=True))


async def test_what_frees_consumers_finds_a_place_in_a_queue_full_of_what_waits() -> None:
    """A quarter more: users' data may stand there for seconds, until there is room on a disk."""
    queue = ProposalQueue(100, max_commands=4)
    for _ in range(4):
        queue.push(proposal(bytes(25), grows=True))

    queue.push(proposal(bytes(25)))

    with pytest.raises(Overloaded, match="5 commands"):
        queue.push(proposal(bytes(1)))


async def test_what_frees_consumers_passes_what_waits_for_room() -> None:
    """It is another line, whatever the connection; order holds among each of the two."""
    queue = ProposalQueue(1 << 20)
    data = [proposal(bytes(50), grows=True) for _ in range(2)]
    acks = [proposal(b"a"), proposal(b"b")]
    for each in (data[0], acks[0], data[1], acks[1]):
        queue.push(each)

    assert queue.take_batch(room_bytes=49) == acks
    assert (queue.held_bytes, queue.count, queue.growing_count) == (50, 2, 2)
    assert queue.take_batch(room_bytes=49) == []
    assert queue.take_batch(room_bytes=99) == data[:1]
    assert queue.take_batch(room_bytes=50) == data[1:]
    assert (queue.held_bytes, queue.count, queue._lines) == (0, 0, {})


async def test_a_line_that_waited_too_long_is_refused_as_a_whole() -> None:
    """Else what a producer sent later would be stored before what it must send again."""
    queue = ProposalQueue(1 << 20)
    made = asyncio.get_running_loop().create_future
    first, second, other = (
        Proposal(b"x", made(), at_s, line, grows=True)
        for at_s, line in ((1.0, "a"), (5.0, "a"), (4.0, "b"))
    )
    for each in (first, second, other):
        queue.push(each)
    queue.take_batch(room_bytes=-1)

    assert queue.refuse_growing(DiskFull("late"), proposed_before_s=3.0) == 2

    for each in (first, second):
        assert isinstance(each.result.exception(), DiskFull)
    assert queue.take_batch() == [other]


async def test_a_queue_of_many_small_commands_refuses_more() -> None:
    """Bytes alone would let in millions of them."""
    queue = ProposalQueue(1 << 20, max_commands=2)
    queue.push(proposal())
    queue.push(proposal())

    with pytest.raises(Overloaded, match="2 commands are queued"):
        queue.push(proposal())


async def test_what_nobody_awaits_any_more_is_not_proposed() -> None:
    """Its caller went away before it reached the log."""
    queue = ProposalQueue(100)
    gone, kept = proposal(), proposal()
    gone.result.cancel()
    queue.push(gone)
    queue.push(kept)

    assert queue.take_batch() == [kept]


class Open:
    """An open command that a test lets grow."""

    kind = 1

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes

    def __len__(self) -> int:
        return self.size_bytes

    def close(self) -> bytes:
        return bytes(self.size_bytes)


async def test_what_an_open_command_takes_in_counts() -> None:
    """For the bound of the queue and for what fits into an entry."""
    queue = ProposalQueue(100)
    growing = Open(10)
    queue.push(Proposal(growing, asyncio.get_running_loop().create_future(), grows=True))
    queue.push(proposal(bytes(10), grows=True))
    growing.size_bytes = 80

    assert queue.size_bytes == 90
    with pytest.raises(Overloaded, match="90 of 100"):
        queue.push(proposal(bytes(11), grows=True))
    assert len(closed(queue.take_batch()[0].command)) == 80
    assert queue.size_bytes == 0


async def test_each_waiter_gets_its_own_result() -> None:
    """One result a command, in order; refusals as exceptions."""
    waiters = Waiters()
    first, second = proposal(), proposal()
    waiters.add(2, 7, [first, second])

    waiters.applied(2, 7, ["done", InvalidArgument("no")])

    assert await first.result == "done"
    with pytest.raises(InvalidArgument):
        await second.result


async def test_another_entry_at_the_index_means_the_outcome_is_lost() -> None:
    """The entry was overwritten by another leader's."""
    waiters = Waiters()
    waiting = proposal()
    waiters.add(2, 7, [waiting])

    waiters.applied(3, 7, ["of somebody else"])

    with pytest.raises(LeadershipLost):
        await waiting.result


async def test_an_entry_without_waiters_is_fine() -> None:
    """Followers apply, too."""
    waiters = Waiters()

    waiters.applied(2, 7, ["result"])

    assert len(waiters) == 0


async def test_queued_commands_are_refused_and_proposed_ones_unknown() -> None:
    """What never reached the log certainly did not happen."""
    queue, waiters = ProposalQueue(100), Waiters()
    queued, proposed = proposal(), proposal()
    queue.push(queued)
    waiters.add(2, 7, [proposed])

    queue.fail_all(NotLeader(None))
    waiters.fail_all()

    with pytest.raises(NotLeader):
        await queued.result
    with pytest.raises(LeadershipLost):
        await proposed.result


def standing(size_bytes: int, line: str, producer: str = "") -> Proposal:
    result: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    return Proposal(bytes(size_bytes), result, line=line, producer=producer)


def taken_from(queue: ProposalQueue) -> list[Proposal]:
    """Take all there is, in the order of the log."""
    found: list[Proposal] = []
    while queue:
        found += queue.take_batch()
    return found


async def test_a_small_command_does_not_wait_for_what_a_flood_has_queued() -> None:
    """It stood behind 32 MiB of others, a tenth of a second for each send."""
    queue = ProposalQueue(1 << 20, max_entry_bytes=100)
    flood = [standing(90, "flood") for _ in range(10)]
    for each in flood:
        queue.push(each)
    assert queue.take_batch() == flood[:1]
    small = standing(1, "small")
    queue.push(small)

    assert queue.take_batch() == [small, flood[1]]


async def test_a_producer_on_a_new_connection_stays_behind_itself() -> None:
    """What it sends again there would else overtake what stands in the old one's line."""
    queue = ProposalQueue(1 << 20, max_entry_bytes=10)
    pushed = [standing(10, "old", "other"), standing(10, "old", "p"), standing(1, "new", "p")]
    for each in pushed:
        queue.push(each)
    assert taken_from(queue) == pushed
    again = standing(1, "new", "p")
    queue.push(standing(10, "old"))
    queue.push(standing(10, "old"))
    queue.take_batch()
    queue.push(again)

    assert queue.take_batch() == [again], "nothing of it stands in the old line any more"


@given(
    steps=st.lists(
        st.one_of(
            st.none(),
            st.tuples(st.integers(1, 40), st.sampled_from("abc"), st.sampled_from(["", "p", "q"])),
        ),
        max_size=60,
    )
)
def test_lines_take_turns_and_nothing_is_lost_or_out_of_order(
    steps: list[tuple[int, str, str] | None],
) -> None:
    """Each command comes once, in its producer's order; one of each other line goes before."""

    async def run() -> None:
        queue, most = ProposalQueue(1 << 20, max_entry_bytes=50), 50
        pushed: list[Proposal] = []
        found: list[Proposal] = []
        for step in [*steps, *[None] * len(steps)]:
            if step is not None:
                pushed.append(standing(*step))
                queue.push(pushed[-1])
                continue
            batch = queue.take_batch()
            assert sum(len(each.command) for each in batch) <= most
            found += batch
        assert sorted(map(id, found)) == sorted(map(id, pushed))
        assert (len(queue), queue.size_bytes, queue._lines, queue._producers) == (0, 0, {}, {})
        for producer in "pq":
            own = [each for each in pushed if each.producer == producer]
            assert [each for each in found if each.producer == producer] == own
        for line in "abc":
            free = [each for each in pushed if each.line == line and not each.producer]
            assert [each for each in found if each in free] == free

    asyncio.run(run())


@given(sizes=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 40), min_size=2))
def test_lines_that_are_never_empty_get_equal_bytes(sizes: dict[str, int]) -> None:
    """But for one command of each."""

    async def run() -> None:
        queue = ProposalQueue(1 << 20, max_entry_bytes=50)
        for line, size_bytes in sizes.items():
            for _ in range(400 // size_bytes + 1):
                queue.push(standing(size_bytes, line))
        got = dict.fromkeys(sizes, 0)
        while max(got.values()) < 300:
            for each in queue.take_batch():
                got[each.line] += len(each.command)
            assert max(got.values()) - min(got.values()) <= 2 * max(sizes.values())

    asyncio.run(run())
