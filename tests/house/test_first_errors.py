"""The errors that a user meets first, word for word: what is wrong, whose fault, and what next.

Each is made by the real thing: a command through its `main`, a manifest through the operator's
checks, an error of the node through the table that clients get it by. Who changes a sentence reads
it here once more; *next* is the part of it that says what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dledger.cli import main as node_cli
from dledger.errors import DirectoryLocked, DledgerError, MessageIdConflict, NotLeader, UnknownTopic
from dledger.replica.room_keeper import Measured
from dledger.rpc.status import status_of
from dledger_operator import options as operator_options
from dledger_operator.decisions.checks import problems, verdict
from dledger_operator.observed.observed import Observed
from dledger_pipeline.cli import main as pipeline_cli
from tests.operator.samples import PLATFORM, body
from tests.replica.room_harness import Keeping


class Said(NamedTuple):
    """One error.

    Attributes:
        text: All that is said, but for usage lines; DIR is a directory of the test.
        next: The part that says what to do.
    """

    text: str
    next: str


class Command(NamedTuple):
    """A program's `main`, and its words."""

    run: Callable[[list[str]], Any]
    words: tuple[str, ...]


def of_node(*words: str) -> Command:
    """Return a call of `dledger`."""
    return Command(node_cli.main, words)


def of_pipeline(*words: str) -> Command:
    """Return a call of `dledger-pipeline`."""
    return Command(pipeline_cli.main, words)


COMMANDS: dict[str, tuple[Command, Said]] = {
    "a command without its endpoint": (
        of_node("status"),
        Said(
            "dledger status: error: the following arguments are required: --endpoint", "--endpoint"
        ),
    ),
    "an endpoint without a port": (
        of_node("status", "--endpoint", "127.0.0.1"),
        Said(
            "dledger status: error: argument --endpoint: '127.0.0.1' is not HOST:PORT, such as "
            "127.0.0.1:20911",
            "such as 127.0.0.1:20911",
        ),
    ),
    "nobody at the endpoint": (
        of_node("status", "--endpoint", "127.0.0.1:9", "--timeout", "1"),
        Said(
            "dledger: 127.0.0.1:9: no connection (Connection refused); does a node run there, and "
            "is that its port?",
            "does a node run there",
        ),
    ),
    "a flag with a wrong value": (
        of_node("topic", "create", "orders", "--queues", "0", "--endpoint", "127.0.0.1:9"),
        Said(
            "dledger topic create: error: argument --queues: '0' is not a whole number above 0",
            "a whole number above 0",
        ),
    ),
    "an even number of nodes": (
        of_node("dev", "--nodes", "2", "--data", "d"),
        Said("dledger dev: --nodes must be odd and 1 to 9, not 2", "must be odd and 1 to 9"),
    ),
    "a data directory that is a file": (
        of_node("dev", "--data", "file"),
        Said(
            "dledger dev: --data DIR/file cannot be used (File exists); name another directory",
            "name another directory",
        ),
    ),
    "no configuration": (
        of_node("node", "--config", "none.toml"),
        Said(
            "dledger node: configuration: config: cannot read none.toml (No such file or "
            "directory); name a TOML file",
            "name a TOML file",
        ),
    ),
    "a setting out of bounds": (
        of_node("node", "--config", "low.toml"),
        Said(
            "dledger node: configuration: retention_hours: must be 0 to 1000000, not -1",
            "must be 0 to 1000000",
        ),
    ),
    "a log that is not there": (
        of_node("log", "verify", "none"),
        Said(
            "dledger log verify: none: no such directory; name the data directory of a node",
            "name the data directory of a node",
        ),
    ),
    "a store without a backup": (
        of_pipeline("verify", "--store", "file://DIR/store"),
        Said(
            "dledger-pipeline: no backup was published in file://DIR/store: is that the store that "
            "--store should name?",
            "is that the store",
        ),
    ),
    "a store by http": (
        of_pipeline("verify", "--store", "s3://b", "--store-endpoint", "http://127.0.0.1:9"),
        Said(
            "dledger-pipeline: http://127.0.0.1:9 is not encrypted: anyone on the network path can "
            "read messages; use https://, or allow it by --allow-http (store.allowHttp: true)",
            "use https://",
        ),
    ),
    "an operator without an image": (
        Command(lambda words: operator_options.parse(words, {}), ()),
        Said(
            "dledger-operator: error: --image (or DLEDGER_OPERATOR_IMAGE) is required: name the "
            "image that nodes run",
            "name the image",
        ),
    ),
}

MANIFESTS: dict[str, tuple[dict[str, Any], Said]] = {
    "an even number of replicas": (
        {"replicas": 2},
        Said("spec.replicas must be odd, from 1 to 9, not 2", "must be odd, from 1 to 9"),
    ),
    "a size that is none": (
        {"storage": {"size": "10 GB"}},
        Said("spec.storage.size: '10 GB' is not a quantity such as 10Gi", "such as 10Gi"),
    ),
    "a field of another version": (
        {"users": [{"name": "a"}]},
        Said("spec.users is not known to this version; remove the field", "remove the field"),
    ),
    "an image of somebody else": (
        {"image": "other/x:1"},
        Said(
            "spec.image=other/x:1: is not one of the chart's images nor of allowedImages (dledger, "
            "dledger-spark); who installed the operator may add it",
            "who installed the operator may add it",
        ),
    ),
}


def _full_disk() -> DledgerError:
    room = Keeping().keeper
    room.measured(Measured(total_bytes=1 << 30, free_bytes=1000, own_bytes=1 << 20))
    assert room.refusal is not None
    return room.refusal


ANSWERS: dict[str, tuple[Callable[[], DledgerError], int, Said]] = {
    "a lost leader": (
        lambda: NotLeader(None),
        50002,
        Said("the group has no leader at the moment: try again", "try again"),
    ),
    "a full disk": (
        _full_disk,
        50001,
        Said(
            "the disk of the leader has 1000 bytes free and keeps 71303168 in reserve, and no "
            "message may go for it; free some space or grow the volume, writes resume by "
            "themselves",
            "free some space or grow the volume",
        ),
    ),
    "a topic that is not there": (
        lambda: UnknownTopic("orders", node="10.0.0.1:8081"),
        40402,
        Said(
            "topic 'orders' does not exist; create it with `dledger topic create orders "
            "--endpoint 10.0.0.1:8081` (with autoCreateTopics on, its first use makes it)",
            "create it with `dledger topic create orders --endpoint 10.0.0.1:8081`",
        ),
    ),
    "an id that is another message's": (
        lambda: MessageIdConflict.of_message("m"),
        40009,
        Said(
            "message id 'm' is that of a message with another body that was stored before: this "
            "one is not stored; give it an id of its own",
            "give it an id of its own",
        ),
    ),
}


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where the commands run: with a file, and a configuration that is wrong."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    settings = {"name": "a", "group": "g", "data_dir": "d", "advertise_host": "127.0.0.1"}
    lines = [f'{key} = "{value}"' for key, value in settings.items()]
    (tmp_path / "low.toml").write_text("\n".join([*lines, "retention_hours = -1"]))
    return tmp_path


@pytest.mark.parametrize("situation", COMMANDS)
def test_a_command_says_what_is_wrong_and_what_next(
    situation: str, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one sentence, without a traceback, and with an exit code that is not 0."""
    (run, words), said = COMMANDS[situation]

    try:
        code = run([word.replace("DIR", str(directory)) for word in words])
    except SystemExit as ended:
        code = ended.code
    lines = capsys.readouterr().err.splitlines()
    told = [line for line in lines if line.startswith("dledger")]

    assert code
    assert told == [said.text.replace("DIR", str(directory))]
    assert not any("Traceback" in line for line in lines)


@pytest.mark.parametrize("situation", MANIFESTS)
def test_a_manifest_is_answered_by_its_field(situation: str) -> None:
    """As `SpecValid` shows it."""
    spec, said = MANIFESTS[situation]

    assert verdict(problems(PLATFORM.group(body(spec)), Observed())).message == said.text


@pytest.mark.parametrize("situation", ANSWERS)
def test_a_node_answers_with_a_code_and_a_sentence(situation: str) -> None:
    """As a RocketMQ client gets it."""
    make, code, said = ANSWERS[situation]
    status = status_of(make())

    assert (status.code, status.message) == (code, said.text)


def test_all_say_what_next() -> None:
    """Twenty of them; each has its next step in its own words."""
    every = [*(said for _, said in COMMANDS.values()), *(said for _, said in MANIFESTS.values())]
    every += [said for _, _, said in ANSWERS.values()]

    assert len(every) >= 20
    assert [said for said in every if said.next not in said.text] == []
    assert not any(said.text.endswith("!") for said in every)
    assert "in use by another process" in str(DirectoryLocked("d"))
