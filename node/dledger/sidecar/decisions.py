"""What an answer of the group means, how long a try may take, and what is taken while it is away.

Pure: values in, values out. Used by `sends`, `passing` and `replay`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from google.protobuf.message import DecodeError

from dledger.rpc.rocketmq_stubs import service
from dledger.rpc.status import Code

TRY_S: Final = 1.2
"""The longest that one try of a send may take."""
ALL_TRIES_S: Final = 2.0
"""The longest that all tries of a send may take together."""
MARGIN_S: Final = 0.7
"""What of the caller's deadline is left for the disk and the way back."""


class Verdict(Enum):
    """What an attempt came to."""

    ANSWER = "the group has done it: its answer is passed on"
    FAULT = "the caller's fault: the answer is passed on"
    AWAY = "the group is away, or in no state to do it; it may have done it nevertheless"


_WAITS: Final = frozenset({Code.TOO_MANY_REQUESTS, Code.REQUEST_TIMEOUT})
"""Of the callers' codes, those that say nothing against the message."""
_NEVER: Final = frozenset(
    {Code.NOT_IMPLEMENTED, Code.UNSUPPORTED, Code.VERIFY_FIFO_MESSAGE_UNSUPPORTED}
)
"""Of the servers' codes, those that no wait changes."""
_OF_SERVERS: Final = 50_000
_OF_CALLERS: Final = 40_000


def verdict_of_code(code: int) -> Verdict:
    """Return what a code in the body of an answer means for a message.

    HA_NOT_AVAILABLE is said both where nothing was done and where nobody knows, with gRPC's status
    OK: a node without a majority says it after nine tenths of its caller's time. TOO_MANY_REQUESTS
    makes SDKs give up at once, so it is no answer to pass on either.
    """
    if code in _WAITS or (code >= _OF_SERVERS and code not in _NEVER) or not code:
        return Verdict.AWAY
    return Verdict.FAULT if code >= _OF_CALLERS else Verdict.ANSWER


def verdict_of_send(answer: bytes) -> tuple[Verdict, int, str]:
    """Return what the answer to a SendMessage means, its code and its sentence.

    The worst of its entries counts: the whole request is sent again, and what is stored of it is
    known by its ids.
    """
    try:
        response = service.SendMessageResponse.FromString(answer)
    except DecodeError:
        return Verdict.AWAY, 0, "the answer cannot be parsed"
    entries = response.entries
    if response.status.code == Code.OK and all(each.status.code == Code.OK for each in entries):
        return Verdict.ANSWER, Code.OK, response.status.message  # as nearly always
    statuses = [response.status, *(entry.status for entry in entries)]
    for wanted in (Verdict.AWAY, Verdict.FAULT):
        for status in statuses:
            if verdict_of_code(status.code) is wanted:
                return wanted, status.code, status.message
    return Verdict.ANSWER, response.status.code, response.status.message


def budget_s(left_s: float | None) -> float:
    """Return how long all tries of a send may take, in seconds.

    Args:
        left_s: Until the caller's deadline; None: it has none. A caller with little more than the
            margin gets half of it, or all of its sends would be spooled.
    """
    if left_s is None:
        return ALL_TRIES_S
    return max(0.0, min(ALL_TRIES_S, max(left_s - MARGIN_S, left_s / 2)))


def try_s(budget_left_s: float) -> float:
    """Return how long the next try may take, given what is left of the budget, in seconds."""
    return min(TRY_S, budget_left_s)


SPOOLED: Final = "SendMessage"
ANSWERED_HERE: Final = frozenset({"Heartbeat", "NotifyClientTermination"})
"""What is answered OK while the group is away: it learns of its clients when it is back."""
_WHY_NOT: Final = {
    "ReceiveMessage": "there is nothing to receive from a disk",
    "AckMessage": "an ack that comes later is an ack of another delivery",
    "ChangeInvisibleDuration": "a lease that ends meanwhile is not made longer later",
    "ForwardMessageToDeadLetterQueue": "the message may be delivered elsewhere meanwhile",
    "RecallMessage": "what is to be recalled may be delivered meanwhile",
    "EndTransaction": "only the group knows whether the transaction is still open",
}


def refusal_of(method: str) -> str:
    """Return the sentence for a call that is not taken while the group is away."""
    why = _WHY_NOT.get(method, "only sends are kept on the local disk")
    return f"the group is away, and {method} waits for nobody: {why}"
