"""Who makes a request: what came with a call, also with one that a follower forwarded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from dledger.door.contract import Arrival, Headers, kept_of
from dledger.types import NodeId

FORWARDED_KEY: Final = "x-dledger-forwarded"
LINE_KEY: Final = "x-dledger-line"
THROUGH_KEY: Final = "x-dledger-through"
PASSING_ON_KEY: Final = "x-dledger-passing-on"
WAITED_KEY: Final = "x-dledger-waited-ms"
_TELEMETRY_KEY: Final = "x-dledger-telemetry"
_HOST_KEY: Final = "x-dledger-host"
_CLIENT_ID: Final = b"x-mq-client-id"
_LANGUAGE: Final = b"x-mq-language"
_REQUEST_ID: Final = b"x-mq-request-id"
_BINARY: Final = b"-bin"
_PSEUDO: Final = b":"
_NO_DEADLINE_S: Final = 10.0
_NUMBER_DIGITS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The caller of a request, the port it used, and its deadline.

    It keeps what is asked for later, and lets the headers go: a poll may wait for long.

    Attributes:
        client_id: The client id that the SDK chose; empty if it sent none.
        peer: The connection on which the call came, as gRPC names it: whose room it takes.
        tls: Whether the client used a TLS port (of this node or of a follower).
        forwarded: Whether a follower forwarded the request; then it is not forwarded again.
        deadline_s: Event-loop time by which the response should leave, a margin before the
            client's own deadline.
        host: The client's address as gRPC names it, without the port; of a forwarded call as the
            follower says.
        has_telemetry: Whether the client's Telemetry stream uses the same connection.
        connection: The client's connection to this node, as gRPC names it; empty if forwarded.
        line: The client's connection, to this node or to a follower: the line in which its commands
            wait. The follower's own if the follower does not name one.
        through: The follower that forwarded the request; None if there was none.
        passing_on: The number with which that follower will confirm that it passed the response on.
        since_s: Event-loop time at which the call came to the node that its client asked; of a
            forwarded call as the follower says.
        fields: Of what came with the call at least what is read (`contract.kept_of`), also by the
            leader if it is forwarded; of a batch, what came with its first call.
        prove: Has something told whether this call's answers arrive. None: a follower can, or it is
            no stream.
    """

    client_id: str
    peer: str
    tls: bool
    forwarded: bool
    deadline_s: float
    host: str = ""
    has_telemetry: bool = False
    connection: str = ""
    line: str = ""
    through: NodeId | None = None
    passing_on: int | None = None
    since_s: float = 0.0
    fields: Mapping[bytes, bytes]
    prove: Callable[[Arrival], None] | None = None

    @classmethod
    def of(
        cls,
        headers: Headers,
        *,
        tls: bool,
        peer_port: bool,
        runs_telemetry: Callable[[str, str], bool] = lambda _, __: False,
        prove: Callable[[Arrival], None] | None = None,
    ) -> Caller:
        """Return the caller of a call with these *headers*, received on a port of this kind.

        *runs_telemetry*(client id, peer) says whether the client's Telemetry stream uses that
        connection; for a forwarded call what the follower sent says so.
        """
        fields = headers.fields
        client_id = fields.get(_CLIENT_ID, b"").decode("ascii", "ignore")
        now_s, deadline_s = asyncio.get_running_loop().time(), answer_by_s(headers.deadline_s)
        if peer_port:
            return cls._forwarded(headers, client_id, deadline_s, now_s, fields)
        peer = headers.peer
        return cls(
            client_id=client_id,
            peer=peer,
            tls=tls,
            forwarded=False,
            deadline_s=deadline_s,
            host=peer.rpartition(":")[0],
            has_telemetry=runs_telemetry(client_id, peer),
            connection=peer,
            line=peer,
            since_s=now_s,
            fields=fields,
            prove=prove,
        )

    @classmethod
    def _forwarded(
        cls,
        headers: Headers,
        client_id: str,
        deadline_s: float,
        now_s: float,
        fields: Mapping[bytes, bytes],
    ) -> Caller:
        """Return the caller of a call that a follower forwarded, by what that has added."""
        through, number = headers.text(THROUGH_KEY), _number_in(headers, PASSING_ON_KEY)
        waited_ms = _number_in(headers, WAITED_KEY) or 0
        return cls(
            client_id=client_id,
            peer=headers.peer,
            tls=headers.text(FORWARDED_KEY) == "tls",
            forwarded=True,
            deadline_s=deadline_s,
            host=headers.text(_HOST_KEY),
            has_telemetry=headers.raw(_TELEMETRY_KEY.encode()) is not None,
            line=headers.text(LINE_KEY, headers.peer),
            through=NodeId(through) if through else None,
            passing_on=number,
            since_s=now_s - waited_ms / 1000,
            fields=fields,
        )

    @property
    def request_id(self) -> str:
        """The SDK's id for this request; empty if it sent none."""
        return self.fields.get(_REQUEST_ID, b"").decode("ascii", "ignore")

    @property
    def language(self) -> str:
        """The SDK's language, such as ``PYTHON``; empty if it did not say."""
        return self.fields.get(_LANGUAGE, b"").decode("ascii", "ignore")

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata to forward to the leader."""
        passed = (
            (name.decode("ascii", "ignore"), value.decode("ascii", "ignore"))
            for name, value in kept_of(self.fields.items()).items()
            if not name.endswith(_BINARY)  # no SDK has such a field
            and not name.startswith(_PSEUDO)
        )
        telemetry = ((_TELEMETRY_KEY, "1"),) if self.has_telemetry else ()
        port = "tls" if self.tls else "plain"
        origin = ((_HOST_KEY, self.host), (LINE_KEY, self.line))
        return (*passed, (FORWARDED_KEY, port), *origin, *telemetry)

    def remaining_s(self) -> float:
        """Return the seconds until `deadline_s`; negative when it has passed."""
        return self.deadline_s - asyncio.get_running_loop().time()


def answer_by_s(ends_s: float | None) -> float:
    """Return by when a response should leave for a client that waits until *ends_s*, or for ever.

    Both are times of the event loop.
    """
    now_s = asyncio.get_running_loop().time()
    remaining_s = _NO_DEADLINE_S if ends_s is None else max(ends_s - now_s, 0.0)
    return now_s + remaining_s - min(max(0.1 * remaining_s, 0.05), 0.5)


def _number_in(headers: Headers, name: str) -> int | None:
    text = headers.text(name)
    return int(text) if text.isdecimal() and len(text) < _NUMBER_DIGITS else None
