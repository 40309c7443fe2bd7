"""A node in memory, on each of the servers."""

from tests.requests.each_server import client_server, pytest_generate_tests
from tests.requests.fixtures import client, group, hold_for_a_second

__all__ = ["client", "client_server", "group", "hold_for_a_second", "pytest_generate_tests"]
