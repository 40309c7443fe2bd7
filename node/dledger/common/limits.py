"""The fixed limits of requests, so that every buffer behind them is bounded (promise P11)."""

from __future__ import annotations

from typing import Final

MAX_BODY_BYTES: Final = 4 << 20
"""Of one message: what the brokers of RocketMQ take by default, so clients are used to it."""
MAX_REQUEST_BYTES: Final = 16 << 20
"""Bodies of one SendMessage or Append together; they become one command in one Raft entry."""
MAX_CLIENT_FRAME_BYTES: Final = MAX_REQUEST_BYTES + (4 << 20)
"""A request as it is on the wire: bodies, and what is said of each message."""
MAX_PEER_FRAME_BYTES: Final = 64 << 20
"""An entry is a request or several joined; this leaves room for them and for what frames them."""
MAX_ANSWER_BYTES: Final = 64 << 20
"""An answer that a client takes, where its user does not say otherwise."""
MAX_MESSAGES: Final = 4_096
"""Of one request: 16 MiB of 4 KiB messages. Their results are made in one turn of the loop."""
MAX_IDS_OF_CLIENT: Final = 1 << 16
"""Message ids that the state remembers of a client in a topic (`broker.deduplication`)."""
MAX_MESSAGES_UNDER_WAY: Final = MAX_IDS_OF_CLIENT // 2
"""Unanswered messages of one client: of one topic at the client, of one stream at the node.

What is sent again after a failover must still be remembered, all of it: each batch that is taken
for a new one pushes out the next. Half of what is remembered, so that a client id that two streams
have by mistake does not double messages yet.
"""
MAX_PROPERTIES: Final = 128  # as the RocketMQ 5 proxy
MAX_PROPERTIES_BYTES: Final = 64 << 10  # for trace contexts; copied to every reader
MAX_ID_LENGTH: Final = 255  # names and ids: what fits a file name, and a length of one byte
MAX_ATTEMPT_LENGTH: Final = 128  # three UUIDs; kept while it holds messages

MAX_RECEIVE_BATCH: Final = 32  # what SDKs ask for at most; bounds the leases of one RECEIVE
MAX_POLL_MS: Final = 60_000  # proxies and NATs cut what is silent for longer
DEFAULT_POLL_MS: Final = 20_000  # as the brokers of RocketMQ; SDKs' own deadlines are longer
MAX_INVISIBLE_MS: Final = 12 * 3600 * 1000  # as RocketMQ 5's protocol has it
FIRST_INVISIBLE_MS: Final = 8_000
"""How long a message is a push consumer's that is not known to have it: its answer may have died
with a node. Longer than a leader takes to see an answer out and to renew what came with it."""
RENEWED_INVISIBLE_MS: Final = 60_000
"""How long a message is a push consumer's after that, again and again until it acks or is gone."""
CONSUME_BACKOFF_S: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200)
"""When a message comes again to a push consumer that failed with it, by the attempt that failed."""

MAX_HELD_BYTES: Final = 256 << 20
"""Unary requests under way at one node, together; most of them when they wait for a leader."""
MAX_HELD_ANSWER_BYTES: Final = 256 << 10
"""Of an answer that a follower passes on: so much of it waits for the rest, in case the leader dies
meanwhile; what is larger goes out as it comes."""
MAX_HELD_ANSWERS_BYTES: Final = 64 << 20
"""Of all such answers of a node."""
MAX_UNCONFIRMED_ANSWERS: Final = 16_384
"""Answers that went through followers, and are not known to have reached their clients."""
MAX_WAITING_POLLS: Final = 10_000  # at 1 KiB each 10 MiB; a consumer has one for each queue
MAX_TELEMETRY_STREAMS: Final = 10_000  # one of a client to each node; as many as polls
MAX_CLIENTS: Final = 100_000  # as many as `make growth` measures
MADE_AT_ONCE: Final = 100  # a new application's topics, not a scan of names
MADE_PER_S: Final = 1.0
"""Topics, and consumer groups, that clients make by naming them, at one leader: so many at once,
and so many a second afterwards."""
