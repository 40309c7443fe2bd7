"""What ``make clients`` says of itself: gaps that are none, tools that are not there."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from e2e.bench.java import digest_of
from e2e.clients import __main__ as command
from e2e.clients import away, programs
from e2e.clients.builds import SOURCES, TOOLS, MissingTool, missing
from e2e.clients.cases import CASES, MOST_BYTES, WITH_TLS
from e2e.clients.drivers import ClientFailed, driver, expected_body
from e2e.clients.sdks import SDKS, Sdk
from e2e.clients.stage import CaseFailed
from e2e.clients.table import CaseVerdict, Result, exit_code, table, verdict
from e2e.harness.checks import none_of
from e2e.harness.processes import connected_ports

ROOT = Path(__file__).parents[2]


def _result(seen: CaseVerdict, language: str = "node", *, tls: bool = False) -> Result:
    return Result(case="push", language=language, tls=tls, verdict=seen)


@pytest.mark.parametrize(
    ("gap", "error", "seen"),
    [
        ("", "", CaseVerdict.PASSED),
        ("", "it did not come", CaseVerdict.FAILED),
        ("has no push consumer", "it did not come", CaseVerdict.GAP),
        ("has no push consumer", "", CaseVerdict.NO_LONGER_A_GAP),
    ],
)
def test_a_gap_is_what_fails_as_declared(gap: str, error: str, seen: CaseVerdict) -> None:
    """One that passes is a table that tells users the wrong thing."""
    assert verdict(gap, error)[0] is seen


def test_what_a_client_passes_by_chance_is_no_failure() -> None:
    """Nor is it an error when it passes."""
    assert verdict("", "it did not come", "one connection")[0] is CaseVerdict.GAP
    assert verdict("", "", "one connection")[0] is CaseVerdict.PASSED


@pytest.mark.parametrize(
    ("seen", "code"),
    [
        ([CaseVerdict.PASSED, CaseVerdict.GAP], 0),
        ([CaseVerdict.PASSED, CaseVerdict.FAILED], 1),
        ([CaseVerdict.PASSED, CaseVerdict.NO_LONGER_A_GAP], 1),
        ([CaseVerdict.PASSED, CaseVerdict.NOT_MEASURED], 2),
        ([CaseVerdict.FAILED, CaseVerdict.NOT_MEASURED], 1),
        ([CaseVerdict.GAP], 2),
        ([], 2),
    ],
)
def test_the_exit_code_is_the_worst_of_the_cases(seen: list[CaseVerdict], code: int) -> None:
    """What was not measured is no success, and a run of nothing shows nothing."""
    assert exit_code([_result(each) for each in seen], []) == code


def test_the_exit_code_is_that_of_the_loads_too() -> None:
    """A lost message fails the run; a load alone is a run."""
    assert exit_code([], [none_of("lost", 0)]) == 0
    assert exit_code([_result(CaseVerdict.PASSED)], [none_of("lost", 1)]) == 1


def test_the_table_has_both_ports_of_a_case() -> None:
    """Plain first, whatever ended first; a language without a result has an empty cell."""
    results = [_result(CaseVerdict.FAILED, tls=True), _result(CaseVerdict.PASSED)]

    assert table(results, ["node", "rust"]).splitlines()[1].split() == ["push", "+/F"]


def test_a_missing_tool_is_named_with_its_source() -> None:
    """Python needs none."""
    assert missing("node", lambda name: None if name == "npm" else name).startswith("no npm: needs")
    assert missing("node", lambda name: name) == ""
    assert missing("python", lambda _: None) == ""


def test_every_language_has_a_driver_and_what_pins_it() -> None:
    """A folder each; what is fetched has digests."""
    pins = {
        "node": "package-lock.json",
        "rust": "Cargo.lock",
        "java": "jars.sha256",
        "go": "go.sum",
    }

    assert set(SDKS) == set(TOOLS)
    assert all((SOURCES / language).is_dir() for language in SDKS)
    assert all((SOURCES / language / name).exists() for language, name in pins.items())
    lock = json.loads((SOURCES / "node" / "package-lock.json").read_text("utf-8"))
    assert all("integrity" in each for path, each in lock["packages"].items() if path)
    assert (SOURCES / "rust" / "Cargo.lock").read_text("utf-8").count("checksum = ") > 100


def test_gaps_and_tls_cases_are_cases() -> None:
    """A case that was renamed would leave its gap behind."""
    known = {*CASES, *programs.CASES, *away.CASES, "swallowed"}

    assert {gap for sdk in SDKS.values() for gap in (*sdk.gaps, *sdk.chances)} <= known
    assert set(WITH_TLS) <= set(CASES)


def test_a_driver_is_built_anew_when_a_file_of_it_changes(tmp_path: Path) -> None:
    """Its name and its content count."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.rs").write_text("one")
    before = digest_of(tmp_path)

    (tmp_path / "src" / "main.rs").write_text("two")

    assert digest_of(tmp_path) != before


def test_the_node_that_is_taken_away_is_one_that_tells_something() -> None:
    """Dead: one that the client uses. Frozen: not the only one that it uses."""
    assert [away.used([1, 2], reached) for reached in ({2}, {0}, {0, 1, 2}, ())] == [2, 1, 1, 1]
    chosen = [away.not_the_only_one([1, 2], reached) for reached in ({1}, {0}, {0, 1, 2}, {2})]
    assert chosen == [2, 2, 2, 1]


def test_the_connections_of_a_process_are_seen() -> None:
    """Those that are open, by the port of the other side."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        before = connected_ports(os.getpid())
        with socket.create_connection(("127.0.0.1", port)):
            assert connected_ports(os.getpid()) - before >= {port}
        assert port not in before


def test_a_body_is_its_text_repeated() -> None:
    """Of a size that is no multiple, and of one below the text's."""
    assert expected_body("seven 7", 16)[0] == "seven 7seven 7se"
    assert expected_body("seven 7", 1)[0] == "s"
    assert len(expected_body("seven 7", MOST_BYTES)[0]) == 64


@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (CaseFailed("came twice"), CaseVerdict.FAILED),
        (ClientFailed("TimeoutError: no answer"), CaseVerdict.FAILED),
        (None, CaseVerdict.PASSED),
    ],
)
async def test_what_a_case_raises_is_its_remark(
    raised: Exception | None, seen: CaseVerdict
) -> None:
    """Also what the client itself raised."""

    async def case(_: object) -> None:
        if raised:
            raise raised

    stage: Any = SimpleNamespace(language="node", tls=False, sdk=Sdk(version="1"))
    result = await command.one("push", case, stage)

    assert (result.verdict, result.remark) == (seen, str(raised or ""))


def test_a_language_without_its_tools_is_not_measured_and_the_rest_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and what to install."""

    def ensure(_: object, language: str) -> Sequence[str]:
        if language == "rust":
            raise MissingTool("no cargo: needs Rust")
        return ["driver"]

    async def cases(_: object, commands: object, __: object, found: command.Found) -> None:
        assert commands == {"node": ["driver"]}
        found.add(_result(CaseVerdict.PASSED))

    monkeypatch.setattr(command, "ensure", ensure)
    monkeypatch.setattr(command, "_cases", cases)
    code = command.main(["--languages", "node,rust", "--only", "push", "--out", str(tmp_path)])

    assert code == 2
    assert "no cargo: needs Rust" in capsys.readouterr().out
    told = json.loads((tmp_path / "clients.json").read_text("utf-8"))
    assert [each["verdict"] for each in told["results"]] == ["?", "+"]


def test_a_language_or_part_that_is_none_is_wrong_usage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The message names those that there are."""
    for words in (["--languages", "cobol"], ["--only", "pushh"]):
        with pytest.raises(SystemExit) as ended:
            command.main(words)
        assert ended.value.code == 2
    assert "bodies" in capsys.readouterr().err


ECHO = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "end":
        sys.exit()
    told = {"error": "Refused: no"} if asked["do"] == "fail" else {"did": asked["do"]}
    if asked["do"] != "hang":
        print(json.dumps({"id": asked["id"], **told}), flush=True)
"""


async def test_a_driver_answers_fails_hangs_and_ends(tmp_path: Path) -> None:
    """Each is told to the case as what a user of the client would see."""
    program = tmp_path / "echo.py"
    program.write_text(ECHO)
    async with driver(["python3", str(program)], tmp_path / "log", {}) as started:
        assert (await started.ask("send"))["did"] == "send"
        with pytest.raises(ClientFailed, match="Refused: no"):
            await started.ask("fail")
        with pytest.raises(ClientFailed, match="did not come back"):
            await started.ask("hang", timeout_s=0.1)
        hanging = asyncio.create_task(started.ask("hang"))
        with pytest.raises(ClientFailed, match="has ended"):
            await started.ask("end")
        with pytest.raises(ClientFailed, match="has ended"):
            await hanging
