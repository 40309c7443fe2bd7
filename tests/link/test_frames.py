"""A link's frames: what is packed is read again, in any pieces; what is none is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.door_process.frames import DoorKind
from dledger.link import frames
from dledger.link.frames import (
    HEADER,
    OF_NO_CALL,
    BrokenFraming,
    Failure,
    Inbox,
    Kind,
    MalformedFrame,
    Opening,
    Resumes,
)
from tests.link.frame_forms import Form

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
FAILURES = st.builds(Failure, code=st.integers(0, 16), message=TEXTS, trailers=FIELDS)
FORMS = {
    "opening": Form(OPENINGS, frames.opening, frames.opening_of),
    "failure": Form(FAILURES, frames.failing, frames.failure_of),
}


CALL = Opening(
    port=0,
    method=3,
    resumes=Resumes.NO,
    connection=0,
    deadline_s=2.5,
    peer="ipv4:192.0.2.1:7",
    pairs=((b":path", b"/a/B"), (b"x", b"")),
    body=b"body",
)
STREAM = Opening(1, 2, Resumes.UNKNOWN, 9, None, "", (), None)
GOLDEN = {
    "OPEN, of one message": (
        frames.opening(0x0102, CALL),
        """
        4a000000 01 0201000000000000
        00 04 0300 0000000000000440 0000000000000000 1000 0200 04000000
        05000000 04000000 01000000 00000000
        697076343a3139322e302e322e313a37 3a70617468 2f612f42 78 626f6479
        """,
    ),
    "OPEN, of a stream": (
        frames.opening(1, STREAM),
        """
        1c000000 01 0100000000000000
        01 02 0200 000000000000f87f 0900000000000000 0000 0000 00000000
        """,
    ),
    "MESSAGE": (
        frames.message(Kind.MESSAGE, 2, b"abc"),
        "07000000 02 0200000000000000 03000000 616263",
    ),
    "HALF_CLOSE": (frames.packed(Kind.HALF_CLOSE, 2), "00000000 03 0200000000000000"),
    "CANCEL": (frames.packed(Kind.CANCEL, 2), "00000000 04 0200000000000000"),
    "CREDIT": (frames.credit(2, 1 << 16), "08000000 05 0200000000000000 0000010000000000"),
    "ANSWER": (frames.message(Kind.ANSWER, 2, b""), "04000000 14 0200000000000000 00000000"),
    "FAIL": (
        frames.failing(2, Failure(14, "\u00e9", ((b"k", b"v"),))),
        "11000000 15 0200000000000000 0e 0100 0200 01000000 01000000 c3a9 6b 76",
    ),
    "END": (frames.packed(Kind.END, 2), "00000000 16 0200000000000000"),
    "REJECTED": (frames.rejecting(2, Kind.ANSWER), "01000000 80 0200000000000000 14"),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_layout_never_changes(name: str) -> None:
    """The bytes of format 1. Who has to change them adds a kind, and a format in which it is."""
    frame, expected = GOLDEN[name]

    assert frame == bytes.fromhex(expected)


def test_each_kind_has_its_bytes_or_is_reserved() -> None:
    """So that a kind which is added is written down above; no number is two kinds'."""
    assert {name.partition(",")[0] for name in GOLDEN} == {*Kind.__members__} - {"PUSH"}
    assert (Kind.REJECTED, Kind.PUSH, OF_NO_CALL) == (128, 129, 128)
    assert not {*Kind} & {*DoorKind}


READ: dict[str, tuple[int, Callable[[bytes], object]]] = {
    "OPEN, of one message": (28, frames.opening_of),
    "OPEN, of a stream": (28, frames.opening_of),
    "MESSAGE": (4, frames.message_of),
    "HALF_CLOSE": (0, frames.check_empty),
    "CANCEL": (0, frames.check_empty),
    "CREDIT": (8, frames.credit_of),
    "ANSWER": (4, frames.message_of),
    "FAIL": (5, frames.failure_of),
    "END": (0, frames.check_empty),
    "REJECTED": (1, frames.rejected_of),
}
"""With the size of what comes before its parts."""


@pytest.mark.parametrize("name", READ)
def test_a_byte_more_is_noticed_and_not_misread(name: str) -> None:
    """Where a newer version might have one: behind the fields, or at the end. So is a byte less."""
    fixed, read = READ[name]
    payload = GOLDEN[name][0][HEADER.size :]
    read(payload)

    for at in {fixed, len(payload)}:
        for byte in range(256):
            with pytest.raises(MalformedFrame):
                read(payload[:at] + bytes((byte,)) + payload[at:])
    if payload:
        with pytest.raises(MalformedFrame):
            read(payload[:-1])


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data(), number=NUMBERS)
def test_what_is_packed_is_read_again(form: str, data: st.DataObject, number: int) -> None:
    """Each of the frames that have parts."""
    FORMS[form].check_reads_again(data, number)


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data(), seed=st.integers(0, 1 << 32))
def test_what_is_damaged_is_refused_or_is_another(
    form: str, data: st.DataObject, seed: int
) -> None:
    """Never anything but MalformedFrame."""
    FORMS[form].check_damaged(data, seed)


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
    with pytest.raises(BrokenFraming):
        Inbox(100).feed(HEADER.pack(101, Kind.MESSAGE, 1))
