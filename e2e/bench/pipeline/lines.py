"""The table of all lines: what each is called, what is asked of it, and who measures it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from e2e.bench.pipeline import compacting, keeping, reading, restoring, writing
from e2e.bench.pipeline.measuring import Figure
from e2e.bench.pipeline.subject import Bench


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What is measured.

    Attributes:
        name: For ``--only``.
        what: The figure, in words, with its unit.
        measure: Takes it.
        least, most: What is asked of it, if something is.
    """

    name: str
    what: str
    measure: Callable[[Bench], Figure]
    least: float | None = None
    most: float | None = None

    @property
    def asked(self) -> str:
        """What is asked, in words."""
        if self.least is not None:
            return f">= {self.least:g}"
        return f"<= {self.most:g}" if self.most is not None else ""

    def kept(self, value: float) -> bool | None:
        """Whether a figure is what is asked; None if nothing is."""
        if self.least is not None:
            return value >= self.least
        return value <= self.most if self.most is not None else None


LINES: Final = (
    Line(
        name="archive",
        what="archive from memory / bare pyarrow, bytes per CPU second",
        measure=writing.archive,
        least=0.6,
    ),
    Line(
        name="backup",
        what="backup of a live node, its CPU counted / bare pyarrow, bytes per CPU second",
        measure=writing.live,
        least=0.35,
    ),
    Line(
        name="spark-writer",
        what="backup by Spark / Spark's own Parquet writer, MB/s by the clock",
        measure=writing.beside_spark,
        least=1.4,
    ),
    Line(
        name="restore-batched",
        what="restore to memory, batches of 256: GB per CPU second",
        measure=restoring.batched,
        least=0.5,
    ),
    Line(
        name="restore-singles",
        what="restore to memory, single messages: GB per CPU second",
        measure=restoring.singles,
        least=0.3,
    ),
    Line(
        name="restore-disk",
        what="restore to disk / the lower of memory x cores and the disk's synced rate",
        measure=restoring.to_disk,
        least=0.7,
    ),
    Line(
        name="size",
        what="size of the objects / zstd-1 of the raw segments",
        measure=writing.size,
        most=1.05,
    ),
    Line(
        name="restored-disk",
        what="restored disk / node's disk, behind retention",
        measure=restoring.disk_behind_retention,
        most=1.1,
    ),
    Line(
        name="store-constant",
        what="1,000 hourly backups, 7 days kept: objects and bytes of the last week / the second",
        measure=keeping.constant,
        most=1.05,
    ),
    Line(
        name="store-large",
        what="manifest and chunk that one more of 160,000 objects writes: MB",
        measure=keeping.large,
        most=1.0,
    ),
    Line(name="start", what="start of the command: CPU seconds", measure=writing.starting),
    Line(
        name="parse",
        what="records in memory to checked columns: GB per CPU second",
        measure=reading.parsed,
    ),
    Line(
        name="messages",
        what="a node's disk to messages: GB per CPU second",
        measure=reading.messages,
    ),
    Line(
        name="plan",
        what="planning a query of 1 TB (faked chunks): CPU seconds; its memory is among the parts",
        measure=reading.planning,
        most=10,
    ),
    Line(
        name="time-range",
        what="bytes read for a time with 1 % of the entries, of 64 objects: the largest of ten",
        measure=reading.time_range,
        most=0.03,
    ),
    Line(
        name="rare-topic",
        what="reading everything / reading a topic that few objects hold, CPU seconds",
        measure=reading.rare_topic,
        least=5,
    ),
    Line(
        name="compaction",
        what="Spark SQL's window function / what the job compact decides, seconds by the clock",
        measure=compacting.window_function,
        least=1.5,
    ),
    Line(
        name="new-plain",
        what="1 % new, plain: CPU seconds beyond the bytes' own",
        measure=writing.new_plain,
        most=1.5,
    ),
    Line(
        name="new-spark",
        what="1 % new, Spark: CPU seconds beyond the bytes' own",
        measure=writing.new_by_spark,
        most=30,
    ),
)
"""In the order in which they are measured: those that write to the log come last."""
