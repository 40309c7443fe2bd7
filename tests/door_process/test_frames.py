"""The link's frames: what is packed is read again, in any pieces; what is none is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.door_process import frames
from dledger.door_process.frames import (
    HEADER,
    AckBatch,
    Failure,
    Inbox,
    Kind,
    MalformedFrame,
    Opening,
    Resumes,
    SendBatch,
)

NUMBERS = st.integers(0, (1 << 64) - 1)
SMALL = st.integers(0, (1 << 16) - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
FIELDS = st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=30)), max_size=6).map(tuple)
OPENINGS = st.builds(
    Opening,
    port=st.integers(0, 255),
    method=SMALL,
    resumes=st.sampled_from(Resumes),
    connection=NUMBERS,
    deadline_s=st.none() | st.floats(allow_nan=False),
    peer=st.text("ipv46:.%123", max_size=40),
    pairs=FIELDS,
    body=st.none() | st.binary(max_size=100),
)
SENDS = st.builds(
    SendBatch,
    connection=NUMBERS,
    room_bytes=st.integers(0, (1 << 32) - 1),
    calls=st.integers(1, 512),
    peer=TEXTS,
    client_id=TEXTS,
    command=st.binary(max_size=100),
)
ACKS = st.builds(
    AckBatch,
    room_bytes=st.integers(0, (1 << 32) - 1),
    peer=TEXTS,
    client_id=TEXTS,
    group=TEXTS,
    topic=TEXTS,
    handles=st.lists(st.lists(TEXTS, min_size=1, max_size=4), min_size=1, max_size=5),
)
FAILURES = st.builds(Failure, code=st.integers(0, 16), message=TEXTS, trailers=FIELDS)
FORMS: dict[str, tuple[Any, Callable[..., bytes], Callable[[bytes], Any]]] = {
    "opening": (OPENINGS, frames.opening, frames.opening_of),
    "send batch": (SENDS, frames.sending, frames.sending_of),
    "ack batch": (ACKS, frames.acking, frames.acking_of),
    "failure": (FAILURES, frames.failing, frames.failure_of),
}


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data(), number=NUMBERS)
def test_what_is_packed_is_read_again(form: str, data: st.DataObject, number: int) -> None:
    """Each of the frames that have parts."""
    values, pack, read = FORMS[form]
    value = data.draw(values)

    ((_, told, payload),) = Inbox(1 << 20).feed(pack(number, value))

    assert told == number
    assert read(payload) == value


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data(), seed=st.integers(0, 1 << 32))
def test_what_is_damaged_is_refused_or_is_another(
    form: str, data: st.DataObject, seed: int
) -> None:
    """Never anything but MalformedFrame."""
    values, pack, read = FORMS[form]
    payload = bytearray(pack(1, data.draw(values))[HEADER.size :])
    rng = random.Random(seed)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(payload))
        match rng.randrange(3):
            case 0:
                payload[at] = rng.randrange(256)
            case 1:
                del payload[at:]
            case _:
                payload[at:at] = rng.randbytes(5)
        if not payload:
            break

    try:
        read(bytes(payload))
    except MalformedFrame:
        return


@given(st.lists(st.binary(max_size=300), max_size=8), st.lists(st.integers(1, 40), max_size=30))
def test_frames_arrive_whole_in_any_pieces(payloads: list[bytes], sizes: list[int]) -> None:
    """In their order."""
    sent = b"".join(frames.packed(Kind.MESSAGE, n, each) for n, each in enumerate(payloads))
    inbox, got = Inbox(1 << 10), list[tuple[int, int, bytes]]()
    while sent:
        size = sizes.pop() if sizes else len(sent)
        got += inbox.feed(sent[:size])
        sent = sent[size:]

    assert got == [(Kind.MESSAGE, n, each) for n, each in enumerate(payloads)]


def test_a_payload_beyond_the_limit_is_refused_by_its_size() -> None:
    """Before it is there."""
    with pytest.raises(MalformedFrame):
        Inbox(100).feed(HEADER.pack(101, Kind.MESSAGE, 1))
