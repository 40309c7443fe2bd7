"""Groups in memory are served both ways here, too."""

from tests.requests.each_server import client_server, pytest_generate_tests

__all__ = ["client_server", "pytest_generate_tests"]
