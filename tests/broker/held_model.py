"""A plain model of held messages beside the real state: what leaders do, and what must hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hypothesis import strategies as st

from dledger.broker.commands import (
    CancelHeld,
    CreateTopic,
    DeleteTopic,
    PauseHeld,
    ResumeHeld,
    Retain,
)
from dledger.broker.due_slots import DueSlots
from dledger.broker.held_commands import What, encode_produce_held, encode_release_held
from dledger.broker.held_refs import HELD_QUEUE, HOUR_MS, Fate, HeldMessage, Kind, Ref
from dledger.broker.message import Columns, Message
from dledger.broker.produce import ProduceFrame, encode_produce
from dledger.broker.results import (
    HeldCancelled,
    HeldPaused,
    HeldReleased,
    HeldResumed,
    Produced,
    TopicCreated,
)
from dledger.broker.state import BrokerState, FrozenState
from dledger.types import Entry, EntryKind, Typed

MINUTE = 60_000
T0 = 1_700_000_000_000


@dataclass
class Wanted:
    """What the model knows of a message that was held once."""

    body: str
    due_ms: int
    kind: Kind
    fate: Fate = Fate.HELD
    is_paused: bool = False
    is_orphaned: bool = False


class Group:
    """A log, a state that applies it, one that is restored now and then, and the model."""

    def __init__(self) -> None:
        self.now_ms, self.skew_ms, self.log_ms = T0, 0, T0
        self.entries: dict[int, Entry] = {}
        self.log: list[Entry] = []
        self.first = 1
        self.state, self.other = BrokerState(), BrokerState()
        self.due = DueSlots(self.state.held)
        self.queue: list[str] = []
        self.messages: dict[Ref, Wanted] = {}
        self.answers: dict[str, tuple[int, int]] = {}
        self.times: dict[str, int] = {}
        self.produced = self.pauses = 0
        self._frozen: tuple[FrozenState, bytes] | None = None
        self.generation = self._create()

    def append(self, *commands: bytes) -> list[object]:
        """Commit an entry; the leader's clock names its time."""
        index = self.state.applied_index + 1
        self.log_ms = max(self.log_ms, self.now_ms + self.skew_ms)
        entry = Entry(
            term=1,
            index=index,
            kind=EntryKind.DATA,
            timestamp_ms=self.log_ms,
            crc32c=0,
            data=b"".join(commands),
        )
        self.entries[index] = entry
        self.log.append(entry)
        found = self.state.apply(entry)
        self.other.apply(entry)
        return found

    def _create(self) -> int:
        (made,) = self.append(CreateTopic(name="t", type="DELAY", queues=1).encode())
        assert isinstance(made, TopicCreated), made
        return made.topic.generation

    # -- what a leader does ------------------------------------------------------------------------

    def read(self, held: HeldMessage) -> Message:
        """Read a held message from the entry that the state names."""
        assert held.payload.index >= self.first, "a held message's entry was dropped"
        data = self.entries[held.payload.index].data
        return ProduceFrame(data, held.payload.start, held.payload.end).message(held.row)

    def commands(self, found: Iterable[HeldMessage], what: What) -> list[bytes]:
        """Return the RELEASE_HELDs of these: one for each topic that there was."""
        by_topic: dict[int, list[HeldMessage]] = {}
        for held in found:
            by_topic.setdefault(held.generation, []).append(held)
        return [
            encode_release_held(
                what,
                [held.ref for held in some],
                Columns.of([self.read(held) for held in some]),
                topic="t",
                generation=generation,
            )
            for generation, some in sorted(by_topic.items())
        ]

    def all_held(self) -> list[HeldMessage]:
        """Return what the state holds."""
        return [
            message
            for _, bucket in sorted(self.state.held.buckets().items())
            for piece in range(bucket.pieces)
            for message in bucket.messages(piece)
        ]

    # -- steps -------------------------------------------------------------------------------------

    def wait(self, ms: int) -> None:
        """Let time go by."""
        self.now_ms += ms

    def clock(self, skew_ms: int) -> None:
        """Let another lead, whose clock is apart; the log's time never goes back."""
        self.skew_ms = skew_ms
        self.due = DueSlots(self.state.held)

    def _command(self, names: Sequence[str], due_ms: Sequence[int], kind: Kind) -> bytes:
        timed = kind is Kind.TIMER
        messages = [
            Message(
                message_id=name,
                body=name.encode(),
                typed=Typed(deliver_at_ms=due) if timed else None,
            )
            for name, due in zip(names, due_ms, strict=True)
        ]
        produce = encode_produce(Columns.of(messages), client_id="c", topic="t")
        return encode_produce_held(kind, due_ms, produce)

    def hold(self, ids: Sequence[int], after_ms: Sequence[int], kind: Kind, *, lost: bool) -> None:
        """Send messages that are to be held; whose answer is lost sends again."""
        names = [f"{kind.name}-{self.generation}-{i}" for i in ids]
        due_ms = [
            self.times.setdefault(name, self.now_ms + after)
            for name, after in zip(names, after_ms, strict=True)
        ]
        for _ in range(1 + lost):
            (found,) = self.append(self._command(names, due_ms, kind))
            assert isinstance(found, Produced), found
            new = 0
            rows = zip(names, due_ms, found.queue_ids, found.offsets, strict=True)
            for name, due, queue_id, offset in rows:
                assert queue_id == HELD_QUEUE
                ref = Ref.unpack(offset)
                if name not in self.answers:
                    assert ref not in self.messages, "a name is one message's"
                    self.answers[name] = queue_id, offset
                    self.messages[ref] = Wanted(name, due, kind)
                    new += 1
                assert self.answers[name] == (queue_id, offset), "a retry is answered alike"
            assert found.stored == new

    def hold_otherwise(self, which: int) -> None:
        """Send an id again, for another time: that is another message, and not stored."""
        timers = [name for name in self.answers if name.startswith("TIMER")]
        if not timers:
            return
        name = timers[which % len(timers)]
        due_ms = self.times[name] + 1
        (found,) = self.append(self._command([name], [due_ms], Kind.TIMER))
        assert isinstance(found, Produced)
        assert (found.stored, tuple(found.conflicts)) == (0, (0,))

    def send_late(self, which: int) -> None:
        """Send again what was held, when it is to be delivered at once: it is a repeat."""
        timers = [name for name in self.answers if name.startswith("TIMER")]
        if not timers:
            return
        name = timers[which % len(timers)]
        message = Message(
            message_id=name, body=name.encode(), typed=Typed(deliver_at_ms=self.times[name])
        )
        (found,) = self.append(encode_produce(Columns.of([message]), client_id="c", topic="t"))
        assert isinstance(found, Produced)
        assert found.stored == 0
        assert (found.queue_ids[0], found.offsets[0]) == self.answers[name]

    def produce(self, count: int) -> None:
        """Send messages that go to their queue at once."""
        names = [f"n-{self.produced}-{i}" for i in range(count)]
        self.produced += 1
        messages = [Message(message_id="", body=name.encode(), tag="x") for name in names]
        (found,) = self.append(encode_produce(Columns.of(messages), client_id="c", topic="t"))
        assert isinstance(found, Produced)
        assert found.offsets[0] == len(self.queue)
        self.queue += names

    def release(self, most: int, *, twice: bool) -> None:
        """Deliver what is due; *twice*: as two leaders do that have the same of it."""
        told = [message for part in self.due.until(self.now_ms) for message in part]
        seconds = [message.due_ms // 1000 for message in told]
        assert seconds == sorted(seconds)
        assert {message.ref for message in told} == {
            ref
            for ref, wanted in self.messages.items()
            if (wanted.kind, wanted.fate) == (Kind.TIMER, Fate.HELD)
            and wanted.due_ms <= self.now_ms
            and not wanted.is_paused
        }
        self.due.put_back(told[most:])
        self._deliver(told[:most], twice=twice)

    def _deliver(self, told: Sequence[HeldMessage], *, twice: bool) -> None:
        for command in self.commands(told, What.DELIVER):
            for again in range(1 + twice):
                (found,) = self.append(command)
                assert isinstance(found, HeldReleased), found
                assert (set(found.before) == {Fate.HELD}) is (not again)
        for message in told:
            wanted = self.messages[message.ref]
            if wanted.is_orphaned:
                wanted.fate = Fate.CANCELLED
            else:
                wanted.fate = Fate.DELIVERED
                self.queue.append(wanted.body)

    def commit(self, which: int, *, twice: bool) -> None:
        """Commit a half, which may have been rolled back before."""
        found = [m for m in self.all_held() if m.kind is Kind.HALF]
        if found:
            self._deliver([found[which % len(found)]], twice=twice)

    def release_late(self, which: int) -> None:
        """Release a message whose release was decided long ago: nothing happens."""
        gone = [ref for ref, wanted in self.messages.items() if wanted.fate is not Fate.HELD]
        if not gone:
            return
        ref = gone[which % len(gone)]
        body = self.messages[ref].body
        columns = Columns.of([Message(message_id=body, body=body.encode())])
        command = encode_release_held(
            What.DELIVER, [ref], columns, topic="t", generation=self.generation
        )
        (found,) = self.append(command)
        assert isinstance(found, HeldReleased)
        assert found.stored is None
        self._check_fate(ref, found.before[0])

    def cancel(self, which: int) -> None:
        """Recall a message, whatever has become of it."""
        if not self.messages:
            return
        ref = sorted(self.messages)[which % len(self.messages)]
        (found,) = self.append(CancelHeld(refs=(ref,)).encode())
        assert isinstance(found, HeldCancelled)
        self._check_fate(ref, found.before[0])
        if self.messages[ref].fate is Fate.HELD:
            self.messages[ref].fate = Fate.CANCELLED

    def pause(self, *, again: bool) -> None:
        """Begin as a restored log does; *again*: say so a second time."""
        self.pauses += not again
        (found,) = self.append(PauseHeld(pause_id=f"p{self.pauses}").encode())
        assert isinstance(found, HeldPaused)
        if not again or found.waiting:
            for wanted in self.messages.values():
                wanted.is_paused = wanted.fate is Fate.HELD

    def resume(self, *, cancels: bool) -> None:
        """Give the word."""
        (found,) = self.append(ResumeHeld(cancels=cancels).encode())
        assert isinstance(found, HeldResumed)
        waited = [w for w in self.messages.values() if w.is_paused and w.fate is Fate.HELD]
        assert found.waited == len(waited)
        for wanted in waited:
            wanted.fate = Fate.CANCELLED if cancels else Fate.HELD
        for wanted in self.messages.values():
            wanted.is_paused = False

    def retain(self, part: int, *, roll: bool) -> None:
        """Drop old entries, having copied what is held there or not."""
        before = self.state.applied_index * part // 100
        if roll:
            self.roll(before)
            assert self.state.held.first_entry >= before
        first = self.state.held.first_entry
        self.append(Retain(before_index=before).encode())
        self.first = self.state.first_index
        assert self.first >= min(before, first)
        for index in [index for index in self.entries if index < self.first]:
            del self.entries[index]

    def roll(self, before: int) -> None:
        """Copy what is held in entries below *before*, piece by piece."""
        for hour, piece in list(self.state.held.pieces_below(before)):
            found = list(self.state.held.buckets()[hour].messages(piece))
            below = [message for message in found if message.payload.index < before]
            for command in self.commands(below or found[:1], What.MOVE):
                self.append(command)

    def restore(self) -> None:
        """Take a snapshot, and let the other replica begin with it."""
        self.check_frozen()
        frozen = self.state.freeze()
        self._frozen = frozen, frozen.encode()
        self.other = BrokerState.decode(self._frozen[1])

    def check_frozen(self) -> None:
        """A snapshot that a thread writes later has the state of its moment."""
        if self._frozen is not None:
            assert self._frozen[0].encode() == self._frozen[1]

    def delete(self) -> None:
        """Delete the topic, and make one of its name."""
        self.append(DeleteTopic(name="t", generation=self.generation).encode())
        self.queue, self.answers, self.times = [], {}, {}
        for wanted in self.messages.values():
            wanted.is_orphaned = True
        self.generation = self._create()

    # -- what must hold ----------------------------------------------------------------------------

    def _check_fate(self, ref: Ref, fate: Fate) -> None:
        wanted = self.messages[ref].fate
        if fate is Fate.UNKNOWN:
            assert wanted is not Fate.HELD
            assert ref.hour < self.log_ms // HOUR_MS - 1, "it is remembered for an hour"
        else:
            assert fate is wanted

    def check(self) -> None:
        """Everything is as the model says, on both replicas."""
        queue = self.state.topics.queue("t", 0)
        assert queue.end == len(self.queue)
        bodies = []
        for offset in range(queue.first, queue.end):
            place = queue.locate(offset)
            data = self.entries[place.payload.index].data  # fails if it was dropped
            frame = ProduceFrame(data, place.payload.start, place.payload.end)
            bodies.append(frame.message(place.row).body.decode())
        assert bodies == self.queue[queue.first :]
        held = {ref for ref, wanted in self.messages.items() if wanted.fate is Fate.HELD}
        assert {message.ref for message in self.all_held()} == held
        for message in self.all_held():
            wanted = self.messages[message.ref]
            assert (message.due_ms, message.kind) == (wanted.due_ms, wanted.kind)
            assert self.read(message).body.decode() == wanted.body
        for ref in self.messages:
            self._check_fate(ref, self.state.held.fate(ref))
        for state in (self.state, self.other):
            assert state.held.count == len(held)
            assert state.held.halves == sum(self.messages[ref].kind is Kind.HALF for ref in held)
            assert (state.held.size_bytes > 0) is bool(held)
            assert state.held.waiting == sum(self.messages[ref].is_paused for ref in held)
        assert self.state.held.size_bytes == self.other.held.size_bytes
        assert self.state.digest() == self.other.digest()


DAY = 1440 * MINUTE
Step: TypeAlias = Callable[[Group], None]
"""A step of a history."""


_AFTER = st.sampled_from([-MINUTE, 0, 1, 50, MINUTE, 59 * MINUTE, 125 * MINUTE])
STEP: st.SearchStrategy[Step] = st.one_of(
    st.builds(
        lambda ids, after, kind, lost: (
            lambda group: group.hold(ids, after[: len(ids)], kind, lost=lost)
        ),
        st.lists(st.integers(0, 60), min_size=1, max_size=12, unique=True),
        st.lists(_AFTER, min_size=12, max_size=12),
        st.sampled_from([Kind.TIMER, Kind.TIMER, Kind.HALF]),
        st.booleans(),
    ),
    st.builds(lambda which: lambda group: group.hold_otherwise(which), st.integers(0, 30)),
    st.builds(lambda which: lambda group: group.send_late(which), st.integers(0, 30)),
    st.builds(lambda count: lambda group: group.produce(count), st.integers(1, 3)),
    st.builds(
        lambda ms: lambda group: group.wait(ms),
        st.sampled_from([1, 50, MINUTE, 61 * MINUTE, 200 * MINUTE]),
    ),
    st.builds(lambda ms: lambda group: group.clock(ms), st.sampled_from([0, DAY, -60 * MINUTE])),
    st.builds(
        lambda most, twice: lambda group: group.release(most, twice=twice),
        st.integers(1, 5),
        st.booleans(),
    ),
    st.builds(
        lambda which, twice: lambda group: group.commit(which, twice=twice),
        st.integers(0, 30),
        st.booleans(),
    ),
    st.builds(lambda which: lambda group: group.release_late(which), st.integers(0, 30)),
    st.builds(lambda which: lambda group: group.cancel(which), st.integers(0, 100)),
    st.builds(lambda again: lambda group: group.pause(again=again), st.booleans()),
    st.builds(lambda cancels: lambda group: group.resume(cancels=cancels), st.booleans()),
    st.builds(
        lambda part, roll: lambda group: group.retain(part, roll=roll),
        st.integers(0, 100),
        st.booleans(),
    ),
    st.just(lambda group: group.restore()),
    st.just(lambda group: group.delete()),
)
