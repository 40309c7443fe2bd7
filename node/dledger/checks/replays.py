"""What a spool says of a replay in its call's metadata: which lane, and from which sequence on.

``x-dledger-replay: <token>;<lane>;<first sequence>``: 32 hexadecimal digits that were drawn when
the spool's directory was founded and are told to nobody else, the number of the lane in that spool,
and the sequence of the call's first message, both decimal. The call's other messages follow it.
"""

from __future__ import annotations

import re
from typing import Final

from dledger.common.replay_mark import (
    MAX_LANE,
    MAX_SEQUENCE,
    TOKEN_BYTES,
    ReplayMark,
    lane_key,
)
from dledger.door.contract import REPLAY_FIELD
from dledger.errors import InvalidArgument

_DIGITS: Final = len(str(MAX_SEQUENCE))
_FORM: Final = re.compile(
    rb"([0-9a-f]{%d});([0-9]{1,%d});([1-9][0-9]{0,%d})"
    % (2 * TOKEN_BYTES, len(str(MAX_LANE)), _DIGITS - 1)
)


def replay_mark(value: bytes, client_id: str, topic: str, count: int) -> ReplayMark:
    """Return the mark of a call that sends *count* messages of a client to a topic.

    Raises:
        InvalidArgument: The field's value has another form; it is not repeated, it may be a secret.
    """
    found = _FORM.fullmatch(value)
    lane, first = (int(found[2]), int(found[3])) if found is not None else (0, 0)
    if found is None or lane > MAX_LANE or first > MAX_SEQUENCE - count + 1:
        raise InvalidArgument(
            f"the metadata {REPLAY_FIELD.decode()} must be TOKEN;LANE;SEQUENCE: {2 * TOKEN_BYTES} "
            "hexadecimal digits in lower case, a number of 32 bits, and one of 64 bits from 1 on, "
            "for the last message of the call as well"
        )
    token = bytes.fromhex(found[1].decode())
    return ReplayMark(lane_key(token, client_id=client_id, topic=topic, lane=lane), first)
