"""The state as bytes: nothing is lost, equal states give equal bytes, damage is refused."""

from __future__ import annotations

import base64
import random
import zlib

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.broker.columns import MalformedStateError
from dledger.broker.commands import Ack, ChangeInvisible, LeaseRef, Receive, Release, Renew, Retain
from dledger.broker.frames import HEADER_BYTES, CommandType, frame
from dledger.broker.results import Received
from dledger.broker.state import BrokerState
from tests.broker.log import Log

_SEEDS = st.integers(0, 1 << 32)


def _step(log: Log, rng: random.Random) -> None:
    """Commit one random command."""
    log.now_ms += rng.choice([0, 1, 500, 5_000])
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
        renewal = Renew(group=group, topic=topic, leases=(lease,), invisible_ms=900)
        log.append(renewal.encode())
    elif rng.random() < 0.4:
        log.append(Retain(before_index=rng.randrange(len(log.entries) + 4)).encode())


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


@given(_SEEDS)
@settings(max_examples=10, deadline=None)
def test_a_frozen_state_does_not_change_with_the_one_it_was_taken_of(seed: int) -> None:
    """A thread may encode it while entries are applied."""
    log, rng = _history(seed, 30)
    expected, frozen = log.state.encode(), log.state.freeze()

    for _ in range(30):
        _step(log, rng)

    assert frozen.encode() == expected


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
    """Whatever a peer sends decodes or raises the one error: it never crashes."""
    log, _ = _history(7, 60)
    data = bytearray(log.state.encode())
    data[12 + position % (len(data) - 12)] = value
    data[8:12] = crc32c(bytes(data[12:])).to_bytes(4, "little")

    try:
        BrokerState.decode(bytes(data))
    except MalformedStateError:
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


def test_a_state_of_format_1_is_read() -> None:
    """A node that is upgraded starts from the snapshot that it has. These are such bytes."""
    old = zlib.decompress(
        base64.b64decode(
            "eJxz8XEPcgryNpyRlxnJygABjDjoEjYow88/yNfRh4kBO4CJM6KJM+KQZ0ViO6PpQzcDBpjRzMJlB0wdC5o4"
            "KxTD+LZAHI3FPGL9mAwPI2QXIKsC4cQkTPMYUcxJgZuDrJcJySe8SLjAAAHMkTkWyBxLZiSjIDTMUoglDk78"
            "aPKodDpGQkAPBkLRgG4ATFzDjR+FJqQe3Xx0AAA+ExS5"
        )
    )
    log = Log()
    log.create("t", queues=2, group="g")
    log.produce("x", "y", ids=("a", "b"))
    log.produce("z", queue_id=1, ids=("p000000000007",), client="d")
    log.produce("u", "v", queue_id=1, ids=("p000000000008", "p000000000009"), client="d")
    log.receive(2)

    decoded = BrokerState.decode(old)

    assert decoded.digest() == log.state.digest()
    assert decoded.encode() == log.state.encode()


def test_a_state_of_format_2_is_read() -> None:
    """It does not say what arrived: a client keeps all that it held. These are such bytes."""
    old = zlib.decompress(
        base64.b64decode(
            "eJxz8XEPcgryNvLdcvsnCwMEMOKgS9igDD//IF9HHyYG7IAZTRsDGp8Jjc+KxA5C08fIQBvg4MSP1S0wOh3D"
            "7wxormci0nfo6hfoCIBpDTf8LsBlDgzAIisjNScFJgYAwiUMPw=="
        )
    )
    log = Log()
    log.create("t", queues=2, group="g")
    log.produce("x", "y", "z")
    log.receive(1, client_id="held", invisible_ms=60_000)
    log.receive(1)

    held = [
        (offset, lease.client_id)
        for _, offset, lease in BrokerState.decode(old).groups.renewable(log.now_ms + 60_001)
    ]

    assert held == [(0, "held")]
    assert BrokerState.decode(log.state.encode()).digest() == log.state.digest()


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
