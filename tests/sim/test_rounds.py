"""Rounds of compaction and erasures in the simulator, and the model that nodes are held against."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from crc32c import crc32c

from dledger.broker.commands import CreateTopic
from dledger.broker.erase import Erase
from dledger.broker.message import DELETES, TOMBSTONE, Columns, Message
from dledger.broker.produce import encode_produce
from dledger.broker.rekeep import Kept, Origin
from dledger.broker.state import BrokerState
from dledger.broker.topics import NORMAL, Compaction
from dledger.replica.compactor import Compactor
from dledger.types import Entry, EntryKind
from dledger_sim.checkers import ViolationError
from dledger_sim.compacted import CompactedTopics
from dledger_sim.forced import ForcedRun
from dledger_sim.run import Outcome
from dledger_sim.seeds import Failure, try_seed

SEEDS = (18, 19)
FORCED_SEEDS = (62, 71)
"""Of their groups a majority is lost with messages that a round has read."""
KEY = "k"
LAG_MS = 50
TOMBSTONE_MS = 100


def test_rounds_and_erasures_let_go_of_nothing_else_whatever_goes_wrong_meanwhile() -> None:
    """Stale, doubled, late and half-done ones; crashes, joins, and topics that come and go."""
    outcomes = [try_seed(seed, world="rounds") for seed in SEEDS]

    for each in outcomes:
        assert not isinstance(each, Failure), each.text
    done = [each for each in outcomes if isinstance(each, Outcome)]
    assert all(each.let_go and each.erased for each in done)


def test_a_forced_group_refuses_what_a_round_has_read_of_a_lost_majority() -> None:
    for seed in FORCED_SEEDS:
        run = ForcedRun(seed)
        assert run.options.rounds
        assert run.run().lost


def test_a_leader_that_believes_any_history_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """By winners that the group has lost, or by offsets that it has not come to."""
    monkeypatch.setattr(Compactor, "_check_history", lambda *_: None)

    with pytest.raises(ViolationError):
        ForcedRun(FORCED_SEEDS[0]).run()


class Group:
    """One node's state beside the model; a second node's, to compare with."""

    def __init__(self) -> None:
        self.model = CompactedTopics()
        self.states = [BrokerState(), BrokerState()]
        self.index = 0
        how = Compaction(min_lag_ms=LAG_MS, tombstone_ms=TOMBSTONE_MS)
        self.commit(CreateTopic(name="t", type=NORMAL.name, queues=1, compaction=how).encode())

    def commit(self, command: bytes, *, at_ms: int = 1, second: bytes | None = None) -> None:
        """Have both nodes apply a command; *second*: another one at the second node."""
        self.index += 1
        for state, data, node in zip(self.states, (command, second or command), "12", strict=True):
            entry = Entry(
                term=1,
                index=self.index,
                kind=EntryKind.DATA,
                timestamp_ms=at_ms,
                crc32c=crc32c(data),
                data=data,
            )
            process: Any = SimpleNamespace(id=node, state=SimpleNamespace(broker=state))
            self.model.apply(process, entry, state.apply(entry))

    def produce(self, key: str = KEY, properties: Mapping[str, str] | None = None) -> None:
        """Store a message."""
        batch = Columns(
            message_ids=[str(self.index)],
            bodies=[b"."],
            born_at_ms=[0],
            keys=[(key,)],
            properties=[properties or {}],
        )
        self.commit(encode_produce(batch, client_id="c", topic="t", queue_id=0))

    def copy(self, to: int, *offsets: int, at_ms: int = 1000) -> None:
        """Copy the queue up to *to*, where only *offsets* stay."""
        self.commit(_rekeep(to, offsets), at_ms=at_ms)


def _rekeep(to: int, offsets: tuple[int, ...]) -> bytes:
    rows = [Message(message_id="a", body=b".", born_at_ms=0, keys=(KEY,)) for _ in offsets]
    return Kept(
        topic="t",
        generation=1,
        queue_id=0,
        first=0,
        to=to,
        offsets=offsets,
        origins=[Origin(1, 1, "")] * len(offsets),
        messages=Columns.of(rows) if rows else None,
    ).encode()


def test_what_a_newer_message_has_beaten_may_go() -> None:
    group = Group()
    group.produce()
    group.produce()

    group.copy(2, 1)

    assert group.model.let_go == 1
    assert group.model.find_gone("t") == {(0, 0)}


def test_the_newest_of_a_key_may_not_go() -> None:
    group = Group()
    group.produce()
    group.produce()

    with pytest.raises(ViolationError, match="offset 1 goes, the newest of key 'k'"):
        group.copy(2, 0)


def test_a_message_may_not_go_before_its_lag() -> None:
    group = Group()
    group.produce()
    group.produce()

    with pytest.raises(ViolationError, match="offset 0 goes, 49 ms old, of at least 50"):
        group.copy(2, 1, at_ms=LAG_MS)


def test_a_tombstone_may_not_go_beside_the_value_that_it_deletes() -> None:
    group = Group()
    group.produce()
    group.produce(properties={TOMBSTONE: DELETES})

    with pytest.raises(ViolationError, match="a tombstone of key 'k', which is at"):
        group.copy(2, 0)


def test_a_tombstone_that_is_alone_and_old_may_go() -> None:
    group = Group()
    group.produce(properties={TOMBSTONE: DELETES})
    group.produce("other")

    with pytest.raises(ViolationError, match="a tombstone, alone for 59 ms, of at least 100"):
        group.copy(1, at_ms=60)
    group = Group()
    group.produce(properties={TOMBSTONE: DELETES})
    group.copy(1, at_ms=TOMBSTONE_MS + 1)

    assert group.model.find_gone("t") == {(0, 0)}


def test_the_time_of_a_tombstone_begins_when_it_is_alone() -> None:
    """Not when it was stored: who has read the value must find it."""
    group = Group()
    group.produce()
    group.produce(properties={TOMBSTONE: DELETES})
    group.copy(2, 1, at_ms=1000)

    with pytest.raises(ViolationError, match="alone for 99 ms, of at least 100"):
        group.copy(2, at_ms=1000 + TOMBSTONE_MS - 1)


def test_a_node_on_which_what_goes_is_left_differs_from_the_others() -> None:
    """A follower that ignores what a command lets go."""
    group = Group()
    group.produce()
    group.produce()

    with pytest.raises(ViolationError, match="compacted topics of 2 differ at entry 4"):
        group.commit(_rekeep(2, (1,)), at_ms=1000, second=_rekeep(2, (0, 1)))


def test_an_erased_key_that_is_still_there_is_told() -> None:
    group = Group()
    group.produce()
    group.produce()
    command = Erase(generation=1, queue_id=0, first_entry=1, offsets=(0,))
    group.commit(command.encode())

    group.model.check_erased(1, 0, KEY, end=1)
    with pytest.raises(ViolationError, match=r"was erased below 2, and is at \[1\]"):
        group.model.check_erased(1, 0, KEY, end=2)


def test_what_a_lost_majority_has_taken_along_is_forgotten() -> None:
    group = Group()
    group.produce()
    group.produce()
    group.copy(2, 1)

    group.model.forget_behind(3)

    assert not group.model.find_gone("t")
    assert not group.model.let_go
