"""What the pipeline's tests share.

Property tests here have no deadline per example: machines are busy, and the examples small.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from dledger_pipeline.store import Store
from tests.pipeline.s3_server import S3Server, s3_server

settings.register_profile("no deadline", deadline=None, max_examples=100)
settings.load_profile("no deadline")


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Return a real S3 server."""
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Return an empty store: a directory, and a bucket of a real S3 server."""
    if request.param == "file":
        return Store.open(f"file://{tmp_path}/store")
    server: S3Server = request.getfixturevalue("s3")
    return server.store(server.bucket(f"bucket-{len(list(server.directory.iterdir()))}"))
