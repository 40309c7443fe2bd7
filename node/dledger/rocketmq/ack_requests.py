"""An AckMessage request by itself: what it names, and the response to it.

Knows nothing of a node's state, so a door process does this for the node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dledger.checks.resources import checked_client_id, group_name, topic_name
from dledger.common.limits import MAX_MESSAGES
from dledger.errors import InvalidReceiptHandle
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.rpc.status import Code, Rejected, ok, status_of

_ONE_ACKED: Final[bytes] = service.AckMessageResponse(
    status=ok(), entries=[service.AckMessageResultEntry(status=ok())]
).SerializeToString()
"""The usual response without id and handle: parsing it is faster than building it from parts."""


def checked(request: service.AckMessageRequest, client_id: str) -> tuple[str, str]:
    """Return the group and the topic that a request names. Raises Rejected."""
    checked_client_id(client_id)
    group, topic = group_name(request.group), topic_name(request.topic)
    if not 1 <= len(request.entries) <= MAX_MESSAGES:
        count = len(request.entries)
        raise Rejected(Code.BAD_REQUEST, f"acknowledge 1 to {MAX_MESSAGES} messages: {count}")
    return group, topic


def response_of(
    asked: Sequence[service.AckMessageEntry], statuses: Sequence[definition.Status]
) -> service.AckMessageResponse:
    """Return the response, of the entries that it asked for and their statuses."""
    if len(statuses) == 1 and statuses[0] is ok():
        response = service.AckMessageResponse.FromString(_ONE_ACKED)
        entry = response.entries[0]
        entry.message_id, entry.receipt_handle = asked[0].message_id, asked[0].receipt_handle
        return response
    entries = [
        service.AckMessageResultEntry(
            message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status
        )
        for entry, status in zip(asked, statuses, strict=True)
    ]
    return service.AckMessageResponse(status=_overall(statuses), entries=entries)


def status_if(acked: bool) -> definition.Status:
    """Return the status of a handle whose lease was held, or was not."""
    if acked:
        return ok()
    return status_of(
        InvalidReceiptHandle("the receipt handle is stale: the message was delivered again")
    )


def _overall(statuses: Sequence[definition.Status]) -> definition.Status:
    """Return the common status if all are equal, else MULTIPLE_RESULTS."""
    if len({status.code for status in statuses}) == 1:
        return statuses[0]
    return definition.Status(code=Code.MULTIPLE_RESULTS, message="see the status of each entry")
