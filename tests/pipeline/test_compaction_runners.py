"""The job compact by Spark and by local processes: the same calls, and what each of them needs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dledger.errors import Refused
from dledger_pipeline.jobs.compact import compact
from dledger_pipeline.jobs.progress import Progress
from dledger_pipeline.jobs.runner import RunnerName
from tests.pipeline.compacting_group import (
    CompactingGroup,
    backed_up,
    compacted,
    left_in,
    request_of,
)

ROOT = Path(__file__).parents[2]


def test_spark_and_local_processes_tell_the_same(
    spark: SparkSession, compacting: CompactingGroup, tmp_path: Path, inline_tasks: None
) -> None:
    """Byte for byte, and both say after each range how far they are."""
    store = backed_up(compacting, tmp_path)
    compacting.send("prices", 0, "1/0", "new")
    told, said = {}, {}
    compacting.fail = lambda _: Refused("only looking")
    for runner in (RunnerName.SPARK, RunnerName.PLAIN):
        lines = said[runner] = list[str]()
        with pytest.raises(Refused):
            compact(
                request_of(compacting, store=store, runner=runner),
                Progress("compact", lines.append),
            )
        told[runner] = compacting.calls.pop()

    assert told[RunnerName.SPARK] == told[RunnerName.PLAIN]
    for lines in said.values():
        steps = [line.partition(" ranges: ")[0] for line in lines if " ranges: " in line]
        assert steps
        assert steps == [f"{n} of {len(steps)}" for n in range(1, len(steps) + 1)]


def test_a_plain_job_needs_neither_spark_nor_java(
    compacting: CompactingGroup, tmp_path: Path
) -> None:
    """A small one, with no option that says so, where Spark is not installed."""
    program = (
        "import sys\n"
        "sys.modules['pyspark'] = sys.modules['py4j'] = None\n"
        "from dledger_pipeline.cli.main import main\n"
        "if __name__ == '__main__':\n"
        "    sys.exit(main(sys.argv[1:]))\n"
    )
    (tmp_path / "run.py").write_text(program, "utf-8")
    path = os.pathsep.join(str(ROOT / folder) for folder in ("node", "pipeline"))

    done = _run(
        [str(tmp_path / "run.py"), "compact", "--endpoint", compacting.addresses[0]],
        {"PYTHONPATH": path, "PATH": str(tmp_path), "JAVA_HOME": ""},
    )

    assert done.returncode == 0, done.stderr
    assert "local worker" in done.stderr
    assert "letGo            55" in done.stdout
    assert left_in(compacting) == [4, 4, 0, 2]


def _run(command: Sequence[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_driver_is_sent_places_not_keys(
    spark: SparkSession, compacting: CompactingGroup
) -> None:
    """Keys of 2 MB in all need not fit its maxResultSize."""
    compacting.create("long")
    for n in range(20):
        compacting.send("long", 0, *(f"{n}-{row} ".ljust(1000, "k") for row in range(100)))
    compacting.send("long", 0, "short", "short")
    conf = spark.sparkContext._jsc.sc().conf()
    setting = "spark.driver.maxResultSize"
    before = conf.get(setting, "1g")
    try:
        conf.set(setting, "100k")
        result = compacted(compacting, topics=("long",), runner=RunnerName.SPARK, dry_run=True)
    finally:
        conf.set(setting, before)

    long = result["topics"]["long"]
    assert [long[name] for name in ("keys", "messages", "mayGo")] == [2001, 2002, 1]
