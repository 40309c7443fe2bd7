"""A client's gRPC channel to one node, and the errors that a node's gRPC statuses mean.

Used by all clients (`dledger.client`), by nodes that forward requests, and by the pipeline.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Self, TypeVar

import grpc
import grpc.aio

from dledger.common.limits import MAX_ANSWER_BYTES, MAX_PEER_FRAME_BYTES
from dledger.errors import DledgerError, InvalidArgument, NotServed, Unavailable
from dledger.rpc.dial import dial
from dledger.rpc.error_table import ARGUMENT_KEY, ERROR_KEY, error_named, error_of_code
from dledger.rpc.metadata import by_key
from dledger.rpc.mutual_tls import MutualTls

LEADER_KEY: Final = "dledger-leader"
"""Trailing metadata: the leader's client address, if the caller must connect to it itself."""
NOTHING_TAKEN_KEY: Final = "dledger-nothing-taken"
"""Trailing metadata: no unanswered batch of this stream was stored, nor will be."""


_DIRECT: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.default_compression_algorithm", 0),
    ("grpc.compression_enabled_algorithms_bitset", 1),
)
"""No proxy, no compression, and a connection of its own.

gRPC would share one among the process's channels to an address: a client made after a node came
up would be answered with the refusal that an earlier one met.
"""


def options(max_answer_bytes: int = MAX_ANSWER_BYTES) -> tuple[tuple[str, int], ...]:
    """Return a channel's options; responses have at most *max_answer_bytes*.

    Compression is off: the limit would not bound what a small response inflates to.
    """
    return (
        ("grpc.max_send_message_length", 64 << 20),
        ("grpc.max_receive_message_length", max_answer_bytes),
        ("grpc.max_reconnect_backoff_ms", 500),
        *_DIRECT,
    )


OPTIONS: Final = options()
PEER_OPTIONS: Final = (
    ("grpc.max_send_message_length", MAX_PEER_FRAME_BYTES),
    ("grpc.max_receive_message_length", MAX_PEER_FRAME_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2000),  # in gRPC also the timeout of one connection attempt
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.dns_min_time_between_resolutions_ms", 500),
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    *_DIRECT,
)
"""For channels between nodes: a lost peer is noticed, and reconnected to, quickly."""


def nodes_of(addresses: str | Sequence[str], *, for_what: str) -> tuple[str, ...]:
    """Return the nodes to try in turn. Raises InvalidArgument, naming *for_what*, if none."""
    nodes = (addresses,) if isinstance(addresses, str) else tuple(addresses)
    if not nodes:
        raise InvalidArgument(f"a {for_what} needs the address of at least one node")
    return nodes


_Answer = TypeVar("_Answer")


class Channel:
    """A gRPC channel as an async context manager; in plain text without *tls*.

    A response of more than *max_answer_bytes* is refused unread.
    """

    def __init__(
        self,
        address: str,
        timeout_s: float,
        *,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        tls: MutualTls | None = None,
    ) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self.channel = dial(address, options(max_answer_bytes), tls)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection."""
        await self.channel.close()

    async def call(self, method: Callable[..., Awaitable[_Answer]], request: object) -> _Answer:
        """Return the response to one unary request. Raises the node's error (`error_of`)."""
        try:
            answer = await method(request, timeout=self.timeout_s)
        except grpc.aio.AioRpcError as error:
            raise error_of(error, self.address) from error
        if answer is None:  # grpc returns None if it cannot parse the response
            raise DledgerError(f"{self.address}: its response cannot be parsed")
        return answer


_NO_CONNECTION: Final = ("failed to connect to all addresses", "errors resolving ")


def error_of(error: grpc.aio.AioRpcError, address: str) -> DledgerError:
    """Return the error that a gRPC status stands for.

    Nodes name the class of an error in the trailing metadata ``dledger-error``.
    """
    metadata = by_key(error.trailing_metadata())
    text = f"{address}: {in_words(error)}"
    name = str(metadata.get(ERROR_KEY, ""))
    named = error_named(name, text, str(metadata.get(ARGUMENT_KEY, "")))
    if named is not None:
        return named
    if not name and error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return NotServed(text)
    return error_of_code(error.code(), text)


def in_words(error: grpc.aio.AioRpcError) -> str:
    """Return an error's details; gRPC's own are replaced by a sentence for people."""
    details = error.details() or error.code().name
    if error.code() is grpc.StatusCode.UNAVAILABLE and details.startswith(_NO_CONNECTION):
        reason = re.sub(r"( \(\d+\))?\]?$", "", details.rpartition(": ")[2])
        return f"no connection ({reason}); does a node run there, and is that its port?"
    return "no answer in time" if details == "Deadline Exceeded" else details


def outcome_of(error: grpc.aio.AioRpcError, address: str) -> DledgerError:
    """Return the error of a failed attempt to store, where a wrong refusal would lose a message.

    Only an error that a node names is a refusal. Others, such as a proxy's, are Unavailable.
    """
    meant = error_of(error, address)
    named = by_key(error.trailing_metadata()).get(ERROR_KEY) is not None
    return meant if named or isinstance(meant, Unavailable) else Unavailable(str(meant))


def leader_address(error: grpc.aio.AioRpcError) -> str:
    """Return the leader's client address if the refusing node named it; else empty."""
    return str(by_key(error.trailing_metadata()).get(LEADER_KEY, ""))


def nothing_taken(error: grpc.aio.AioRpcError) -> bool:
    """Whether the node stored no unanswered batch of the stream, nor will."""
    return NOTHING_TAKEN_KEY in by_key(error.trailing_metadata())
