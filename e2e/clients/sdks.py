"""The official clients: which they are, what they lack, and what each case expects of them. Pure.

A gap is a case that a client cannot pass, with the reason; one that passes after all is an error,
since then the table that users read is wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Final

_FRAME: Final = "the client takes no frame over 4 MiB, and a body of 4 MiB comes in a larger one"
_STAYS: Final = "its channels keep one connection each, to a node of their choice, and wait there"
_NO_PUSH: Final = "the client has no push consumer"
_NO_PRIORITY: Final = "the client has no priority of messages"
_NO_CHANGE: Final = "the client's simple consumer cannot change an invisible duration"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sdk:
    """One client.

    Attributes:
        version: As its registry has it.
        roots: The environment variable that names the file of CAs it trusts; "" if it accepts any.
        one_tls_address: Whether it verifies a list of addresses as one host name, which no
            certificate has; with TLS it is given the first one.
        has_push: Whether it has a push consumer; else `Stage.listen` polls with a simple one.
        unpacks: Whether it unpacks a body that says that it is packed.
        retries: Whether a send that met a dead node is tried again by the client itself.
        opens_again: Whether a client that has lost its stream to a node opens another one there; a
            producer that does not is asked about none of its transactions any more.
        lacks: The types of messages that it has no words for.
        gaps: Reason by the case that it cannot pass.
        chances: Reason by the case that it passes or not by what it happened to choose.
    """

    version: str
    roots: str = ""
    one_tls_address: bool = False
    has_push: bool = True
    unpacks: bool = True
    retries: bool = True
    opens_again: bool = True
    lacks: Collection[str] = ()
    gaps: Mapping[str, str] = field(default_factory=dict)
    chances: Mapping[str, str] = field(default_factory=dict)


SDKS: Final[Mapping[str, Sdk]] = {
    "python": Sdk(
        version=f"rocketmq-python-client {version('rocketmq-python-client')} (PyPI)",
        roots="GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
        one_tls_address=True,
    ),
    "java": Sdk(
        version="rocketmq-client-java 5.2.0 (Maven Central)",
        chances={"one_node_frozen": _STAYS},
    ),
    "node": Sdk(
        version="rocketmq-client-nodejs 1.0.8 (npm)",
        roots="GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
        gaps={"whole_4_mib": _FRAME},
    ),
    "rust": Sdk(
        version="rocketmq 5.0.0 (crates.io)",
        roots="SSL_CERT_FILE",
        has_push=False,
        unpacks=False,
        retries=False,
        opens_again=False,
        lacks=("PRIORITY",),
        gaps={
            "priority": _NO_PRIORITY,
            "program_priority": _NO_PRIORITY,
            "push": _NO_PUSH,
            "failed_comes_again": _NO_PUSH,
            "change": _NO_CHANGE,
            "whole_4_mib": _FRAME,
        },
    ),
    "go": Sdk(
        version="rocketmq-clients/golang 5.1.4 (Go module proxy)",
        chances={"one_node_frozen": _STAYS},
    ),
}
"""By the name that ``--languages`` takes, which is the folder of its driver."""
