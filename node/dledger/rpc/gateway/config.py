"""What a node's operator may set about the client protocol."""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger.rpc.producing import StreamBounds


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Settings of the client protocol.

    Attributes:
        auto_create: Whether topics and consumer groups are made when first used.
        default_queues: Queues of a topic made that way.
        leader_follows_clients: Whether leadership goes to the node that clients use.
        streams: What may be under way on one stream of a producer.
    """

    auto_create: bool = True
    default_queues: int = 8
    leader_follows_clients: bool = True
    streams: StreamBounds = field(default_factory=StreamBounds)
