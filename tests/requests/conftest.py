"""The fixtures of `tests.requests`: a node in memory and a RocketMQ client of it."""

from tests.requests.each_server import client_server, pytest_generate_tests
from tests.requests.fixtures import client, group, hold_for_a_second, pauses

__all__ = [
    "client",
    "client_server",
    "group",
    "hold_for_a_second",
    "pauses",
    "pytest_generate_tests",
]
