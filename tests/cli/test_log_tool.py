"""`dledger log verify|dump` on real directories."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from dledger.cli import log_tool
from dledger.files.files import RealFiles
from dledger.store.commit_log import CommitLog
from dledger.types import EntryKind, Member, Membership, NodeId
from tests.store.harness import entries, entry, format_disk


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    log_tool.add_arguments(parser)
    return log_tool.run(parser.parse_args(arguments))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with 30 entries in several segments."""
    files = RealFiles()
    identity = format_disk(files, tmp_path)
    log = CommitLog.open(
        files, tmp_path / "log", identity=identity, segment_bytes=8192, reserve_bytes=0
    )
    founders = Membership.of([Member(id=NodeId("1"), name="größe-0", address="a:1")])
    log.append([entry(1, data=founders.encode(), kind=EntryKind.MEMBERSHIP)])
    log.append(entries(2, 30, size=500))
    log.sync()
    log.close()
    return tmp_path


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_verify_finds_a_good_log_good(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each segment and one for the log; nothing is written."""
    before = contents(data)

    assert run("verify", str(data)) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == ("00000000000000000001.seg: entries [1, 8], 8024 of 8192 bytes, index good")
    assert lines[-1].startswith("entries [1, 30], synced up to 30, last chain CRC 0x")
    assert contents(data) == before


def test_verify_takes_the_log_directory_alone(data: Path) -> None:
    """A copy of the log can be checked without its identity."""
    assert run("verify", str(data / "log")) == 0


def test_verify_names_rot_that_opening_does_not_look_for(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bodies of sealed segments are read, whatever their index files say."""
    path = data / "log" / "00000000000000000001.seg"
    rotten = bytearray(path.read_bytes())
    rotten[5000] ^= 1
    path.write_bytes(rotten)

    assert run("verify", str(data)) == 1

    errors = capsys.readouterr().err
    assert "record of index 3 at byte 4760 of 00000000000000000001.seg: body CRC32C is" in errors
    assert "damaged entries: 1" in errors


def test_verify_reports_index_files_that_are_not_good(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are rebuilt when the log is opened, so this is no damage."""
    first, second, third = sorted((data / "log").glob("*.idx"))[:3]
    first.unlink()
    second.write_bytes(b"?")
    third.write_bytes(max((data / "log").glob("*.idx")).read_bytes())

    assert run("verify", str(data)) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("index missing")
    assert "index damaged: " in lines[1]
    assert lines[2].endswith("index stale")
    assert "none (not sealed)" in lines[-2]


def test_verify_of_a_torn_tail_is_not_damage(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was never synced is reported and left alone."""
    path = max((data / "log").glob("*.seg"))
    torn = bytearray(path.read_bytes())
    torn[-100:-90] = b"torn bytes"
    path.write_bytes(torn)

    assert run("verify", str(data)) == 0

    assert "it was never synced; opening the log removes it" in capsys.readouterr().out


def test_verify_of_a_directory_without_a_log_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the file that was looked for."""
    assert run("verify", str(tmp_path)) == 1

    assert "watermark: missing" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["verify", "dump", "discard"])
def test_a_directory_that_is_not_there_is_wrong_usage(
    action: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And not damage."""
    missing = tmp_path / "missing"

    assert run(action, str(missing)) == 2

    assert capsys.readouterr().err == (
        f"dledger log {action}: {missing}: no such directory; name the data directory of a node\n"
    )


def test_dump_prints_one_json_line_for_each_entry(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A range is inclusive at both ends."""
    assert run("dump", str(data), "--first", "7", "--last", "10") == 0

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["index"] for line in lines] == [7, 8, 9, 10]
    assert lines[0]["sizeBytes"] == 500
    assert lines[0]["kind"] == "DATA"


def test_dump_shows_memberships(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who votes is the first question about a log."""
    assert run("dump", str(data), "--last", "1") == 0

    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["membership"]["voters"][0]["name"] == "größe-0"
