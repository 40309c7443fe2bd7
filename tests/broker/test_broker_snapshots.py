"""The state as bytes: nothing is lost, equal states give equal bytes, damage is refused."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.broker import log_runs
from dledger.broker.client_ids import ClientIds
from dledger.broker.command_frame import HEADER_BYTES, CommandType, frame
from dledger.broker.commands import (
    Ack,
    ChangeInvisible,
    CreateGroup,
    ExpireGroups,
    Leap,
    LeaseRef,
    Receive,
    Release,
    Renew,
    Retain,
)
from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.consumer_group import ConsumerGroup
from dledger.broker.deliveries import QueueDeliveries
from dledger.broker.results import Received
from dledger.broker.snapshot_codec import MalformedStateError
from dledger.broker.state import BrokerState, FrozenState
from dledger.errors import NewerFormat
from tests.broker.log import Log

_SEEDS = st.integers(0, 1 << 32)


def _step(log: Log, rng: random.Random) -> None:
    """Commit one random command."""
    log.now_ms += rng.choice([0, 1, 500, 5_000] + [3_000_000] * (rng.random() < 0.1))
    topic, group, client = rng.choice("tu"), rng.choice("gh"), rng.choice("ab")
    queue_id = rng.randrange(2)
    lease = LeaseRef(queue_id, rng.randrange(20), rng.randrange(1, 12))
    choice = rng.randrange(9)
    if choice < 3:
        count = rng.randrange(1, 5)
        ids = tuple(str(rng.randrange(60)) if rng.random() < 0.8 else "" for _ in range(count))
        if rng.random() < 0.5:
            first, prefix = rng.randrange(60), rng.choice(["", "p", "100%s"])
            ids = tuple(f"{prefix}{row:012d}" for row in range(first, first + count))
        bodies = ["x"] * count
        tag = rng.choice(["", "red", "blue"])
        log.produce(*bodies, topic=topic, queue_id=queue_id, client=client, tag=tag, ids=ids)
    elif choice < 5:
        log.append(
            Receive(
                group=group,
                topic=topic,
                queue_id=queue_id,
                any_queue=rng.random() < 0.5,
                limit=rng.randrange(1, 8),
                invisible_ms=rng.choice([100, 2_000]),
                tags=rng.choice([None, ("red",)]),
                attempt_id=rng.choice(["", "1", "2"]),
                client_id=rng.choice(["", "a", "b"]),
            ).encode()
            if rng.random() < 0.9
            else Release(group=group, client_id=client).encode()
        )
    elif choice == 5:
        log.append(Ack(group=group, topic=topic, leases=(lease,)).encode())
    elif choice == 6:
        change = ChangeInvisible(group=group, topic=topic, lease=lease, invisible_ms=50)
        log.append(change.encode())
    elif choice == 7:
        renewal = Renew(group=group, topic=topic, leases=(lease,), invisible_ms=900, arrived=True)
        log.append(renewal.encode())
    elif rng.random() < 0.1:
        log.append(ExpireGroups(before_ms=log.now_ms - rng.choice([0, 5_000])).encode())
        log.append(*(CreateGroup(name=name).encode() for name in "gh"))
    elif rng.random() < 0.4:
        log.append(Retain(before_index=rng.randrange(len(log.entries) + 4)).encode())
    elif rng.random() < 0.7:
        from_ms = log.now_ms + rng.choice([0, 0, 300, -900])
        log.now_ms += rng.choice([0, 5_000, 9_000_000])
        log.append(Leap(from_ms=from_ms, to_ms=log.now_ms + rng.choice([0, 0, 500, -500])).encode())


def _history(seed: int, steps: int) -> tuple[Log, random.Random]:
    rng, log = random.Random(seed), Log()
    log.create("t", queues=2, group="g")
    log.create("u", queues=2, group="h")
    for _ in range(steps):
        _step(log, rng)
    return log, rng


@given(_SEEDS, st.integers(0, 60))
@settings(max_examples=60, deadline=None)
def test_a_decoded_state_is_the_encoded_one_also_in_what_it_does_next(
    seed: int, steps: int
) -> None:
    """Digest and bytes are equal, then and after more commands."""
    log, rng = _history(seed, steps)

    decoded = BrokerState.decode(log.state.encode())
    twin = Log(state=decoded, entries=list(log.entries), now_ms=log.now_ms)
    again = random.Random(rng.random())
    rng.setstate(again.getstate())

    assert decoded.digest() == log.state.digest()
    for _ in range(20):
        _step(log, rng)
        _step(twin, again)
    assert twin.state.digest() == log.state.digest()
    assert twin.state.encode() == log.state.encode()


@given(_SEEDS, st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_a_frozen_state_does_not_change_with_the_one_it_was_taken_of(seed: int, steps: int) -> None:
    """A thread encodes it while entries are applied: piece by piece, each after some of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_runs, "_SEALED", 3)
        log, rng = _history(seed, steps)
        expected, frozen = log.state.encode(), log.state.freeze()
        later: list[tuple[bytes, FrozenState]] = []

        def meanwhile(pieces: Iterable[bytes]) -> Iterator[bytes]:
            for piece in pieces:
                yield piece
                if rng.random() < 0.2:
                    _step(log, rng)
                if rng.random() < 0.02:
                    later.append((log.state.encode(), log.state.freeze()))

        assert b"".join(frozen.pieces(meanwhile)) == expected
        assert all(one.encode() == whole for whole, one in later)
        assert log.replay().digest() == log.state.digest()


def test_freezing_looks_into_no_queue_no_client_and_no_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop only refers to what there is many of, and copies it once, when it is changed."""
    log = Log()
    log.create()
    log.produce("a", "b", ids=("1", "2"))
    log.receive(1)
    looked: list[str] = []
    for part in (ConsumeQueue, ClientIds, ConsumerGroup, QueueDeliveries):
        for name, method in vars(part).items():
            if isinstance(method, FunctionType) and name != "__init__":

                def spy(self: object, *args: Any, _do: Any = method, **more: Any) -> Any:
                    looked.append(_do.__qualname__)
                    return _do(self, *args, **more)

                monkeypatch.setattr(part, name, spy)

    frozen = log.state.freeze()
    at_freezing = list(looked)
    frozen.encode()
    at_encoding = len(looked)
    for _ in range(3):
        log.produce("x")
        log.receive(1)

    assert not at_freezing
    assert at_encoding > 4
    assert sorted(name for name in looked if name.endswith(".copy")) == [
        "ConsumeQueue.copy",
        "ConsumerGroup.copy",
        "QueueDeliveries.copy",
    ]


def test_a_state_changes_while_a_thread_encodes_what_was_frozen() -> None:
    """As in a node: the loop appends, takes and drops, and the thread sees nothing of it."""
    log, rng = _history(11, 200)
    expected, frozen = log.state.encode(), log.state.freeze()

    with ThreadPoolExecutor(1) as thread:
        encoded = thread.submit(lambda: [frozen.encode() for _ in range(20)])
        while not encoded.done():
            _step(log, rng)

    assert set(encoded.result()) == {expected}


def test_every_truncated_or_flipped_encoding_is_refused() -> None:
    """The bytes carry their own checksum."""
    log, _ = _history(7, 30)
    data = log.state.encode()

    for size in range(len(data)):
        with pytest.raises(MalformedStateError):
            BrokerState.decode(data[:size])
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        with pytest.raises(MalformedStateError):
            BrokerState.decode(bytes(flipped))


@given(st.integers(12, 5_000), st.integers(0, 255))
@settings(max_examples=300, deadline=None)
def test_bytes_with_a_right_checksum_are_a_state_or_refused(position: int, value: int) -> None:
    """Whatever a peer sends decodes, or is told to be damaged or newer: it never crashes."""
    log, _ = _history(7, 60)
    data = bytearray(log.state.encode())
    data[8 + position % (len(data) - 12)] = value
    data[-4:] = crc32c(bytes(data[:-4])).to_bytes(4, "little")

    try:
        BrokerState.decode(bytes(data))
    except (MalformedStateError, NewerFormat):
        return


def test_a_state_that_becomes_another_goes_on_as_that_one() -> None:
    """Who holds the old object sees the new contents, and its queues count as changed."""
    log, _ = _history(3, 40)
    state = BrokerState()

    state.replace(BrokerState.decode(log.state.encode()))
    twin = Log(state=state, entries=list(log.entries), now_ms=log.now_ms)
    twin.append(Retain(before_index=20).encode())
    log.append(Retain(before_index=20).encode())

    assert state.digest() == log.state.digest()
    assert ("t", 0) in state.take_changes().arrived


def test_a_text_that_is_not_unicode_survives() -> None:
    """JSON may escape half a surrogate pair; such an attempt id is kept as it is."""
    log = Log()
    log.create()
    log.produce("a")
    command = Receive(
        group="g",
        topic="t",
        queue_id=0,
        any_queue=False,
        limit=1,
        invisible_ms=1000,
        attempt_id="@",
        client_id="@",
    )
    payload = command.encode()[HEADER_BYTES:].replace(b"@", b"\\ud800")
    (received,) = log.append(frame(CommandType.RECEIVE, payload))

    decoded = BrokerState.decode(log.state.encode())

    assert isinstance(received, Received)
    assert decoded.digest() == log.state.digest()
    assert decoded.groups.holds_attempt("g", "t", "\ud800")
