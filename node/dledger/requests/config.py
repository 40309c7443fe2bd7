"""What a node's operator may set about the client protocol."""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger.common import defaults
from dledger.common.limits import MADE_AT_ONCE, MADE_PER_S, MAX_MESSAGES_UNDER_WAY


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBounds:
    """What may be under way on one stream; a batch that is larger by itself goes alone."""

    max_bytes: int = 16 << 20  # as one request: a stream is no way round that bound
    max_batches: int = 2_048  # batches of 8 KiB that fill it
    max_messages: int = MAX_MESSAGES_UNDER_WAY


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestConfig:
    """Settings of the client protocol.

    Attributes:
        auto_create_topics: Whether topics are made when first used; consumer groups always are.
        default_queues: Queues of a topic made that way.
        group_retention_hours: How long a consumer group is kept that nobody uses; 0: for ever.
        retention_hours: How long the group keeps messages; 0: for ever. No topic keeps its own for
            less: the log is one, and messages would only be hidden.
        made_at_once: How many topics, and how many consumer groups, may be made that way at once.
        made_per_s: How many more each second.
        leader_follows_clients: Whether leadership goes to the node that clients use.
        streams: What may be under way on one stream of a producer.
    """

    auto_create_topics: bool = True
    default_queues: int = defaults.QUEUES
    group_retention_hours: int = defaults.GROUP_RETENTION_HOURS
    retention_hours: int = defaults.RETENTION_HOURS
    made_at_once: int = MADE_AT_ONCE
    made_per_s: float = MADE_PER_S
    leader_follows_clients: bool = True
    streams: StreamBounds = field(default_factory=StreamBounds)
