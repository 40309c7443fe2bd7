"""The fixtures of `tests.requests`: a node in memory and a RocketMQ client of it."""

from tests.requests.fixtures import client, group, pauses

__all__ = ["client", "group", "pauses"]
