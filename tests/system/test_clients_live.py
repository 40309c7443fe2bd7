"""The official clients against real nodes (promise P12); `make clients` runs the same cases.

A machine without a language's tools skips it by name. The Node.js client is the one that is asked
in every `make test`: what suits the others has not suited it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.clients import __main__ as command
from e2e.clients import programs
from e2e.clients.builds import MissingTool, ensure
from e2e.clients.sdks import SDKS
from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import default_layout


def _built(language: str) -> None:
    """Skip where the client cannot be had."""
    layout = default_layout()
    layout.cache.mkdir(parents=True, exist_ok=True)
    try:
        ensure(layout, language)
    except (MissingTool, ClusterError) as error:
        pytest.skip(f"not measured: {error}")


def _shown(work: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """Run the command; return its exit code and what it found."""
    code = command.main([*words, "--data", str(work), "--out", str(work)])
    return code, json.loads((work / "clients.json").read_text("utf-8"))


def _amiss(told: dict[str, Any]) -> list[Any]:
    results = [each for each in told["results"] if each["verdict"] not in {"+", "-"}]
    return results + [line for line in told["lines"] if not line["kept"]]


@pytest.mark.found
def test_the_nodejs_client_sends_and_gets(tmp_path: Path) -> None:
    """found: sdks 1. It makes one name of all addresses of a queue, and did not start."""
    _built("node")

    code, told = _shown(tmp_path, "--languages", "node", "--only", "push,properties")

    assert (_amiss(told), code) == ([], 0)


def test_programs_of_the_documents_print_what_they_should(tmp_path: Path) -> None:
    """Python's, of every type of messages, against three nodes; `make test-all` has the others."""
    of_types = [each for each in programs.CASES if each != "program_hello"]  # has its own test

    code, told = _shown(tmp_path, "--languages", "python", "--only", ",".join(of_types))

    assert (_amiss(told), code, len(told["results"])) == ([], 0, len(of_types))


@pytest.mark.alone
@pytest.mark.long
@pytest.mark.found
@pytest.mark.parametrize("language", SDKS)
def test_a_client_does_all_that_it_has(language: str, tmp_path: Path) -> None:
    """found: sdks 1 to 5. All cases, a node away, leaders killed for 60 s, and all of the group."""
    _built(language)

    code, told = _shown(tmp_path, "--languages", language, "--outage-s", "15")

    assert (_amiss(told), code) == ([], 0)
