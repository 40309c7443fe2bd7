"""The three programs start, or say which extra they lack."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from e2e.cluster import wheels

ROOT = Path(__file__).parents[2]
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]


def _started(script: str, prelude: str = "") -> list[str]:
    """Return what runs a program as the installed script does."""
    module, _, function = SCRIPTS[script].partition(":")
    program = f"import sys; {prelude}\nfrom {module} import {function}\nsys.exit({function}())"
    path = [str(ROOT / folder) for folder in ("node", "operator", "pipeline")]
    return [sys.executable, "-c", f"import sys; sys.path[:0] = {path}\n{program}"]


def _start(script: str, prelude: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program with ``--help``."""
    return subprocess.run(
        [*_started(script, prelude), "--help"], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the project's wheel as it is shipped, and none of its dependencies."""
    made = tmp_path_factory.mktemp("wheel")
    venv, uv = tmp_path_factory.mktemp("bare") / "venv", wheels.uv()
    _run(uv, "build", "--quiet", "--wheel", "--out-dir", made, ROOT)
    _run(uv, "venv", "--quiet", "--python", sys.executable, venv)
    (wheel,) = made.glob("*.whl")
    _run(uv, "pip", "install", "--quiet", "--no-deps", "--python", venv / "bin" / "python", wheel)
    return venv / "bin"


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_installed_program_without_its_extra_says_what_to_install(
    script: str, bare: Path, tmp_path: Path
) -> None:
    """Outside of a checkout, in one sentence."""
    started = subprocess.run(
        [bare / script, "--help"], capture_output=True, text=True, check=False, cwd=tmp_path
    )

    assert started.returncode == 2
    assert re.fullmatch(
        rf"{script}: \w+ is not installed: pip install 'dledger\[[a-z]+\]'\n", started.stderr
    ), started.stderr


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_program_starts(script: str) -> None:
    """With what its extra brings."""
    started = _start(script)

    assert started.returncode == 0, started.stderr
    assert started.stdout.startswith("usage:")


@pytest.mark.parametrize(
    ("script", "missing", "extra"),
    [
        ("dledger", "grpc", "node"),
        ("dledger-operator", "kopf", "operator"),
        ("dledger-pipeline", "pyarrow", "pipeline"),
    ],
)
def test_a_missing_extra_is_named(script: str, missing: str, extra: str) -> None:
    """`pip install dledger` brings the programs, and nothing that they need."""
    started = _start(script, f"sys.modules[{missing!r}] = None")

    assert started.returncode == 2
    assert started.stderr == (
        f"{script}: {missing} is not installed: pip install 'dledger[{extra}]'\n"
    )


def test_a_fault_of_ours_is_no_missing_extra() -> None:
    """A module of our own that is not there is a traceback, which we want to see."""
    started = _start("dledger", "sys.modules['dledger.cli.node_command'] = None")

    assert started.returncode == 1
    assert "Traceback" in started.stderr


def test_ctrl_c_is_no_traceback() -> None:
    """While a command waits for an answer, say."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"127.0.0.1:{silent.getsockname()[1]}"
        command = [*_started("dledger"), "status", "--endpoint", endpoint, "--timeout", "300"]
        waiting = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        connection, _ = silent.accept()
        with connection:
            waiting.send_signal(signal.SIGINT)
            _, said = waiting.communicate()

    assert waiting.returncode == 130
    assert "Traceback" not in said
