"""The last sequences of spools' lanes: histories against a plain model, and their bounds."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.broker.command_frame import HEADER_BYTES, MalformedCommandError
from dledger.broker.commands import CreateTopic, DeleteTopic, Leap
from dledger.broker.deduplication import SILENCE_MS, SILENT_KEPT, DeduplicationWindow
from dledger.broker.message import Columns, Message
from dledger.broker.produce import ProduceFrame, encode_produce, without_client_id
from dledger.broker.replayed_lanes import FORGOTTEN_AT_ONCE, KEPT_MS, MAX_LANES, ReplayedLanes
from dledger.broker.results import NOWHERE, Produced
from dledger.broker.snapshot_codec import MalformedStateError, Reader
from dledger.broker.state import BrokerState
from dledger.common.replay_mark import MAX_SEQUENCE, ReplayMark, lane_key
from dledger.errors import UnknownTopic
from tests.broker.log import Log

_DAY_MS = 24 * 3_600_000
_TOKEN = bytes(range(16))


class _SmallState(BrokerState):
    """One whose window forgets soon, before and after a restart."""

    def __init__(self) -> None:
        super().__init__(DeduplicationWindow(max_ids=9, max_ids_of_client=4, silent_kept=1))


def _key(topic: str = "t", client: str = "c", token: bytes = _TOKEN, lane: int = 0) -> bytes:
    return lane_key(token, client_id=client, topic=topic, lane=lane)


def _send(
    log: Log,
    first: int,
    count: int = 1,
    *,
    topic: str = "t",
    client: str = "c",
    token: bytes | None = _TOKEN,
    bodies: dict[int, str] | None = None,
) -> Produced:
    """Send the messages of a lane from sequence *first* on; marked, if there is a token."""
    whose = token.hex()[:2] if token is not None else "0"
    messages = [
        Message(
            message_id=f"{client}-{whose}-{n}",
            body=(bodies or {}).get(n, f"{client} {whose} {n}").encode(),
        )
        for n in range(first, first + count)
    ]
    mark = None if token is None else ReplayMark(_key(topic, client, token), first)
    command = encode_produce(
        Columns.of(messages), client_id=client, topic=topic, queue_id=0, replay=mark
    )
    (result,) = log.append(command)
    assert isinstance(result, Produced), result
    return result


# -- histories against a plain model ---------------------------------------------------------------


@dataclass
class _Lane:
    """What a spool has sent in one lane, and what the group must know of it."""

    topic: str
    client: str
    token: bytes
    last: int = 0
    used_ms: int = 0
    stored: dict[int, int] = field(default_factory=dict)
    """The offset of each sequence that was stored."""


class _World:
    """A log, and the lanes as a plain model has them; it says what each answer has to be."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.log = rng, Log(state=_SmallState())
        self.lanes = [
            _Lane(topic, client, bytes([number]) * 16)
            for topic in "tu"
            for client in "ab"
            for number in (1, 2)
        ]
        self.others = 0
        for topic in "tu":
            self._make(topic)

    def step(self) -> None:
        choice = self.rng.randrange(12)
        if choice < 6:
            self._replay(self.rng.choice(self.lanes))
        elif choice < 8:
            self._others()
        elif choice == 8:
            self._restart()
        elif choice == 9:
            self.log.now_ms += self.rng.choice((1, 3_700_000, 3 * _DAY_MS, 29 * _DAY_MS))
        elif choice == 10:
            self._sleep()
        elif self.rng.random() < 0.2:
            self._delete(self.rng.choice("tu"))

    def _make(self, topic: str) -> None:
        self.log.append(CreateTopic(name=topic, type="NORMAL", queues=1).encode())

    def _replay(self, lane: _Lane) -> None:
        """Send new messages, or a repeat, or both; sometimes with some left out."""
        first = self.rng.choice((1, max(1, lane.last - 2), lane.last + 1, lane.last + 3))
        count = self.rng.randrange(1, 6)
        known = max(0, lane.last - first + 1)

        told = _send(self.log, first, count, topic=lane.topic, client=lane.client, token=lane.token)

        assert not told.conflicts
        assert told.stored == count - len(told.repeats)
        for row, offset in enumerate(told.offsets):
            before = lane.stored.get(first + row)
            if row < known:
                assert row in told.repeats
                assert offset in (NOWHERE, before)
            elif row in told.repeats:  # the window knows it, of a lane whose time was up
                assert before is not None
                assert offset == before
            else:
                lane.stored[first + row] = offset
        lane.last = max(lane.last, first + count - 1)
        lived_ms = lane.used_ms = self.log.state.time.lived_ms
        for each in self.lanes:
            if each.used_ms + KEPT_MS <= lived_ms:
                each.last = 0

    def _others(self) -> None:
        """Have clients that send once push the ids of all others out of the window."""
        for _ in range(self.rng.randrange(12)):
            self.others += 1
            topic = self.rng.choice("tu")
            self.log.produce("x", topic=topic, client=f"other-{self.others}", ids=("1",))

    def _restart(self) -> None:
        data, digest = self.log.state.encode(), self.log.state.digest()
        self.log.state = _SmallState.decode(data)
        assert self.log.state.digest() == digest
        assert self.log.state.encode() == data

    def _sleep(self) -> None:
        """Let the whole group be away for longer than lanes are kept; nobody lives through that."""
        from_ms, self.log.now_ms = self.log.now_ms, self.log.now_ms + 2 * KEPT_MS
        self.log.append(Leap(from_ms=from_ms, to_ms=self.log.now_ms).encode())

    def _delete(self, topic: str) -> None:
        found = self.log.state.topics.named(topic)
        self.log.append(DeleteTopic(name=topic, generation=found.generation).encode())
        self._make(topic)
        for lane in self.lanes:
            if lane.topic == topic:
                lane.last, lane.stored = 0, {}


@given(st.integers(0, 1 << 32), st.integers(1, 80))
@settings(max_examples=150, deadline=None)
def test_each_message_of_a_lane_is_stored_once_whatever_happens_between(
    seed: int, steps: int
) -> None:
    """Repeats, parts of them, gaps, days, outages, restarts, other clients, topics made anew.

    What is not behind the last sequence is known and not stored; all else is stored; a place that
    is told is the right one; and the log alone gives the same state.
    """
    world = _World(random.Random(seed))
    for _ in range(steps):
        world.step()

    again = _SmallState()
    for entry in world.log.entries:
        again.apply(entry)
    assert again.digest() == world.log.state.digest()
    assert again.encode() == world.log.state.encode()


def test_a_host_that_was_cut_off_for_three_days_doubles_nothing() -> None:
    """Its answer was lost; 20,000 other clients sent meanwhile, and the window forgot its ids."""
    log = Log()
    log.create()
    before = _send(log, 1, 100)
    per_ms = 3 * _DAY_MS // 20_000
    for number in range(20_000):
        log.now_ms += per_ms
        log.produce("x", client=f"other-{number}", ids=(f"{number}",))
    log.state = BrokerState.decode(log.state.encode())

    again = _send(log, 1, 150)

    assert SILENT_KEPT < 20_000  # so the ids are forgotten indeed
    assert SILENCE_MS < 3 * _DAY_MS
    assert list(again.repeats) == list(range(100))
    assert set(again.offsets[:100]) == {NOWHERE}
    assert (before.stored, again.stored) == (100, 50)
    assert log.state.topics.messages("t") == 20_150


# -- rows ------------------------------------------------------------------------------------------


def test_the_window_and_the_sequence_each_know_what_the_other_does_not() -> None:
    """A live send whose answer was lost is known by its id, though no sequence was told with it."""
    log = Log()
    log.create()
    bodies = {n: f"b{n}" for n in range(1, 9)}
    live = log.produce("b2", "b3", ids=("c-00-2", "c-00-3"))

    told = _send(log, 1, 4, bodies=bodies)
    again = _send(log, 1, 4, bodies=bodies)

    assert (list(told.repeats), told.stored) == ([1, 2], 2)
    assert told.offsets[1:3] == tuple(live.offsets)
    assert list(again.repeats) == [0, 1, 2, 3]
    assert again.offsets == told.offsets


def test_the_sequence_never_passes_a_message_that_is_not_stored() -> None:
    """An id is another's: its row is no message yet, and is not taken for one when it comes."""
    log = Log()
    log.create()
    log.produce("stolen", ids=("c-00-3",))

    told = _send(log, 1, 4)

    assert (list(told.conflicts), told.stored) == ([2], 3)
    assert list(_send(log, 1, 2).repeats) == [0, 1]
    assert list(_send(log, 3).conflicts) == [0]
    assert list(_send(log, 1, 5).repeats) == [0, 1, 3]  # the last by its id


def test_what_is_known_by_its_sequence_conflicts_with_nothing() -> None:
    """It is stored, wherever that is: another message under its id came later, or before."""
    log = Log()
    log.create()
    _send(log, 1, 2)

    told = _send(log, 1, 2, bodies={2: "another"})

    assert (list(told.repeats), list(told.conflicts)) == ([0, 1], [])
    assert told.offsets == (0, NOWHERE)


def test_messages_without_ids_are_known_by_their_sequence() -> None:
    """No window knows them."""
    log = Log()
    log.create()
    batch = Columns.of([Message(message_id="", body=b"%d" % n) for n in range(3)])

    def send(first: int) -> object:
        mark = ReplayMark(_key(), first)
        return log.append(encode_produce(batch, client_id="c", topic="t", replay=mark))[0]

    results = [send(1), send(1), send(2)]

    assert [r.stored for r in results if isinstance(r, Produced)] == [3, 0, 1]


def test_a_refused_batch_leaves_its_lane_as_it_was() -> None:
    """Its topic is gone; made anew, it has had nothing of the lane."""
    log = Log()
    mark = ReplayMark(_key(), 1)
    batch = Columns.of([Message(message_id="1", body=b"x")])
    refused = log.append(encode_produce(batch, client_id="c", topic="t", replay=mark))

    log.create()
    told = _send(log, 1)

    assert isinstance(refused[0], UnknownTopic)
    assert told.stored == 1


def test_lanes_are_of_one_token_client_topic_and_number() -> None:
    """Two spools, clients, topics or numbers never count for each other."""
    keys = {
        _key(),
        _key(token=bytes(16)),
        _key(client="d"),
        _key(topic="u"),
        _key(lane=1),
        _key(client="ct", topic=""),
    }

    assert len(keys) == 6
    assert _key().hex() == "63242997e89f5b22e9a1f00aeaab1df2"


# -- the frame -------------------------------------------------------------------------------------


def test_readers_are_told_neither_lane_nor_sequence() -> None:
    """They get the payload as it would be without: the mark is the producer's and the group's."""
    batch = Columns.of([Message(message_id="1", body=b"x", tag="red")])
    mark = ReplayMark(_key(), 7)
    marked = encode_produce(batch, client_id="c", topic="t", replay=mark)
    plain = encode_produce(batch, client_id="c", topic="t")

    head, rest = without_client_id(memoryview(marked)[HEADER_BYTES:])

    assert ProduceFrame(marked, HEADER_BYTES, len(marked)).replay == mark
    plain_head, plain_rest = without_client_id(memoryview(plain)[HEADER_BYTES:])
    assert (head, bytes(rest)) == (plain_head, bytes(plain_rest))


@pytest.mark.parametrize("first", [0, MAX_SEQUENCE])
def test_a_sequence_that_is_none_is_malformed(first: int) -> None:
    """From 1 on, and the last message's has 64 bits, too."""
    batch = Columns.of([Message(message_id=str(n), body=b"x") for n in range(2)])
    command = encode_produce(batch, client_id="c", topic="t", replay=ReplayMark(_key(), first))

    with pytest.raises(MalformedCommandError, match="sequence"):
        ProduceFrame(command, HEADER_BYTES, len(command))


# -- bounds ----------------------------------------------------------------------------------------


class _PlainLanes:
    """The lanes as a list, oldest use first; looks at everything each time."""

    def __init__(self, max_lanes: int, of_client: int) -> None:
        self.max_lanes, self.of_client = max_lanes, of_client
        self.rows: list[tuple[bytes, str, str, int, int]] = []

    def advance(self, key: bytes, last: int, whose: tuple[str, str], lived_ms: int) -> None:
        old = next((row for row in self.rows if row[0] == key), None)
        self.rows = [row for row in self.rows if row[0] != key]
        self.rows.append((key, *whose, max(last, old[3] if old else 0), lived_ms))
        self.rows = [row for row in self.rows if row[4] + KEPT_MS > lived_ms]
        mine = [row for row in self.rows if row[1:3] == whose]
        if len(mine) > self.of_client:
            self._forget(mine)
        if len(self.rows) > self.max_lanes:
            held = {row[1]: sum(each[1] == row[1] for each in self.rows) for row in self.rows}
            most = min(held, key=lambda topic: (-held[topic], topic))
            self._forget([row for row in self.rows if row[1] == most])

    def _forget(self, some: list[tuple[bytes, str, str, int, int]]) -> None:
        self.rows.remove(min(some, key=lambda row: (row[4], row[0])))


_USES = st.lists(
    st.tuples(
        st.sampled_from("tuv"),
        st.sampled_from("abc"),
        st.integers(0, 3),
        st.integers(1, 9),
        st.sampled_from([0, 1, _DAY_MS, 20 * _DAY_MS]),
    ),
    max_size=60,
)


@given(_USES, st.integers(2, 12), st.integers(1, 4))
@settings(deadline=None)
def test_who_gives_way_follows_from_the_lanes_alone(
    uses: list[tuple[str, str, int, int, int]], max_lanes: int, of_client: int
) -> None:
    """As a look at all of them finds, also behind a snapshot: the state of all replicas is one."""
    lanes = ReplayedLanes(max_lanes=max_lanes, of_client=of_client)
    plain, lived_ms = _PlainLanes(max_lanes, of_client), 0

    for topic, client, lane, last, step_ms in uses:
        lived_ms += step_ms
        key, whose = _key(topic, client, lane=lane), (topic, client)
        lanes.advance(key, last, whose=whose, lived_ms=lived_ms)
        plain.advance(key, last, whose, lived_ms)
        copy = ReplayedLanes(max_lanes=max_lanes, of_client=of_client)
        copy.read(Reader(_encoded(lanes)), "tuv")
        assert copy.canonical() == lanes.canonical()
        if lived_ms % 2:
            lanes = copy

    found = [row[:2] + row[3:] for row in lanes.canonical() if isinstance(row, list)]
    assert found == [[key.hex(), topic, *rest] for key, topic, _, *rest in plain.rows]


def _encoded(lanes: ReplayedLanes) -> bytes:
    return b"".join(lanes.freeze()())


def test_a_strangers_flood_pushes_out_itself_and_no_quiet_spool() -> None:
    """Many lanes of one client, and many clients of another topic."""
    lanes = ReplayedLanes(max_lanes=100, of_client=4)
    lanes.advance(b"quiet", 7, whose=("t", "me"), lived_ms=0)
    for number in range(1, 1000):
        lanes.advance(b"%d" % number, 1, whose=("t", "stranger"), lived_ms=number)
        lanes.advance(b"u%d" % number, 1, whose=("u", f"client-{number}"), lived_ms=number)

    assert lanes.last(b"quiet") == 7
    assert len(lanes) == 100


def test_a_lane_is_kept_for_thirty_days_after_its_last_use() -> None:
    """To the millisecond; then it goes with the next use of any lane."""
    lanes = ReplayedLanes()
    lanes.advance(b"a", 1, whose=("t", "c"), lived_ms=5)

    lanes.advance(b"b", 1, whose=("t", "c"), lived_ms=5 + KEPT_MS - 1)
    assert lanes.last(b"a") == 1
    lanes.advance(b"b", 1, whose=("t", "c"), lived_ms=5 + KEPT_MS)
    assert (lanes.last(b"a"), lanes.last(b"b")) == (0, 1)


def test_one_use_forgets_no_more_than_it_may_take() -> None:
    """However many have had their time."""
    lanes = ReplayedLanes()
    for number in range(3 * FORGOTTEN_AT_ONCE):
        lanes.advance(b"%d" % number, 1, whose=("t", f"c{number}"), lived_ms=0)

    lanes.advance(b"new", 1, whose=("t", "c"), lived_ms=KEPT_MS)

    assert len(lanes) == 2 * FORGOTTEN_AT_ONCE + 1


def test_what_a_lane_costs() -> None:
    """44 bytes in a snapshot, and less than half a kilobyte in memory: 2.9 and 28 MB at most."""
    lanes, count = ReplayedLanes(), 20_000
    tracemalloc.start()
    for number in range(count):
        key = number.to_bytes(16, "little")
        lanes.advance(key, 1 << 40, whose=("t", f"client-{number}"), lived_ms=1 << 40)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(_encoded(lanes)) == 44 * count + 53
    assert taken / count < 650
    assert 44 * MAX_LANES < 3_000_000


# -- the snapshot's part ---------------------------------------------------------------------------


def test_the_bytes_of_a_snapshot_are_these() -> None:
    """They are on disks: a change of them is another format."""
    lanes = ReplayedLanes()
    lanes.advance(_key(), 7, whose=("t", "c"), lived_ms=9)
    lanes.advance(_key("u"), MAX_SEQUENCE, whose=("u", "c"), lived_ms=10)

    assert _encoded(lanes).hex() == (
        "020000000000000002000000000000000100000001000000747563242997e89f"
        "5b22e9a1f00aeaab1df231f2e25f5ae33be8b4f95f50431ef2cc020000000000"
        "000000000000010000000200000000000000373f6364cd072c1b373f6364cd07"
        "2c1b02000000000000000700000000000000ffffffffffffffff020000000000"
        "000009000000000000000a00000000000000"
    )


@given(st.data())
@settings(deadline=None)
def test_damaged_lanes_are_refused_or_read_and_never_crash(data: st.DataObject) -> None:
    """Two of one key, a topic that there is not, a sequence 0, times that go back: refused."""
    lanes = ReplayedLanes()
    for number in range(3):
        topic = "tu"[number % 2]
        lanes.advance(_key(topic, lane=number), 7, whose=(topic, "c"), lived_ms=number)
    raw = bytearray(_encoded(lanes))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))

    found = ReplayedLanes()
    try:
        found.read(Reader(bytes(raw[: data.draw(st.integers(0, len(raw)))])), "tu")
    except MalformedStateError:
        return
    assert _encoded(found)


def test_lanes_of_a_topic_that_there_is_not_are_refused() -> None:
    """Nothing would ever forget them."""
    lanes = ReplayedLanes()
    lanes.advance(_key(), 7, whose=("t", "c"), lived_ms=0)

    with pytest.raises(MalformedStateError, match="topics"):
        ReplayedLanes().read(Reader(_encoded(lanes)), "u")
    ReplayedLanes().read(Reader(_encoded(lanes)), "t")
