"""Recall handles: nobody but the group can make one, and each names one message of one topic."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.broker.held_refs import Ref
from dledger.requests.recall_handles import RecallHandles
from dledger.rpc.status import Rejected

_SECRET = bytes(range(32))
_REF = Ref(481_000, 7)


def _handles(**other: Any) -> RecallHandles:
    """Return those of one topic, or of another."""
    usual: dict[str, Any] = {"secret": _SECRET, "topic": "d", "generation": 1}
    return RecallHandles(**(usual | other))


@given(st.integers(0, (1 << 20) - 1), st.integers(0, (1 << 28) - 1), st.text(min_size=1))
def test_a_handle_is_read_as_it_was_made(hour: int, slot: int, message_id: str) -> None:
    """Any node of the group reads it: all have the secret."""
    if not message_id.isprintable():
        return
    handle = _handles().encode(Ref(hour, slot), message_id)

    assert _handles().decode(handle) == (Ref(hour, slot), message_id)


@pytest.mark.parametrize(
    "other", [{"topic": "e"}, {"generation": 2}, {"secret": bytes(32)}, {"secret": b""}], ids=str
)
def test_a_handle_is_good_for_one_topic(other: dict[str, Any]) -> None:
    """Nor for one that is made anew, nor where there is no secret."""
    handle = _handles().encode(_REF, "id")

    with pytest.raises(Rejected):
        _handles(**other).decode(handle)


@given(st.integers(0, 26), st.integers(1, 255))
def test_a_changed_handle_is_refused(at: int, change: int) -> None:
    """No other message can be named by what one of them was called."""
    raw = bytearray(urlsafe_b64decode(_handles().encode(_REF, "id") + "=="))
    raw[at] ^= change

    with pytest.raises(Rejected):
        _handles().decode(urlsafe_b64encode(raw).rstrip(b"=").decode())


@pytest.mark.parametrize("handle", ["", "AA", "nonsense!", "ä", "A" * 34, "=" * 8])
def test_what_is_no_handle_is_refused(handle: str) -> None:
    """Cut short, or anything."""
    with pytest.raises(Rejected):
        _handles().decode(handle)
