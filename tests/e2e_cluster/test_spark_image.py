"""The entry point of the image that Spark work runs in; `tini` here shows what it would start."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from e2e.cluster import wheels

ENTRYPOINT = wheels.ROOT / "pipeline" / "image" / "entrypoint.sh"
EXECUTOR = {
    "SPARK_HOME": "/spark",
    "SPARK_DRIVER_URL": "spark://driver",
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "600m",
    "SPARK_APPLICATION_ID": "app",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.1",
    "SPARK_EXECUTOR_POD_NAME": "exec-1",
    "SPARK_RESOURCE_PROFILE_ID": "0",
}


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Return a directory for the PATH with a tini that prints its arguments, one a line."""
    tini = tmp_path / "tini"
    tini.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    tini.chmod(0o755)
    return tmp_path


def start(programs: Path, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the entry point."""
    path = f"{programs}:{os.environ['PATH']}"
    return subprocess.run(
        [ENTRYPOINT, *args],
        env={"PATH": path, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_driver_is_the_pipelines_command_with_its_arguments(programs: Path) -> None:
    """Also with blanks in them."""
    started = start(programs, "driver", "verify", "--store", "file:///a b")

    command = ["-s", "--", "python", "-m", "dledger_pipeline", "verify", "--store", "file:///a b"]
    assert started.stdout.splitlines() == command


def test_an_executors_java_options_come_in_the_order_of_their_numbers(programs: Path) -> None:
    """The tenth after the ninth, each whole: a later option may overrule an earlier."""
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dnumber={number} of 11" for number in range(12)}

    words = start(programs, "executor", **EXECUTOR, **options).stdout.splitlines()

    assert words[:3] == ["-s", "--", "java"]
    assert words[3:15] == [f"-Dnumber={number} of 11" for number in range(12)]
    assert words[words.index("-cp") + 1] == "/opt/spark/conf:/spark/jars/*"
    assert words[words.index("--podName") + 1] == "exec-1"


def test_an_executor_without_what_spark_tells_it_does_not_start(programs: Path) -> None:
    """It names what is missing."""
    environ = {name: value for name, value in EXECUTOR.items() if name != "SPARK_DRIVER_URL"}

    started = start(programs, "executor", **environ)

    assert started.returncode != 0
    assert "SPARK_DRIVER_URL" in started.stderr


@pytest.mark.parametrize("args", [[], ["shell"]])
def test_anything_else_is_answered_with_the_usage(programs: Path, args: list[str]) -> None:
    """As every command of this project: 2, and what it can do."""
    started = start(programs, *args)

    assert started.returncode == 2
    assert "driver ARGUMENTS" in started.stderr
    assert "set -euo" not in started.stderr
