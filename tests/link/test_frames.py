"""A link's frames: what is packed is read again, in any pieces; what is none is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.link import frames
from dledger.link.frames import HEADER, Failure, Inbox, Kind, MalformedFrame, Opening, Resumes
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
    with pytest.raises(MalformedFrame):
        Inbox(100).feed(HEADER.pack(101, Kind.MESSAGE, 1))
