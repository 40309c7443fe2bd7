"""Asks another member of the group, at its own address, how it is: its bare `Admin.Status`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from dledger.errors import InvalidArgument
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.types import NodeId

_METHOD: Final = "/dledger.v1.Admin/Status"
_TIMEOUT_S: Final = 1.0
_MAX_ANSWER_BYTES: Final = 256 << 10

Ask = Callable[[NodeId, str, bytes, float], Awaitable[bytes]]
"""Calls a method of a member's peer port: (member, method, request, timeout in seconds).

It raises Unavailable.
"""


async def status_of(node_id: NodeId, group_id: str, ask: Ask) -> pb.StatusResponse:
    """Return what a member says of itself and its group.

    Raises:
        Unavailable: It does not answer.
        DecodeError: The answer is no status.
        InvalidArgument: It is too large; or another node, or a node of another group, is at the
            member's address.
    """
    answer = await ask(node_id, _METHOD, b"", _TIMEOUT_S)
    if len(answer) > _MAX_ANSWER_BYTES:
        raise InvalidArgument(f"the answer is too large: {len(answer)} bytes")
    status = pb.StatusResponse.FromString(answer)
    if (status.node_id, status.group_id) != (node_id, group_id):
        raise InvalidArgument(
            "another node, or a node of another group, answers at its address: "
            f"{status.node_id!r:.120}"
        )
    return status
