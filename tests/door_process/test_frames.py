"""The frames of batches: what is packed is read again; what is none is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.door_process import frames
from dledger.door_process.frames import AckBatch, Client, SendBatch
from tests.link.frame_forms import Form

NUMBERS = st.integers(0, (1 << 64) - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
CLIENTS = st.builds(
    Client,
    peer=TEXTS,
    client_id=TEXTS,
    deadline_s=st.none() | st.floats(allow_nan=False),
    pairs=st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=9)), max_size=4).map(tuple),
)
SENDS = st.builds(
    SendBatch,
    connection=NUMBERS,
    room_bytes=st.integers(0, (1 << 32) - 1),
    calls=st.integers(1, 512),
    client=CLIENTS,
    command=st.binary(max_size=100),
)
ACKS = st.builds(
    AckBatch,
    room_bytes=st.integers(0, (1 << 32) - 1),
    client=CLIENTS,
    group=TEXTS,
    topic=TEXTS,
    handles=st.lists(st.lists(TEXTS, min_size=1, max_size=4), min_size=1, max_size=5),
)
FORMS = {
    "send batch": Form(SENDS, frames.sending, frames.sending_of),
    "ack batch": Form(ACKS, frames.acking, frames.acking_of),
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
