"""What the formats of tables have in common: to whom a table belongs, and how files get into it.

A table is its own state: what it names and the last entry of which it has messages change together,
in one commit, which nobody else can make from the same state. So a run that was killed anywhere
added all of its files or none, and two runs at once add them once. Implemented by `hive_table`,
`delta_table` and `iceberg_table`; called by the job `export`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Protocol

from dledger.errors import InvalidArgument
from dledger_pipeline.tables.files import Layout, TableFile


class TableFormat(StrEnum):
    """What users ask for."""

    PARQUET = "parquet"
    ICEBERG = "iceberg"
    DELTA = "delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """What a table's rows are of; it has one for all its life, or an entry would not say enough.

    Attributes:
        topics: Their names, sorted; none: all.
        columns: `Columns.digest`.
    """

    group_id: str
    topics: tuple[str, ...]
    columns: str

    def as_text(self) -> str:
        """Return it as JSON, the same each time."""
        return json.dumps(asdict(self), sort_keys=True)

    def check_is(self, found: str | None, where: str) -> None:
        """Check that a table's owner is this one. Raises InvalidArgument."""
        if found != self.as_text():
            raise InvalidArgument(
                f"{where} is a table of {found or 'something else'}, and this would add "
                f"{self.as_text()}: export into a table of its own (--to)"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """What an export adds.

    Attributes:
        number: The backup whose messages they are.
        last_index: Its last entry.
        first_ms: When the first of them were stored; 0: any time.
    """

    number: int
    last_index: int
    first_ms: int


class Table(Protocol):
    """A table that messages are added to."""

    @property
    def layout(self) -> Layout:
        """How its files are to be written."""

    @property
    def last_index(self) -> int:
        """The last entry whose messages it has, or had when it was opened; 0: it has none."""

    def begin(self, wanted: Begun) -> Begun:
        """Return what is to be added next: *wanted*, or what a run that was killed had begun."""

    def commit(self, files: Sequence[TableFile], last_index: int) -> None:
        """Add the files; from now on the table has the messages up to *last_index*.

        Without files a table need not note that: it costs the next run to look again.

        Raises:
            VersionConflict: Another run added some meanwhile; nothing was added.
            TableError: The format's library failed.
            StoreError: The store failed.
        """

    def give_up(self) -> None:
        """Forget what was begun, whose backup is not there any more, and remove its files."""
