"""Groups in memory are served both ways here, too."""

from tests.requests.both_servers import client_server, pytest_generate_tests

__all__ = ["client_server", "pytest_generate_tests"]
