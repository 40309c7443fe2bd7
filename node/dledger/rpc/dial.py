"""Every gRPC channel of ours begins here: nodes', clients', the operator's and the pipeline's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import grpc
import grpc.aio

from dledger.common.dns import address_to_ask
from dledger.rpc.mutual_tls import NAME_OPTION, MutualTls

_AUTHORITY: Final = "grpc.default_authority"


def dial(
    address: str, options: Sequence[tuple[str, Any]], tls: MutualTls | None = None
) -> grpc.aio.Channel:
    """Return a channel to ``HOST:PORT``; in plain text without *tls*."""
    asked = address_to_ask(address)
    chosen = _as_given(options, address, asked, tls)
    if tls is None:
        return grpc.aio.insecure_channel(asked, options=chosen)
    return grpc.aio.secure_channel(asked, tls.credentials(), options=chosen)


def dial_blocking(
    address: str, options: Sequence[tuple[str, Any]], tls: MutualTls | None = None
) -> grpc.Channel:
    """Return a channel for code without an event loop."""
    asked = address_to_ask(address)
    chosen = _as_given(options, address, asked, tls)
    if tls is None:
        return grpc.insecure_channel(asked, options=chosen)
    return grpc.secure_channel(asked, tls.credentials(), options=chosen)


def _as_given(
    options: Sequence[tuple[str, Any]], address: str, asked: str, tls: MutualTls | None
) -> tuple[tuple[str, Any], ...]:
    """Add what a server sees of the address, and its certificate has to name: that is as given."""
    chosen = tuple(options) if tls is None else tls.options(options)
    if asked == address:
        return chosen
    if tls is not None and not tls.name:
        chosen = (*chosen, (NAME_OPTION, address.rpartition(":")[0]))
    return (*chosen, (_AUTHORITY, address))
