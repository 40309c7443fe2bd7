"""The answers to requests that are refused unread: in a node as in its door processes."""

from __future__ import annotations

from collections.abc import Callable

from dledger.door.contract import Code, Failed, TooLarge
from dledger.errors import DledgerError, Overloaded
from dledger.rocketmq.refused import refused_response
from dledger.rpc import status
from dledger.rpc.metadata import pairs
from dledger.rpc.status import Rejected, ending


def refused_answer(
    name: str, answer: Callable[[str, DledgerError], bytes] | None, refused: Failed
) -> bytes:
    """Return the answer of the method *name*, by *answer* if it has codes of its own.

    Raises:
        Failed: It has none: the call ends with our error's name in the trailers.
    """
    error = (
        Rejected(status.Code.PAYLOAD_TOO_LARGE, f"{name}: {refused.message}")
        if isinstance(refused, TooLarge)
        else Overloaded(refused.message)
    )
    if answer is not None:
        return answer(name, error)
    code, details, metadata = ending(error)
    raise Failed(Code(code.value[0]), details, pairs(metadata))


def rocketmq_answer(name: str, error: DledgerError) -> bytes:
    """Return the encoded response of a method of RocketMQ's service to a refused request."""
    return bytes(refused_response(name, error).SerializeToString())
