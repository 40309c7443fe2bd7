"""Opens the table that an export adds to; imports the library of its format, if it needs one.

Called by the job `export`.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger.errors import InvalidArgument
from dledger_pipeline.object_store.store import Store
from dledger_pipeline.tables.columns import Columns
from dledger_pipeline.tables.hive_table import HiveTable
from dledger_pipeline.tables.table import Owner, Table, TableFormat

DEFAULT_NAME = "dledger.messages"
"""Of a table in a catalogue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where an export goes.

    Attributes:
        store: The table's root.
        catalog, name: Of Iceberg: see `iceberg_table`.
    """

    store: Store
    format: TableFormat
    catalog: str | None = None
    name: str = DEFAULT_NAME


def open_table(target: Target, owner: Owner, columns: Columns) -> Table:
    """Return the table, which is made unless it is there.

    Raises:
        InvalidArgument: It is of another group, other topics or columns, or it cannot be told where
            it is; or its library is not installed.
        TableError, StoreError: It cannot be opened.
    """
    if target.format is TableFormat.PARQUET:
        return HiveTable(target.store, owner)
    try:
        if target.format is TableFormat.DELTA:
            from dledger_pipeline.tables.delta_table import DeltaTable  # noqa: PLC0415, an extra

            return DeltaTable(target.store, owner, columns.schema())
        from dledger_pipeline.tables.iceberg_table import IcebergTable  # noqa: PLC0415, an extra
    except ImportError as error:
        raise InvalidArgument(
            f"--format {target.format} needs the package {error.name}: install dledger[export]"
        ) from error
    return IcebergTable(
        target.store, owner, columns.schema(), catalog=target.catalog, name=target.name
    )
