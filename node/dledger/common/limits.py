"""The fixed limits of requests, which bound every buffer behind them (promise P11)."""

from __future__ import annotations

from typing import Final

MAX_BODY_BYTES: Final = 4 << 20
"""Of one message: the default of RocketMQ's own brokers, which clients are used to."""
MAX_REQUEST_BYTES: Final = 16 << 20
"""Of all bodies of one SendMessage or Append, which become one command in one Raft entry."""
MAX_CLIENT_FRAME_BYTES: Final = MAX_REQUEST_BYTES + (4 << 20)
"""A request on the wire: bodies, and the other fields of each message."""
MAX_PEER_FRAME_BYTES: Final = 64 << 20
"""An entry holds one or more requests; this leaves room for them and for their framing."""
MAX_ANSWER_BYTES: Final = 64 << 20
"""The default limit of a response that a client accepts."""
SHARED_ROWS: Final = 512  # single requests in a burst; one callback of the loop makes their results
SHARED_BYTES: Final = 64 << 10
"""Of single requests that share a command (ADR 35), joined in a door process or in the node: of
this size it takes no more of them; a larger request still makes its own command."""
MAX_MESSAGES: Final = 4_096
"""Of one request: 16 MiB of 4 KiB messages. One callback of the event loop makes their results."""
MAX_IDS_OF_CLIENT: Final = 1 << 16
"""Message ids that the state remembers for each client and topic (`broker.deduplication`)."""
MAX_MESSAGES_UNDER_WAY: Final = MAX_IDS_OF_CLIENT // 2
"""Unanswered messages of one client: per topic in the client, per stream in the node.

All messages that are sent again after a failover must still be remembered: a batch that is mistaken
for a new one evicts the ids of the next. The limit is half of what is remembered, so that two
streams that use one client id by mistake do not store messages twice.
"""
MAX_PROPERTIES: Final = 128  # the limit of RocketMQ 5's proxy
MAX_PROPERTIES_BYTES: Final = 64 << 10  # for trace contexts; copied to every reader
MAX_ID_LENGTH: Final = 255  # names and ids: fits a file name, and a one-byte length
MAX_GROUP_LENGTH: Final = 64  # of a message group: the limit of RocketMQ 5's proxy
MAX_ATTEMPT_LENGTH: Final = 128  # three UUIDs; kept while the attempt holds messages

MAX_RECEIVE_BATCH: Final = 32  # the most that SDKs ask for; bounds the leases of one RECEIVE
MAX_POLL_MS: Final = 60_000  # proxies and NATs drop connections that are idle for longer
DEFAULT_POLL_MS: Final = 20_000  # as RocketMQ's brokers; SDKs' own deadlines are longer
MAX_INVISIBLE_MS: Final = 12 * 3600 * 1000  # the limit of RocketMQ 5's protocol
FIRST_INVISIBLE_MS: Final = 8_000
"""A push consumer's first lease of a message, while it is unknown whether the response arrived: it
may be lost with a node. Longer than a leader needs to deliver it and then to renew the lease."""
RENEWED_INVISIBLE_MS: Final = 60_000
"""Each later lease; it is renewed until the push consumer acks or is gone."""
CONSUME_BACKOFF_S: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200)
"""The delay before a push consumer gets a message again, by the number of failed attempts."""
ORDERED_BACKOFF_S: Final = (1, 1, 2, 3, 5, 10)
"""The same of a FIFO topic, where a message group waits meanwhile: 16 retries take two minutes."""
FIRST_CHECK_MS: Final = 6_000
"""How long after the half of a transaction somebody is asked about it, unless its producer says."""
MAX_CHECK_AFTER_MS: Final = 3_600_000
"""The longest that a producer may say."""

MAX_HELD_BYTES: Final = 256 << 20
"""Of all unary requests in progress at one node; the most are held while there is no leader."""
MAX_HELD_ANSWER_BYTES: Final = 256 << 10
"""Of one response that a follower relays: up to this size it is buffered until it is complete, in
case the leader fails meanwhile; a larger one is streamed."""
MAX_HELD_ANSWERS_BYTES: Final = 64 << 20
"""Of all such responses of a node."""
MAX_UNCONFIRMED_ANSWERS: Final = 16_384
"""Responses relayed by followers that are not known to have reached their clients."""
MAX_WAITING_POLLS: Final = 10_000  # at 1 KiB each 10 MiB; a consumer has one for each queue
MAX_TELEMETRY_STREAMS: Final = 10_000  # each client has one to each node; as many as polls
MAX_CLIENTS: Final = 100_000  # the number that `make growth` measures
MADE_AT_ONCE: Final = 100  # a new application's topics, not a scan of names
MADE_PER_S: Final = 1.0
"""A leader's rate limit for topics, and for consumer groups, that clients create by using their
names: a burst of `MADE_AT_ONCE`, then `MADE_PER_S`."""
