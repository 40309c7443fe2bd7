import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.common.chain import chains_behind
from dledger.errors import OffsetOutOfRange
from dledger.raft.log import RaftLog
from dledger.types import Entry
from tests.raft.bench import ListDisk, data_entry, log_of

HELD = data_entry(1, 1, b"x" * 10).held_bytes


def log_with(*terms: int, durable: int = 0) -> RaftLog:
    """Return a log whose first *durable* entries are on disk, the rest in memory."""
    entries = entries_of(*terms)
    log = RaftLog(ListDisk(entries[:durable]), 0, max_unapplied_bytes=1 << 20)
    if entries[durable:]:
        log.append(entries[durable:])
    return log


def log_and_disk(*terms: int, max_unapplied_bytes: int) -> tuple[RaftLog, ListDisk]:
    """Return a log that is all in memory, and the empty disk that it is to be written to."""
    disk = ListDisk()
    log = RaftLog(disk, 0, max_unapplied_bytes=max_unapplied_bytes)
    log.append(entries_of(*terms))
    return log, disk


def entries_of(*terms: int) -> list[Entry]:
    """Return a log's entries, of 10 bytes each."""
    return [data_entry(term, at + 1, b"x" * 10) for at, term in enumerate(terms)]


@given(
    st.lists(st.integers(1, 5), max_size=12).map(sorted),
    st.integers(0, 12),
    st.integers(0, 14),
    st.integers(0, 6),
)
def test_agreement_is_the_highest_entry_not_above_in_index_nor_term(
    terms: list[int], durable: int, index: int, term: int
) -> None:
    """The search by halves agrees with walking down."""
    log = log_with(*terms, durable=min(durable, len(terms)))
    expected = min(index, len(terms))
    while expected and terms[expected - 1] > term:
        expected -= 1

    found = log.find_conflict_by_term(index, term)

    assert found == (expected, terms[expected - 1] if expected else 0)


def test_term_knows_disk_memory_and_the_start() -> None:
    """Index 0 has term 0; beyond the log there is nothing."""
    log = log_with(1, 2, 3, durable=2)

    assert [log.term(index) for index in range(4)] == [0, 1, 2, 3]
    with pytest.raises(OffsetOutOfRange):
        log.term(4)


def test_slice_is_cut_at_max_bytes_but_has_an_entry() -> None:
    """An entry larger than the bound travels alone."""
    log = log_with(1, 1, 1, 1)

    assert [e.index for e in log.slice(2, 4, 25) or ()] == [2, 3]
    assert [e.index for e in log.slice(2, 4, 5) or ()] == [2]


def test_slice_of_disk_and_memory_comes_in_two_parts() -> None:
    """No entry is read from disk that is still in memory."""
    log = log_with(1, 1, 1, 1, durable=2)

    assert [e.index for e in log.slice(1, 4, 1000) or ()] == [1, 2]
    assert [e.index for e in log.slice(3, 4, 1000) or ()] == [3, 4]


def test_entries_leave_memory_once_durable_and_applied() -> None:
    """Neither alone is enough: unapplied entries are not read back from disk."""
    log = log_with(1, 1)
    log.take_writes()
    log.persisted(1, 2)
    assert len(log._tail) == 2

    log.commit_to(1)
    log.take_committed(1000)

    assert [entry.index for entry in log._tail] == [2]


def test_a_replica_far_behind_in_applying_keeps_only_the_newest_entries_in_memory() -> None:
    """It replays while its leader sends on: the oldest, which come next, are read back."""
    log, disk = log_and_disk(*[1] * 6, max_unapplied_bytes=3 * HELD)
    log.commit_to(6)

    written = log.take_writes()
    disk.write(written)
    log.persisted(1, 6)
    assert [entry.index for entry in log._tail] == [4, 5, 6]

    assert log.take_committed(1) == written[:1]
    assert log.take_committed(1 << 20) == written[1:3]
    assert log.take_committed(1 << 20) == written[3:]
    assert log._tail == []


def test_what_is_not_durable_or_not_committed_stays_in_memory_however_much_it_is() -> None:
    """The one cannot be read back, the other may be taken back."""
    log, disk = log_and_disk(*[1] * 6, max_unapplied_bytes=0)
    disk.write(log.take_writes())
    log.append([data_entry(1, 7), data_entry(1, 8)])

    log.commit_to(4)
    log.persisted(1, 6)
    assert [entry.index for entry in log._tail] == [5, 6, 7, 8]

    log.commit_to(8)
    log.take_committed(1 << 20)
    assert [entry.index for entry in log._tail] == [7, 8]


def test_what_is_taken_back_is_not_counted_any_more() -> None:
    """Else the bound would come nearer with every change of leader."""
    log, _ = log_and_disk(*[1] * 3, max_unapplied_bytes=3 * HELD)
    for term in range(2, 9):
        log.truncate(3)
        log.append([data_entry(term, 3, b"x" * 10)])
    log.take_writes()
    log.commit_to(3)

    log.persisted(8, 3)

    assert [entry.index for entry in log._tail] == [1, 2, 3]


def test_truncation_makes_the_rest_not_durable() -> None:
    """What the disk holds behind the cut is no longer our log."""
    log = log_with(1, 1, 1, durable=3)

    log.truncate(2)
    log.append([data_entry(2, 2)])

    assert (log.last_index, log.last_term, log.durable_index) == (2, 2, 1)


def test_committed_entries_are_never_truncated() -> None:
    """Our own mistake, if it ever happened, must stop us."""
    log = log_with(1, 1, durable=2)
    log.commit_to(2)

    with pytest.raises(AssertionError, match="committed"):
        log.truncate(2)


def test_log_behind_is_not_up_to_date() -> None:
    """The later last term wins, then the longer log (Raft 5.4.1)."""
    log = log_with(1, 2, 2)

    ours = {"last_chain": log.last_chain}
    assert log.is_up_to_date(last_index=3, last_term=2, **ours)
    assert log.is_up_to_date(last_index=4, last_term=2, last_chain=0)
    assert log.is_up_to_date(last_index=1, last_term=3, last_chain=0)
    assert not log.is_up_to_date(last_index=2, last_term=2, last_chain=log.chain(2))
    assert not log.is_up_to_date(last_index=9, last_term=1, last_chain=0)


@pytest.mark.found
def test_a_log_that_differs_before_the_same_last_entry_is_not_up_to_date() -> None:
    """One of the two is wrong, and whose vote it gets would say that it is right (found: S8)."""
    log = log_with(1, 2, 2)

    assert not log.is_up_to_date(last_index=3, last_term=2, last_chain=log.last_chain ^ 1)


def test_memberships_are_part_of_the_helper_log() -> None:
    """The founding entry is the log's first."""
    assert ListDisk(log_of(1)).memberships()[0][0] == 1


@given(st.data())
def test_completions_never_claim_more_than_the_disk_holds(data: st.DataObject) -> None:
    """Random appends, truncations and syncs; compared with a list that is overwritten in order."""
    log = log_with()
    disk: list[int] = []
    under_way: list[list[tuple[int, int]]] = []
    mine: list[int] = []
    for step in range(data.draw(st.integers(0, 25))):
        action = data.draw(st.sampled_from(["append", "truncate", "take", "sync"]))
        if action == "append":
            mine.append(max([*mine[-1:], data.draw(st.integers(1, 3))]))
            log.append([data_entry(mine[-1], len(mine))])
        elif action == "truncate" and mine:
            first = data.draw(st.integers(1, len(mine)))
            log.truncate(first)
            mine[first - 1 :] = [mine[first - 1 :][0] + data.draw(st.integers(0, step))]
            log.append([data_entry(mine[-1], first)])
        elif action == "take" and log.has_work():
            under_way.append([(e.index, e.term) for e in log.take_writes()])
        elif action == "sync" and under_way:
            for _ in range(data.draw(st.integers(1, len(under_way)))):
                done = under_way.pop(0)
                disk[done[0][0] - 1 :] = [term for _, term in done]
            log.persisted(done[-1][1], done[-1][0])

        durable = log.durable_index
        assert disk[:durable] == mine[:durable]
        # What is on its way must not touch what we call durable.
        assert all(write[0][0] > durable for write in under_way)


@given(st.data())
def test_terms_and_chains_are_right_wherever_the_log_is_kept(data: st.DataObject) -> None:
    """On disk, in memory, and where the two meet; through cuts, applying and snapshots."""
    found = data.draw(st.lists(st.integers(1, 3), max_size=4).map(sorted))
    mine = entries_of(*found)
    disk = ListDisk(mine)
    log = RaftLog(disk, 0, max_unapplied_bytes=2 * HELD)
    chains, begins, base_term = [0], 0, 0
    for _ in range(data.draw(st.integers(0, 25))):
        action = data.draw(st.sampled_from(["append", "truncate", "sync", "apply", "install"]))
        term = max((entry.term for entry in mine), default=base_term) + data.draw(st.integers(0, 2))
        if action == "append":
            entry = data_entry(term, log.last_index + 1, data.draw(st.binary(max_size=4)))
            log.append([entry])
            mine.append(entry)
        elif action == "truncate" and log.last_index > log.commit_index:
            first = data.draw(st.integers(log.commit_index + 1, log.last_index))
            log.truncate(first)
            del mine[first - 1 - begins :]
        elif action == "sync" and (written := log.take_writes()):
            disk.write(written)
            disk.sync()
            log.persisted(written[-1].term, written[-1].index)
        elif action == "apply":
            log.commit_to(data.draw(st.integers(log.commit_index, log.last_index)))
            log.take_committed(1 << 20)
        elif action == "install" and log.last_index:
            begins, base_term, mine = log.last_index + data.draw(st.integers(1, 3)), term + 1, []
            chains = [data.draw(st.integers(1, 9))]
            disk.begin_behind(begins, base_term, chains[0], ())
            log.install(begins, base_term, chains[0])
        chains[1:] = chains_behind(chains[0], mine)
        terms = [base_term, *(entry.term for entry in mine)]

        kept = range(begins, log.last_index + 1)
        assert [log.term(index) for index in kept] == terms
        assert [log.chain(index) for index in kept] == chains


def test_only_what_is_durable_here_is_handed_over_for_applying() -> None:
    """Committed by others and not yet on our disk: the state must not get ahead of the log."""
    log = log_with(1)
    log.take_writes()
    log.append([data_entry(1, 2), data_entry(1, 3)])
    log.take_writes()
    log.persisted(term=1, index=1)
    log.commit_to(3)

    assert [entry.index for entry in log.take_committed(1 << 20)] == [1]
    assert log.take_committed(1 << 20) == ()
