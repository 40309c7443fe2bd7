"""Groups in memory on each of the servers; see docs/internals/edge-tests.md."""

from tests.requests.each_server import client_server, pytest_generate_tests

__all__ = ["client_server", "pytest_generate_tests"]
