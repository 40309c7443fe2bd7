"""Who makes a request: what a call's metadata says, also of one that a follower forwarded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dledger.door.contract import Arrival
from dledger.link.leader_link import LINE_KEY
from dledger.rpc.metadata import by_key
from dledger.types import NodeId

FORWARDED_KEY: Final = "x-dledger-forwarded"
_TELEMETRY_KEY: Final = "x-dledger-telemetry"
_HOST_KEY: Final = "x-dledger-host"
_CLIENT_ID_KEY: Final = "x-mq-client-id"
_LANGUAGE_KEY: Final = "x-mq-language"
_REQUEST_ID_KEY: Final = "x-mq-request-id"
_PASSED_ON: Final = ("x-mq-", "authorization")
_NO_DEADLINE_S: Final = 10.0
_NUMBER_DIGITS: Final = 20
THROUGH_KEY: Final = "x-dledger-through"
PASSING_ON_KEY: Final = "x-dledger-passing-on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The caller of a request, the port it used, and its deadline.

    Attributes:
        client_id: The client id that the SDK chose; empty if it sent none.
        tls: Whether the client used a TLS port (of this node or of a follower).
        forwarded: Whether a follower forwarded the request; then it is not forwarded again.
        deadline_s: Event-loop time by which the response should leave, a margin before the
            client's own deadline.
        given: The call's metadata.
        host: The client's address as gRPC names it, without the port.
        has_telemetry: Whether the client's Telemetry stream uses the same connection.
        connection: The client's connection to this node, as gRPC names it; empty if forwarded.
        line: The client's connection, to this node or to a follower: the line in which its commands
            wait. The follower's own if the follower does not name one.
        prove: Has something told whether this call's answers arrive. None: this server cannot tell,
            or a follower can.
    """

    client_id: str
    tls: bool
    forwarded: bool
    deadline_s: float
    given: Mapping[str, str]
    host: str = ""
    has_telemetry: bool = False
    connection: str = ""
    line: str = ""
    prove: Callable[[Arrival], None] | None = None

    @classmethod
    def of(
        cls,
        context: Any,
        *,
        tls: bool,
        peer_port: bool,
        runs_telemetry: Callable[[str, str], bool] = lambda _, __: False,
    ) -> Caller:
        """Return the caller of the gRPC call *context*, received on a port of this kind.

        *runs_telemetry*(client id, peer) says whether the client's Telemetry stream uses that
        connection; for a forwarded call the follower's metadata says so.
        """
        given = by_key(context.invocation_metadata())
        client_id, peer = client_id_of(given), context.peer()
        has_telemetry = _TELEMETRY_KEY in given if peer_port else runs_telemetry(client_id, peer)
        return cls(
            client_id=client_id,
            host=given.get(_HOST_KEY, "") if peer_port else peer.rpartition(":")[0],
            has_telemetry=has_telemetry,
            tls=given.get(FORWARDED_KEY) == "tls" if peer_port else tls,
            forwarded=peer_port,
            deadline_s=_deadline_s(context),
            given=given,
            connection="" if peer_port else peer,
            line=given.get(LINE_KEY, peer) if peer_port else peer,
            prove=None if peer_port else getattr(context, "prove", None),
        )

    @property
    def request_id(self) -> str:
        """The SDK's id for this request; empty if it sent none."""
        return self.given.get(_REQUEST_ID_KEY, "")

    @property
    def language(self) -> str:
        """The SDK's language, such as ``PYTHON``; empty if it did not say."""
        return self.given.get(_LANGUAGE_KEY, "")

    @property
    def through(self) -> NodeId | None:
        """The follower that forwarded the request; None if there was none."""
        node = self.given.get(THROUGH_KEY) if self.forwarded else None
        return NodeId(node) if node is not None else None

    @property
    def passing_on(self) -> int | None:
        """The number with which that follower will confirm that it passed the response on."""
        number = self.given.get(PASSING_ON_KEY, "") if self.forwarded else ""
        return int(number) if number.isdecimal() and len(number) < _NUMBER_DIGITS else None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata to forward to the leader."""
        passed = (item for item in self.given.items() if item[0].startswith(_PASSED_ON))
        telemetry = ((_TELEMETRY_KEY, "1"),) if self.has_telemetry else ()
        port = "tls" if self.tls else "plain"
        origin = ((_HOST_KEY, self.host), (LINE_KEY, self.line))
        return (*passed, (FORWARDED_KEY, port), *origin, *telemetry)

    def remaining_s(self) -> float:
        """Return the seconds until `deadline_s`; negative when it has passed."""
        return self.deadline_s - asyncio.get_running_loop().time()


def client_id_of(given: Mapping[str, str]) -> str:
    """Return the client id in a call's metadata; empty if there is none."""
    return given.get(_CLIENT_ID_KEY, "")


def _deadline_s(context: Any) -> float:
    remaining_s = context.time_remaining()
    if remaining_s is None:
        remaining_s = _NO_DEADLINE_S
    margin_s = min(max(0.1 * remaining_s, 0.05), 0.5)
    return float(asyncio.get_running_loop().time() + remaining_s - margin_s)
