"""What a message has that only some types of topics know, drawn at random; most have nothing."""

from __future__ import annotations

from hypothesis import strategies as st

from dledger.types import NO_PRIORITY, MovedFrom, Typed

_TEXT = st.text(max_size=12)
_NUMBERS = st.integers(-(2**63), 2**63 - 1)
_MOVED = st.builds(
    MovedFrom,
    topic=st.text(min_size=1, max_size=12),
    generation=_NUMBERS,
    queue_id=st.integers(-(2**31), 2**31 - 1),
    offset=_NUMBERS,
    stored_at_ms=_NUMBERS,
    born_host=_TEXT,
    attempts=st.integers(0, 2**32 - 1),
)
TYPED = st.one_of(
    st.none(),
    st.builds(
        Typed,
        message_group=_TEXT,
        deliver_at_ms=_NUMBERS,
        priority=st.integers(NO_PRIORITY, 2**31 - 1),
        moved_from=st.one_of(st.none(), _MOVED),
    ).filter(lambda typed: typed != Typed()),
)
