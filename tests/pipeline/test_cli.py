"""``dledger-pipeline``: results on stdout, and for every bad input exit 1 and one sentence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dledger_pipeline.archive import catalog
from dledger_pipeline.cli.main import main
from dledger_pipeline.errors import (
    CorruptObject,
    ForeignGroup,
    NodeUnavailable,
    RangeNotAvailable,
    SparkFailed,
    StoreDenied,
    StoreUnavailable,
    VersionConflict,
)
from dledger_pipeline.object_store.store import Store
from tests.pipeline.live_group import LiveGroup
from tests.pipeline.logs import GROUP_ID, backup, contents, entries, flip
from tests.pipeline.s3_server import S3Server

_ENTRIES = entries(120)


@pytest.fixture
def archive(tmp_path: Path) -> Store:
    """Return a store with a backup in three objects."""
    store = Store.open(f"file://{tmp_path}/store")
    backup(store, _ENTRIES, (50, 40, 30))
    return store


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that runs a command that must fail, and returns its one sentence."""

    def run(*command: str, code: int = 1) -> str:
        assert main(command) == code
        out, err = capsys.readouterr()
        (line,) = (line for line in err.splitlines() if line.startswith("dledger-pipeline: "))
        assert err.splitlines()[-1] == line
        assert out == ""
        return line

    return run


def _shell(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "dledger_pipeline", *command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_backup_is_verified_and_restored(
    archive: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--json`` prints one line; ``--result-file`` has the same."""
    result_file, data = tmp_path / "result", tmp_path / "data"
    store = ("--store", archive.url, "--json", "--result-file", str(result_file))

    codes = [
        main(["verify", *store, "--deep"]),
        main(["restore", *store, "--data", str(data), "--name", "orders/orders-0"]),
    ]

    verified, restored = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert codes == [0, 0]
    assert (verified["phase"], verified["lastIndex"], verified["objects"]) == ("Completed", 120, 3)
    assert verified["comparedBytes"] == verified["bytes"]
    assert (restored["phase"], restored["groupId"], restored["records"]) == (
        "Completed",
        GROUP_ID,
        120,
    )
    assert json.loads(result_file.read_text()) == restored
    assert list(data.glob("log/*.seg"))


def test_a_restore_can_end_at_an_index_or_a_time(
    archive: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Entries have timestamps of 10 ms times their index, in 1970."""
    for name, target in (("index", ("--to-index", "77")), ("time", ("--to-time", _AT_77))):
        data = ("--data", str(tmp_path / name), "--name", "orders/orders-0")
        assert main(["restore", "--store", archive.url, *data, *target, "--json"]) == 0

    by_index, by_time = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert by_index["lastIndex"] == by_time["lastIndex"] == 77


_AT_77 = "1970-01-01T01:00:00.775+01:00"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ([], "COMMAND"),
        (["backup", "--store", "file:///x"], "--endpoint"),
        (["backup", "--store", "file:///x", "--endpoint", ","], "must not be empty"),
        (["backup", "--store", "file:///x", "--endpoint", "a:1", "--last-index", "0"], "above 0"),
        (["backup", "--store", "file:///x", "--endpoint", "a:1", "--conf", "x"], "not KEY=VALUE"),
        (["backup", "--rate", "fast"], "'fast' is not a number of MB a second"),
        (["backup", "--rate", "-1"], "--rate"),
        (["backup", "--rate", "nan"], "'nan' is not a number of MB a second"),
        (["backup", "--local-threshold-mib", "-1"], "--local-threshold-mib"),
        (["backup", "--runner", "flink"], "choose from 'auto', 'spark', 'plain'"),
        (["restore", "--store", "file:///x", "--name", "g/p"], "--data"),
        (["restore", "--to-time", "yesterday"], "not an RFC 3339 time"),
        (["restore", "--to-time", "2026-01-31T12:00:00"], "has no time zone"),
        (["compact", "--store", "file:///x"], "--endpoint"),
        (["compact", "--endpoint", "a:1", "--again-in", "soon"], "not a duration"),
    ],
)
def test_wrong_usage_is_exit_2(
    command: Sequence[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The argument at fault is named."""
    with pytest.raises(SystemExit) as stopped:
        main(command)

    assert stopped.value.code == 2
    assert reason in capsys.readouterr().err


def test_a_flipped_object_is_named(
    spark: SparkSession, archive: Store, refused: Callable[..., str], tmp_path: Path
) -> None:
    """Whoever reads it: verify, restore; and nothing is changed or restored."""
    damaged = catalog.load(archive).files[1].name
    flip(archive, f"{GROUP_ID}/{damaged}")
    before, data = contents(archive), tmp_path / "data"
    store = ("--store", archive.url)

    for command in (
        ("verify", *store),
        ("restore", *store, "--data", str(data), "--name", "orders/orders-0"),
    ):
        assert damaged in refused(*command)

    assert contents(archive) == before
    assert not (data / "identity.json").exists()


def test_a_missing_object_is_named(
    spark: SparkSession, archive: Store, refused: Callable[..., str], tmp_path: Path
) -> None:
    """Whoever looks for it: verify, restore."""
    missing = catalog.load(archive).files[2].name
    (tmp_path / "store" / GROUP_ID / missing).unlink()
    store = ("--store", archive.url)

    for command in (
        ("verify", *store),
        ("restore", *store, "--data", str(tmp_path / "data"), "--name", "orders/orders-0"),
    ):
        assert f"{missing} is missing" in refused(*command)


def test_another_groups_manifest_is_refused(
    archive: Store, refused: Callable[..., str], tmp_path: Path
) -> None:
    """Its folder has one group's name, its manifest another's."""
    (tmp_path / "store" / GROUP_ID).rename(tmp_path / "store" / "other")

    line = refused("verify", "--store", archive.url, "--group-id", "other")

    assert f"belongs to group {GROUP_ID}, not to other" in line


def test_the_error_is_in_the_result_file(
    archive: Store, refused: Callable[..., str], tmp_path: Path
) -> None:
    """With its type, and short enough for a container's termination message."""
    result_file = tmp_path / "result"
    data = ("--data", str(tmp_path / "data"), "--name", "g/p")

    line = refused(
        "restore", "--store", archive.url, *data, "--to-index", "121",
        "--result-file", str(result_file),
    )  # fmt: skip

    error = json.loads(result_file.read_text())["error"]
    assert error["type"] == "TargetNotAvailable"
    assert line == f"dledger-pipeline: {error['message']}"
    assert "121" in line


@pytest.mark.slow
def test_a_range_past_the_commit_index_is_refused(
    group: LiveGroup, refused: Callable[..., str], tmp_path: Path
) -> None:
    """Before Spark is started or anything is stored; a node that lags may have it soon."""
    past = str(group.last_index + 1000)
    store = ("--store", f"file://{tmp_path}/store", "--last-index", past)

    line = refused("backup", "--endpoint", ",".join(group.admins), *store, code=4)

    assert past in line
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
def test_wrong_credentials_are_one_sentence(group: LiveGroup, s3: S3Server) -> None:
    """All of standard error, in a process of its own; and the bucket stays empty."""
    url = s3.bucket("denied")

    done = _shell(
        *("backup", "--endpoint", group.admins[0], "--store", url),
        DLEDGER_STORE_ENDPOINT=s3.endpoint,
        DLEDGER_STORE_ALLOW_HTTP="1",
        AWS_ACCESS_KEY_ID=s3.credentials.access_key_id,
        AWS_SECRET_ACCESS_KEY=f"not {s3.credentials.secret_access_key}",
    )

    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert line.startswith("dledger-pipeline: the store denies access to")
    assert list(s3.store(url).list()) == []


@pytest.mark.slow
def test_a_missing_java_is_one_sentence(group: LiveGroup, tmp_path: Path) -> None:
    """It says how to install one."""
    done = _shell(
        *("backup", "--endpoint", group.admins[0], "--store", f"file://{tmp_path}/store"),
        *("--runner", "spark"),
        PATH=str(tmp_path),
        JAVA_HOME="",
    )

    assert done.returncode == 4
    assert "openjdk-17-jre-headless" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_backup_goes_to_s3_from_the_shell(group: LiveGroup, s3: S3Server) -> None:
    """Spark's workers write with the environment's credentials; stderr has our lines only."""
    url = s3.bucket("shell")

    done = _shell(
        *("backup", "--endpoint", ",".join(group.admins), "--store", url, "--json"),
        *("--master", "local[1]", "--conf", "spark.driver.memory=512m", "--runner", "spark"),
        DLEDGER_STORE_ENDPOINT=s3.endpoint,
        DLEDGER_STORE_ALLOW_HTTP="1",
        AWS_ACCESS_KEY_ID=s3.credentials.access_key_id,
        AWS_SECRET_ACCESS_KEY=s3.credentials.secret_access_key,
    )

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    found = catalog.load(s3.store(url))
    assert (result["phase"], result["groupId"]) == ("Completed", group.group_id)
    assert (result["manifest"], result["records"]) == (found.name, found.last_index)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreUnavailable("the store answers 503"), 4),
        (NodeUnavailable("no node can be read from"), 4),
        (RangeNotAvailable("past the commit index"), 4),
        (SparkFailed("an executor died"), 4),
        (VersionConflict("HEAD"), 4),
        (StoreDenied("HEAD", "403"), 1),
        (CorruptObject("data/1", "its SHA-256 is another"), 1),
        (ForeignGroup("it belongs to another group"), 1),
        (OSError("no space left"), 1),
    ],
)
def test_only_what_may_pass_is_worth_another_try(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator's Jobs are not tried again after exit code 1."""

    def run(*_: object) -> None:
        raise error

    monkeypatch.setattr("dledger_pipeline.cli.store_commands.repair", run)

    assert main(["repair", "--store", "file:///backups"]) == code


def test_a_group_that_cannot_be_reached_is_exit_code_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As for `dledger`; a scheduler may try that again."""
    store = f"file://{tmp_path}/store"

    assert main(["backup", "--endpoint", "127.0.0.1:1", "--store", store]) == 4

    said = capsys.readouterr().err.splitlines()[-1]
    assert "127.0.0.1:1: no connection (Connection refused); does a node run there" in said


def test_backups_are_listed(archive: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """One line each, damaged ones too; with ``--json`` all of them in one object."""
    backup(archive, _ENTRIES, (50, 70))
    flip(archive, f"{GROUP_ID}/manifests/{1:010}.json")

    assert main(["list", "--store", archive.url]) == 0
    first, second, _ = capsys.readouterr().out.splitlines()
    assert f"{GROUP_ID}/manifests/{1:010}.json" in first
    assert "2  1970-01-01T00:00:01.190Z  restores to [1, 120]" in second

    assert main(["list", "--store", archive.url, "--json"]) == 0
    damaged, whole = json.loads(capsys.readouterr().out)["backups"]
    assert (damaged["number"], "error" in damaged) == (1, True)
    assert (whole["restorable"], whole["objects"]) == ([[1, 120]], 2)


def test_an_older_backup_is_restored_by_its_number(
    archive: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Callable[..., str]
) -> None:
    """When the newest manifest is damaged or lost: only if one asks for it."""
    backup(archive, _ENTRIES, (50, 70))
    newest = f"{GROUP_ID}/manifests/{2:010}.json"
    restore = ("restore", "--store", archive.url, "--data", str(tmp_path / "data"), "--name", "a/b")
    flip(archive, newest)
    assert newest in refused(*restore)
    archive.delete(newest)
    assert "`--manifest 1`; `dledger-pipeline repair`" in refused(*restore)

    assert main([*restore, "--manifest", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["number"] == 1


def test_what_was_lost_is_repaired(
    archive: Store, capsys: pytest.CaptureFixture[str], refused: Callable[..., str]
) -> None:
    """A new manifest of the objects that are there; and the old error is gone."""
    for name in (*archive.list(f"{GROUP_ID}/manifests"), *archive.list(f"{GROUP_ID}/chunks")):
        archive.delete(name)
    assert "is missing" in refused("verify", "--store", archive.url, "--group-id", GROUP_ID)

    assert main(["repair", "--store", archive.url, "--json"]) == 0
    repaired = json.loads(capsys.readouterr().out)
    assert (repaired["number"], repaired["restorable"]) == (2, [[1, 120]])
    assert main(["verify", "--store", archive.url, "--deep"]) == 0


def test_what_would_be_deleted_is_shown_first(
    archive: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--dry-run`` deletes nothing; without it the same is gone."""
    orphan = tmp_path / "store" / GROUP_ID / "data" / "orphan.parquet"
    orphan.write_bytes(b"left by a killed run")
    os.utime(orphan, (1, 1))
    gc = ["gc", "--store", archive.url, "--keep-days", "7", "--json"]

    assert main([*gc, "--dry-run"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["objects"], shown["freedBytes"], orphan.exists()) == (1, 20, True)
    assert main(gc) == 0
    assert json.loads(capsys.readouterr().out) == shown | {"dryRun": False}
    assert not orphan.exists()
    assert catalog.load(archive).last_index == 120


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("1969-12-31T00:00:00Z", "is before the first message"),
        ("2030-01-01T00:00:00Z", "the backup does not reach"),
    ],
)
def test_a_time_that_the_backup_does_not_hold_is_refused_with_both_ends(
    archive: Store, tmp_path: Path, refused: Callable[..., str], target: str, words: str
) -> None:
    """A typing error in the year does not found an empty group."""
    data = tmp_path / "data"

    said = refused(
        "restore", "--store", archive.url, "--data", str(data), "--name", "a/b", "--to-time", target
    )

    assert words in said
    assert "to a time in [1970-01-01T00:00:00.010Z, 1970-01-01T00:00:01.190Z]" in said
    assert not data.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_fails_once_a_signal_has_come_was_stopped_by_it(
    archive: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
) -> None:
    """A library in between may catch what the handler raises, and fail with an error of its own."""

    def swallowed(*_: object) -> None:
        try:
            os.kill(os.getpid(), number)
        except KeyboardInterrupt:
            raise SparkFailed("Spark failed: its answer from the Java side is empty") from None

    monkeypatch.setattr("dledger_pipeline.cli.store_commands.repair", swallowed)

    assert main(["repair", "--store", archive.url]) == 128 + number

    said = f"dledger-pipeline: stopped by {number.name} before the work was done"
    assert capsys.readouterr().err.splitlines() == [said]


def test_the_newest_backups_are_listed_without_reading_the_others(
    archive: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """A year of hourly ones would be thousands of reads."""
    for count in (60, 70, 80):
        backup(archive, _ENTRIES, (50, count - 50))
    flip(archive, f"{GROUP_ID}/manifests/{1:010}.json")

    assert main(["list", "--store", archive.url, "--last", "2", "--json"]) == 0

    backups = json.loads(capsys.readouterr().out)["backups"]
    assert [each["number"] for each in backups] == [3, 4]
    assert not any("error" in each for each in backups)


def test_the_objects_of_a_backup_are_listed(
    archive: Store, capsys: pytest.CaptureFixture[str], refused: Callable[..., str]
) -> None:
    """Those of data/ have each entry once, whatever else lies in the store."""
    backup(archive, _ENTRIES, (120,))
    listing = ("list", "--store", archive.url)
    for number in (None, 1):
        which = [] if number is None else ["--manifest", str(number)]
        assert main([*listing, "--objects", *which]) == 0
        names = capsys.readouterr().out.split()[:-2]  # "count N" is the result
        data = [name for name in names if f"{GROUP_ID}/data/" in name]
        manifest = catalog.load(archive, number=number)
        assert data == [f"{GROUP_ID}/{row.name}" for row in manifest.files]
        assert names[-1] == f"{GROUP_ID}/{manifest.name}"
    assert main([*listing, "--objects", "--json"]) == 0
    assert names[-1] in json.loads(capsys.readouterr().out)["objects"] or number
    assert "--objects" in refused(*listing, "--manifest", "1")


@pytest.mark.parametrize("group_id", ["../x", "a/b", " x", ".x"])
def test_a_group_id_that_no_group_has_is_wrong_usage(
    archive: Store, capsys: pytest.CaptureFixture[str], group_id: str
) -> None:
    """It names the option, not an object."""
    with pytest.raises(SystemExit) as caught:
        main(["list", "--store", archive.url, "--group-id", group_id])

    assert caught.value.code == 2
    assert "--group-id" in capsys.readouterr().err
