"""The public Python client: administration, topics, appends and reads, single and in batches.

Frozen values in and out; errors are the classes of `dledger.errors`. Used by the operator, the
command line, the end-to-end tests and applications. The names here are public, their modules are
not.
"""

from __future__ import annotations

from dledger.broker.key_queues import queue_of_key
from dledger.broker.topics import Compaction
from dledger.client.admin_client import (
    AdminClient,
    ErasedView,
    ErasuresView,
    ErasureView,
    ForcedGroup,
    GroupDetails,
    GroupView,
    Place,
    SoughtView,
    TopicView,
)
from dledger.client.append_stream import AppendStream
from dledger.client.batch_reader import follow
from dledger.client.batching_producer import BatchingProducer, Sent
from dledger.client.ledger_client import Client, TopicInfo
from dledger.client.spooling import SpoolingProducer
from dledger.client.stored_batch import StoredBatch
from dledger.client.table import Table
from dledger.client.table_position import TablePosition
from dledger.client.table_reader import Change, TableReader
from dledger.client.transactions import Transaction, TransactionCheck
from dledger.common.status import Backlog, FilterBacklog
from dledger.errors import MessageIdConflict, OutcomeUnknown, PositionTooOld, SeveralQueues
from dledger.rpc.channel import error_of
from dledger.rpc.mutual_tls import MutualTls, speaks_tls
from dledger.spool.blocking import BlockingProducer
from dledger.spool.counters import SpoolCollector, SpoolCounters
from dledger.spool.topic_sender import SendResult
from dledger.types import Appended, MovedFrom, Record, StoredRecord, Typed

__all__ = [
    "AdminClient",
    "AppendStream",
    "Appended",
    "Backlog",
    "BatchingProducer",
    "BlockingProducer",
    "Change",
    "Client",
    "Compaction",
    "ErasedView",
    "ErasureView",
    "ErasuresView",
    "FilterBacklog",
    "ForcedGroup",
    "GroupDetails",
    "GroupView",
    "MessageIdConflict",
    "MovedFrom",
    "MutualTls",
    "OutcomeUnknown",
    "Place",
    "PositionTooOld",
    "Record",
    "SendResult",
    "Sent",
    "SeveralQueues",
    "SoughtView",
    "SpoolCollector",
    "SpoolCounters",
    "SpoolingProducer",
    "StoredBatch",
    "StoredRecord",
    "Table",
    "TablePosition",
    "TableReader",
    "TopicInfo",
    "TopicView",
    "Transaction",
    "TransactionCheck",
    "Typed",
    "error_of",
    "follow",
    "queue_of_key",
    "speaks_tls",
]
