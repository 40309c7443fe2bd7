"""What a running node takes over from its settings file, and what leaves it as it is."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import pytest

from dledger.server import live_settings
from dledger.server.config import load
from dledger.server.live_settings import SettingsFollower

TEXT = """
name = "orders-0"
group = "orders"
data_dir = "/data"
advertise_host = "127.0.0.1"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(TEXT)
    return path


def _follower(file: Path) -> SettingsFollower:
    read = partial(load, file, {})
    return SettingsFollower(read(), read)


def test_what_is_kept_and_made_by_itself_changes_without_a_restart(file: Path) -> None:
    """Each once, with what it was."""
    follower = _follower(file)
    assert follower.look() is None
    live = {
        "storage_bytes": 1 << 30,
        "retention_hours": 1,
        "disk_watermark_percent": 70,
        "group_retention_hours": 2,
        "auto_create_topics": False,
    }

    lines = (f"{key} = {str(value).lower()}\n" for key, value in live.items())
    file.write_text(TEXT + "".join(lines))
    found = follower.look()

    assert found is not None
    assert {key: getattr(found, key) for key in live} == live
    assert set(live) == set(live_settings.LIVE)
    assert follower.look() is None


def test_what_a_node_was_started_with_otherwise_stays(file: Path) -> None:
    """Its ports, its disk and its promise of durability are of its start."""
    follower = _follower(file)

    file.write_text(TEXT + 'durability = "osBuffer"\nclient_port = 9000\n')

    assert follower.look() is None


def test_the_environment_still_wins(file: Path) -> None:
    """As at the start."""
    read = partial(load, file, {"DLEDGER_RETENTION_HOURS": "5"})
    follower = SettingsFollower(read(), read)

    file.write_text(TEXT + "retention_hours = 1\n")

    assert follower.look() is None


@pytest.mark.parametrize("text", ["retention_hours = -1", "such = 1", "name ="])
def test_a_wrong_file_is_told_once_and_changes_nothing(
    file: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The node goes on with what it has; a corrected file is taken over."""
    follower = _follower(file)

    file.write_text(f"{TEXT}\n{text}\n")
    with caplog.at_level(logging.WARNING):
        assert [follower.look(), follower.look()] == [None, None]
        assert len(caplog.messages) == 1
        file.unlink()
        assert [follower.look(), follower.look()] == [None, None]
    file.write_text(f"{TEXT}retention_hours = 9\n")
    found = follower.look()

    assert found is not None
    assert found.retention_hours == 9
    assert len(caplog.messages) == 2
    assert caplog.messages[0].startswith("the settings stay as they are: ")
