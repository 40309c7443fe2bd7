"""The public Python client: administration, topics, appends and reads, single and in batches.

Frozen values in and out; errors are the classes of `dledger.errors`. Used by the operator, the
command line, the end-to-end stories and by users.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dledger.broker.topics import check_name
from dledger.client.admin_client import AdminClient, GroupView, TopicView
from dledger.client.any_node import AnyNode
from dledger.client.append_stream import AppendStream
from dledger.client.batch_reader import follow
from dledger.client.batching_producer import BatchingProducer, Sent
from dledger.client.ledger_client import Client, TopicInfo
from dledger.client.stored_batch import StoredBatch
from dledger.common.status import Backlog
from dledger.errors import CorruptSpool, MessageIdConflict, MessageRejected, OutcomeUnknown
from dledger.rpc.channel import error_of, nodes_of
from dledger.rpc.checks import check_record
from dledger.spool.blocking import BlockingProducer
from dledger.spool.counters import SpoolCollector, SpoolCounters
from dledger.spool.format import Message
from dledger.spool.producer import DEFAULT_MAX_BYTES, DEFAULT_PATIENCE_S, Producer
from dledger.spool.topic_sender import SendResult
from dledger.types import Appended, Record, StoredRecord

__all__ = [
    "AdminClient",
    "AppendStream",
    "Appended",
    "Backlog",
    "BatchingProducer",
    "BlockingProducer",
    "Client",
    "GroupView",
    "MessageIdConflict",
    "OutcomeUnknown",
    "Record",
    "SendResult",
    "Sent",
    "SpoolCollector",
    "SpoolCounters",
    "SpoolingProducer",
    "StoredBatch",
    "StoredRecord",
    "TopicInfo",
    "TopicView",
    "error_of",
    "follow",
]


class SpoolingProducer(Producer):
    """A producer that goes on accepting while the whole group is down.

    Messages pass through while the group takes them. While it does not, they are written to the
    local disk and synced before `send` returns, and replayed in order, with their ids, when it
    takes writes again: nothing is lost or stored twice. See ``docs/outage-spool.md``.

    Args:
        addresses: Client ports (8081) of the group's nodes, ``host:port``; one is enough.
        directory: The spool's own directory, on a local disk; one process uses it at a time.
        max_bytes: What the spool may take on the disk.
        patience_s: How long the group is tried before a message is spooled.
        client_id: For a new spool; one is made up if empty. An existing one keeps its own.
        report: Is told of damage and of rejected messages, which are logged in any case.

    Raises:
        InvalidArgument: There is no address, or *max_bytes* is too small.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        directory: str | Path,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        patience_s: float = DEFAULT_PATIENCE_S,
        client_id: str = "",
        report: Callable[[CorruptSpool | MessageRejected], None] = lambda _: None,
    ) -> None:
        nodes = nodes_of(addresses, for_what="producer")
        super().__init__(
            Path(directory),
            lambda client_id: AnyNode([Client(node, client_id=client_id) for node in nodes]),
            check=_check_message,
            max_bytes=max_bytes,
            patience_s=patience_s,
            client_id=client_id,
            report=report,
        )

    def blocking(self) -> BlockingProducer:
        """Return the same for programs without an event loop, as a context manager."""
        return BlockingProducer(self)


def _check_message(message: Message) -> None:
    """Refuse what a node would refuse, by its own rules: after an outage it would be too late."""
    check_name("topic", message.topic)
    check_record(message.record)
