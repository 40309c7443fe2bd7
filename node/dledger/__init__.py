"""A Raft-replicated commit log that speaks the RocketMQ 5 protocol."""

from __future__ import annotations

from dledger.common.dns import choose_resolver

choose_resolver()  # before any of our modules imports gRPC, which looks then
