"""The dedupe window against a plain dictionary, and its bounds."""

from __future__ import annotations

import tracemalloc
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.broker import deduplication, snapshot_codec
from dledger.broker.body_digests import Digests, digest_of, digests_of
from dledger.broker.deduplication import (
    FORGOTTEN_AT_ONCE,
    MAX_STEP_MS,
    SILENCE_MS,
    DeduplicationWindow,
)
from dledger.broker.id_runs import IdRun, Ids
from dledger.broker.snapshot_codec import MalformedStateError, Reader

_IDS = st.one_of(
    st.integers(0, 30).map(lambda n: b"%d" % n),
    st.integers(0, 30).map(lambda n: b"%012d" % n),
    st.integers(0, 30).map(lambda n: b"%%b%012d" % n),
    st.integers(-2, 2).map(lambda n: b"p%012d" % (10**12 + n)),
)
_RUNS = st.builds(IdRun, st.sampled_from([b"", b"%b"]), st.integers(0, 30), st.integers(1, 8))
_BATCHES = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.one_of(
            st.lists(_IDS, min_size=1, max_size=8, unique=True).map(tuple),
            _RUNS,
            _RUNS.map(IdRun.spelled_out),
        ),
        st.integers(0, 7),
    ),
    max_size=30,
)


def _spelled_out(ids: Ids) -> tuple[bytes, ...]:
    return ids.spelled_out() if isinstance(ids, IdRun) else ids


def _digests(ids: Ids) -> Digests:
    """Return digests that follow from the ids, for tests in which they do not matter."""
    return digests_of(_spelled_out(ids))


def _remember_one(
    window: DeduplicationWindow, client: str, topic: str, ids: Ids, *, queue_id: int, first: int
) -> None:
    window.remember(client, topic, ids, _digests(ids), queue_id=queue_id, first=first)


def _place(
    window: DeduplicationWindow, client: str, topic: str, message_id: bytes
) -> tuple[int, int] | None:
    """Return where a message is, whose body has the digest that `_digests` gave it."""
    found = window.find(client, topic, message_id)
    if found is None:
        return None
    assert found.digest == digest_of(message_id)
    return found.queue_id, found.offset


def _encoded(window: DeduplicationWindow) -> bytes:
    return b"".join(window.freeze()())


def _decoded(data: bytes) -> DeduplicationWindow:
    window = DeduplicationWindow()
    window.read(Reader(data))
    return window


@given(_BATCHES)
def test_a_window_that_is_not_full_is_a_dictionary(batches: list[tuple[str, Ids, int]]) -> None:
    """Every id is found at its first place, unknown ones are new; however they are told."""
    window = DeduplicationWindow()
    model: dict[tuple[str, bytes], tuple[int, int]] = {}
    offset = 0

    for client, batch, queue_id in batches:
        ids = _spelled_out(batch)
        known = [model.get((client, i)) for i in ids]
        assert window.is_new(client, "t", batch) == window.is_new(client, "t", ids)
        assert window.is_new(client, "t", batch) == (not any(known))
        assert [_place(window, client, "t", i) for i in ids] == known
        fresh = tuple(i for i, place in zip(ids, known, strict=True) if place is None)
        if fresh:
            told = batch if len(fresh) == len(ids) else fresh
            _remember_one(window, client, "t", told, queue_id=queue_id, first=offset)
            model |= {(client, i): (queue_id, offset + row) for row, i in enumerate(fresh)}
            offset += len(fresh)
        assert len(window) == len(model)
    copy = _decoded(_encoded(window))
    assert all(_place(copy, client, "t", i) == place for (client, i), place in model.items())


@given(_BATCHES, st.integers(1, 20), st.integers(1, 20))
def test_a_bounded_window_is_the_same_however_it_came_about(
    batches: list[tuple[str, Ids, int]], of_client: int, in_all: int
) -> None:
    """Runs or ids, from entries or from a snapshot: the state of all replicas is one."""
    told, spelled = (
        DeduplicationWindow(max_ids=in_all, max_ids_of_client=of_client) for _ in range(2)
    )

    for number, (client, batch, queue_id) in enumerate(batches):
        if told.is_new(client, "t", batch):
            _remember_one(told, client, "t", batch, queue_id=queue_id, first=8 * number)
            ids = _spelled_out(batch)
            _remember_one(spelled, client, "t", ids, queue_id=queue_id, first=8 * number)
        assert len(told) <= in_all
        assert _encoded(told) == _encoded(spelled)
        assert _encoded(_decoded(_encoded(told))) == _encoded(told)
    assert told.canonical() == spelled.canonical() == _decoded(_encoded(told)).canonical()


def test_a_run_is_one_thing_to_remember() -> None:
    """Half a million ids take a snapshot of half a megabyte, beside the digests of the bodies."""
    window = DeduplicationWindow(max_ids_of_client=1 << 19)
    for batch in range(1 << 13):
        ids = IdRun(b"0123456789abcdef0123", batch << 6, 64)
        _remember_one(window, "c", "t", ids, queue_id=0, first=batch << 6)

    assert len(window) == 1 << 19
    assert len(_encoded(window)) - 8 * len(window) < 1 << 19
    assert _place(window, "c", "t", b"0123456789abcdef0123000000000777") == (0, 777)


def test_single_messages_cost_a_number_each() -> None:
    """In tuples, a producer of them filled a node's memory for twenty minutes."""
    window, count = DeduplicationWindow(max_ids_of_client=1 << 19), 20_000
    tracemalloc.start()
    for row in range(count):
        ids = IdRun(b"0123456789abcdef0123", row, 1)
        _remember_one(window, "c", "t", ids, queue_id=row % 8, first=row // 8)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(window) == count
    assert taken / count < 90
    assert _place(window, "c", "t", b"0123456789abcdef0123000000000777") == (1, 97)


def test_an_id_that_occurs_twice_in_a_batch_is_not_new() -> None:
    """A batch with a repetition inside takes the careful path."""
    assert not DeduplicationWindow().is_new("c", "t", (b"p000000000001", b"p000000000001"))
    assert not DeduplicationWindow().is_new("c", "t", (b"1", b"1"))


def test_the_same_id_of_another_client_or_topic_is_another_message() -> None:
    """Clients number their messages as they like."""
    window = DeduplicationWindow()
    _remember_one(window, "c", "t", (b"1",), queue_id=0, first=0)

    assert _place(window, "d", "t", b"1") is None
    assert _place(window, "c", "u", b"1") is None


def test_a_client_forgets_its_own_oldest_ids() -> None:
    """The window of one client is bounded."""
    window = DeduplicationWindow(max_ids_of_client=4)
    for n in range(6):
        _remember_one(window, "c", "t", (b"%d" % n,), queue_id=0, first=n)

    assert [_place(window, "c", "t", b"%d" % n) is None for n in range(6)] == [True, True] + [
        False
    ] * 4
    assert len(window) == 4


def test_a_busy_client_does_not_push_out_a_slow_one() -> None:
    """Ten thousand messages of one client later, another's retry is still recognised."""
    window = DeduplicationWindow(max_ids=2_000, max_ids_of_client=1_000)
    _remember_one(window, "slow", "t", (b"retry me",), queue_id=3, first=42)
    for n in range(100):
        ids = tuple(b"%d-%d" % (n, row) for row in range(100))
        _remember_one(window, "busy", "t", ids, queue_id=0, first=n * 100)

    assert _place(window, "slow", "t", b"retry me") == (3, 42)


def test_the_least_recently_used_clients_give_way() -> None:
    """The whole window is bounded, however many clients there are."""
    window = DeduplicationWindow(max_ids=10)
    for n in range(100):
        _remember_one(window, f"c{n}", "t", (b"1", b"2"), queue_id=0, first=n)

    assert len(window) == 10
    assert _place(window, "c99", "t", b"2") == (0, 100)
    assert _place(window, "c0", "t", b"1") is None
    assert len(window.canonical()) == 5


@pytest.mark.parametrize(
    ("counts", "places", "others", "prefixes", "rows", "message"),
    [
        ([0], [5], [], [1], [0], "a batch of 0"),
        ([2], [(1 << 64) - 5], [], [1], [0], "a batch of 2"),
        ([2], [5], [], [2], [0], "prefix 2 of 1"),
        ([2], [5], [], [1], [10**12 - 1], "prefix 1 of 1"),
        ([2], [5], [b"a"], [0], [0], "in batches of 2"),
        ([1], [5], [b"a", b"b"], [0], [0], "in batches of 1"),
        ([2], [5], [b"a", b"a"], [0], [0], "occurs twice"),
        ([2, 1], [5, 6], [], [1, 1], [0, 1], "occurs twice"),
        ([1, 1], [5, 6], [b"a", b"a"], [0, 0], [0, 0], "occurs twice"),
        ([1, 1], [5, 6], [b"p000000000004"], [0, 1], [0, 4], "occurs twice"),
        ([1, 1], [5, 5], [], [1, 1], [0, 1], "occurs twice"),
        ([(1 << 19) + 1], [5], [], [1], [0], "524288 at most"),
    ],
)
def test_a_window_that_contradicts_itself_is_refused(  # noqa: PLR0917 - a column each
    counts: list[int],
    places: list[int],
    others: list[bytes],
    prefixes: list[int],
    rows: list[int],
    message: str,
) -> None:
    """An id or a place that occurs twice, a prefix or an id that is not there, no messages."""
    parts = (
        (snapshot_codec.number(2_000), snapshot_codec.number(1_000), snapshot_codec.number(1)),
        *(snapshot_codec.strings(items) for items in ([b"client"], [b"topic"])),
        snapshot_codec.column("I", 1, [0]),
        snapshot_codec.column("q", 1, [1_000]),
        snapshot_codec.column("I", 1, [len(counts)]),
        snapshot_codec.column("I", len(counts), counts),
        snapshot_codec.column("Q", len(places), places),
        *(snapshot_codec.strings(items) for items in ([b"p"], others)),
        snapshot_codec.column("I", len(prefixes), prefixes),
        snapshot_codec.column("Q", len(rows), rows),
        snapshot_codec.column("Q", sum(counts), [0] * sum(counts)),
    )

    with pytest.raises(MalformedStateError, match=message):
        _decoded(b"".join(chain.from_iterable(parts)))


def _send(window: DeduplicationWindow, client: str, now_ms: int, message_id: bytes = b"1") -> None:
    """Let a client send one message, again if it is known."""
    window.heard(client, "t", now_ms)
    if window.is_new(client, "t", (message_id,)):
        _remember_one(window, client, "t", (message_id,), queue_id=0, first=now_ms)


def _pass(window: DeduplicationWindow, now_ms: int, duration_ms: int) -> None:
    """Let time pass in which clients are heard that nothing is remembered of, each minute."""
    for at_ms in range(now_ms, now_ms + duration_ms, MAX_STEP_MS):
        window.heard("passing", "t", at_ms)


def test_a_client_is_forgotten_after_an_hour_of_silence_and_not_before() -> None:
    """A retry that comes within the hour is known, whoever else sends meanwhile."""
    window = DeduplicationWindow(silent_kept=0)
    _send(window, "quiet", 1_000)
    _pass(window, 1_000, SILENCE_MS)

    _send(window, "other", 1_000 + SILENCE_MS - 1)
    assert _place(window, "quiet", "t", b"1") == (0, 1_000)

    _send(window, "other", 1_000 + SILENCE_MS)
    assert _place(window, "quiet", "t", b"1") is None
    assert len(window) == 1


def test_an_hour_in_which_nobody_could_send_is_none() -> None:
    """A night's outage, or a new leader whose wall clock is ahead: the retry behind it is known.

    Seeds 20030174 and 20030195 of the simulator: stored twice.
    """
    window = DeduplicationWindow()
    _send(window, "c", 1_000)

    for n in range(1, 50):
        _send(window, "other", 1_000 + n * 10 * SILENCE_MS, b"%d" % n)

    assert not window.is_new("c", "t", (b"1",))


def test_a_retry_is_a_sign_of_life() -> None:
    """It stores nothing, and the hour begins anew."""
    window = DeduplicationWindow(silent_kept=1)
    _send(window, "retrying", 1_000)
    _send(window, "quiet", 2_000)
    _pass(window, 2_000, SILENCE_MS - 2_000)

    _send(window, "retrying", 1_000 + SILENCE_MS - 1)
    _send(window, "other", 2_000 + SILENCE_MS)

    assert _place(window, "retrying", "t", b"1") == (0, 1_000)
    assert _place(window, "quiet", "t", b"1") is None


def test_silent_clients_go_a_few_at_a_time() -> None:
    """A hundred thousand that fell silent together hold up no single message."""
    window, silent = DeduplicationWindow(silent_kept=1), 3 * FORGOTTEN_AT_ONCE
    for n in range(silent):
        _send(window, f"c{n}", 1_000)
    _pass(window, 1_000, SILENCE_MS)

    left = []
    for n in range(4):
        _send(window, "alive", 1_000 + SILENCE_MS, b"%d" % n)
        left.append(len(window))

    assert left == [1 + n + max(silent - (n + 1) * FORGOTTEN_AT_ONCE, 0) for n in range(4)]


def test_short_lived_producers_leave_nothing_behind() -> None:
    """A client id is new at each start of an SDK: one message a run, for a year of runs."""
    window, runs = DeduplicationWindow(silent_kept=1), 10_000
    for n in range(runs):
        _send(window, f"run-{n}", n * SILENCE_MS // 10)

    assert len(window.canonical()) <= SILENCE_MS // MAX_STEP_MS + 1


def test_how_long_a_client_was_silent_is_in_a_snapshot() -> None:
    """So all nodes forget it at the same entry, whoever was restarted."""
    window = DeduplicationWindow(silent_kept=1)
    _send(window, "a", 1_000)
    _send(window, "b", 2_000)
    _pass(window, 2_000, SILENCE_MS - 2_000)
    restored = DeduplicationWindow(silent_kept=1)
    restored.read(Reader(_encoded(window)))

    for each in (window, restored):
        _send(each, "c", 1_000 + SILENCE_MS)

    assert restored.canonical() == window.canonical()
    assert _place(restored, "a", "t", b"1") is None
    assert _place(restored, "b", "t", b"1") == (0, 2_000)


def test_there_are_only_so_many_clients() -> None:
    """Beyond that the least recently used ones are let go, with all their ids."""
    window = DeduplicationWindow(max_clients=2)
    for n, client in enumerate(["a", "b", "a", "c"]):
        window.heard(client, "t", n)
        _remember_one(window, client, "t", (b"%d" % n,), queue_id=0, first=n)

    assert [_place(window, client, "t", b"%d" % n) for n, client in enumerate("aba")] == [
        (0, 0),
        None,
        (0, 2),
    ]
    assert len(window) == 3


def test_a_producer_that_comes_back_from_an_outage_is_known() -> None:
    """A spool may wait for days: while there are few others, silence costs a client nothing."""
    window, days = DeduplicationWindow(silent_kept=5), 3 * 24 * SILENCE_MS
    _send(window, "spool", 1_000)
    for n in range(4):
        _send(window, f"other-{n}", days)

    _send(window, "spool", 2 * days)
    assert _place(window, "spool", "t", b"1") == (0, 1_000)

    _pass(window, 2 * days, SILENCE_MS)
    for _ in range(2):
        _send(window, "one-more", 2 * days + SILENCE_MS)
    assert [_place(window, f"other-{n}", "t", b"1") is None for n in range(2)] == [True, False]


def test_clients_are_cut_up_into_parts_of_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many clients, and clients of many batches, come back in their order."""
    monkeypatch.setattr(deduplication, "_CLIENTS_TOGETHER", 3)
    monkeypatch.setattr(deduplication, "_BATCHES_TOGETHER", 4)
    window = DeduplicationWindow()
    for number_of, batches in enumerate([1, 1, 1, 2, 9, 1, 4, 1]):
        for batch in range(batches):
            ids = (b"%d" % batch,)
            _remember_one(
                window, f"c{number_of}", f"t{number_of % 3}", ids, queue_id=0, first=batch
            )

    assert _decoded(_encoded(window)).canonical() == window.canonical()


@given(_BATCHES, _BATCHES, st.integers(1, 20), st.integers(1, 20))
def test_a_snapshot_of_the_window_is_of_the_moment_it_was_asked_for(
    before: list[tuple[str, Ids, int]],
    after: list[tuple[str, Ids, int]],
    of_client: int,
    in_all: int,
) -> None:
    """What is remembered and forgotten before it is encoded does not show in it."""
    window = DeduplicationWindow(max_ids=in_all, max_ids_of_client=of_client)
    _remember(window, before, first=0)
    expected = _encoded(window)
    frozen = window.freeze()
    window.edition.end()

    _remember(window, after, first=1000)

    assert b"".join(frozen()) == expected


def _remember(
    window: DeduplicationWindow, batches: list[tuple[str, Ids, int]], *, first: int
) -> None:
    for client, batch, queue_id in batches:
        if window.is_new(client, "t", batch):
            _remember_one(window, client, "t", batch, queue_id=queue_id, first=first)
            first += 8


# -- who gives way -------------------------------------------------------------------------------

_SENDS = st.lists(
    st.tuples(
        st.sampled_from([("a", "t"), ("b", "t"), ("c", "t"), ("a", "u"), ("d", "u"), ("e", "v")]),
        st.integers(1, 6),
        st.integers(0, 2),
    ),
    max_size=60,
)


class _Model:
    """The window as plain lists: of each (topic, client) its batches, oldest first."""

    def __init__(self, *, in_all: int, of_client: int, clients: int) -> None:
        self.in_all, self.of_client, self.max_clients = in_all, of_client, clients
        self.batches: dict[tuple[str, str], list[list[bytes]]] = {}
        self.used: dict[tuple[str, str], int] = {}

    def held(self, key: tuple[str, str]) -> int:
        return sum(map(len, self.batches[key]))

    def of_topic(self, topic: str) -> list[tuple[str, str]]:
        return [key for key in self.batches if key[0] == topic]

    def forget(self, key: tuple[str, str]) -> None:
        del self.batches[key], self.used[key]

    def remember(self, key: tuple[str, str], ids: list[bytes], now_ms: int) -> None:
        self.batches.setdefault(key, []).append(ids)
        self.used[key] = now_ms
        while self.held(key) > self.of_client:
            self.batches[key].pop(0)
        while sum(map(self.held, self.batches)) > self.in_all:
            topics = {key[0] for key in self.batches}
            ids_of = {topic: sum(map(self.held, self.of_topic(topic))) for topic in topics}
            topic = min(topics, key=lambda each: (-ids_of[each], each))
            largest = min(
                self.of_topic(topic), key=lambda each: (-self.held(each), self.used[each], each)
            )
            self.batches[largest].pop(0)
            if not self.batches[largest]:
                self.forget(largest)
        if len(self.batches) > self.max_clients:
            topics = {key[0] for key in self.batches}
            topic = min(topics, key=lambda each: (-len(self.of_topic(each)), each))
            self.forget(min(self.of_topic(topic), key=lambda each: (self.used[each], each)))

    def known(self) -> set[tuple[str, bytes]]:
        return {(k[0] + k[1], i) for k, batches in self.batches.items() for b in batches for i in b}


@pytest.mark.found
@given(_SENDS, st.integers(6, 25), st.integers(6, 20), st.integers(1, 6), st.integers(0, 60))
def test_who_holds_most_gives_way(
    sends: list[tuple[tuple[str, str], int, int]],
    in_all: int,
    of_client: int,
    clients: int,
    restarted_at: int,
) -> None:
    """By its oldest ids; as on a node that had the window from a snapshot; found: S11."""
    bounds = {"max_ids": in_all, "max_ids_of_client": of_client, "max_clients": clients}
    window, model = (
        DeduplicationWindow(**bounds),
        _Model(in_all=in_all, of_client=of_client, clients=clients),
    )
    everything: set[tuple[str, str, bytes]] = set()
    now_ms = 1_000

    for number, ((client, topic), count, pause_ms) in enumerate(sends):
        now_ms += pause_ms
        ids = tuple(b"%d-%d" % (number, row) for row in range(count))
        window.heard(client, topic, now_ms)
        _remember_one(window, client, topic, ids, queue_id=0, first=10 * number)
        model.remember((topic, client), list(ids), now_ms)
        everything |= {(client, topic, i) for i in ids}
        if number % 3 == 0:
            window.edition.end()
        if number == restarted_at:
            restored = DeduplicationWindow(**bounds)
            restored.read(Reader(_encoded(window)))
            window = restored
        known = {(t + c, i) for c, t, i in everything if _place(window, c, t, i)}
        assert known == model.known()
        assert len(window) == len(known)


@pytest.mark.found
def test_junk_pushes_out_junk() -> None:
    """129 batches of others under their own ids, then a quiet producer's retry; found: S11."""
    window = DeduplicationWindow()
    _send(window, "quiet", 1_000, b"the-id")
    for k in range(129):
        window.heard(f"c{k}", "t", 1_001 + k)
        ids = IdRun(b"%d" % k, 0, 4096)
        _remember_one(window, f"c{k}", "t", ids, queue_id=0, first=4096 * k)

    assert not window.is_new("quiet", "t", (b"the-id",))
    assert len(window) <= deduplication.MAX_IDS


@pytest.mark.found
def test_many_clients_of_one_topic_push_out_each_other() -> None:
    """Not the one client of another topic, who was silent longer; found: S11."""
    window = DeduplicationWindow(max_clients=100)
    window.heard("quiet", "pay", 1_000)
    _remember_one(window, "quiet", "pay", (b"1",), queue_id=0, first=0)
    for n in range(300):
        _send(window, f"other-{n}", 1_001 + n)

    assert not window.is_new("quiet", "pay", (b"1",))
    assert window.is_new("other-0", "t", (b"1",))
    assert not window.is_new("other-299", "t", (b"1",))
