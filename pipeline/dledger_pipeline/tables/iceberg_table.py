"""A table of Apache Iceberg, in a catalogue, written by PyIceberg (package ``pyiceberg``).

Files are written first; one transaction then adds them and sets the last entry, as a property of
its snapshot and of the table: a table that is rolled back goes on from the snapshot that it was
rolled back to, and one whose old snapshots are expired from the property. Used by the job `export`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import Table as Iceberg
from pyiceberg.table.snapshots import ancestors_of

from dledger.errors import InvalidArgument
from dledger_pipeline.errors import TableError, VersionConflict
from dledger_pipeline.object_store.store import Store
from dledger_pipeline.tables.columns import PARTITIONED_BY
from dledger_pipeline.tables.files import Layout, TableFile
from dledger_pipeline.tables.table import Begun, Owner

_OWNER: Final = "dledger.owner"
_LAST_INDEX: Final = "dledger.last-index"
_CATALOG_FILE: Final = "catalog.db"
_RETRIES: Final = "commit.retry.num-retries"


class IcebergTable:
    """See the module; an object is for one export."""

    layout: Final = Layout(has_folders=False, has_partitions=True)

    def __init__(
        self, store: Store, owner: Owner, schema: pa.Schema, *, catalog: str | None, name: str
    ) -> None:
        """Open the table, or make it.

        Args:
            store: The table's location, if it is made.
            owner: Of its rows.
            schema: Of its rows.
            catalog: One of PyIceberg's own configuration; None: a file at the location.
            name: With its namespace: ``lake.orders``.

        Raises:
            InvalidArgument: It is another's, elsewhere, or needs a catalogue.
            TableError: The catalogue failed.
        """
        self._name, self._root = name, _root(store)
        with _translate_errors(name):
            opened = _catalog(store, catalog)
            opened.create_namespace_if_not_exists(name.rpartition(".")[0])
            self._table = _open_or_make(opened, name, self._root, owner, schema)
        owner.check_is(self._table.properties.get(_OWNER), name)
        if self._table.location().rstrip("/") != self._root:
            raise InvalidArgument(
                f"table {name} is at {self._table.location()}, and --to says {self._root}"
            )
        self.last_index = _last_index(self._table)

    def begin(self, wanted: Begun) -> Begun:
        """Return *wanted*: what nobody committed is not in the table."""
        return wanted

    def commit(self, files: Sequence[TableFile], last_index: int) -> None:
        """Add the files by one snapshot of the table."""
        if files:
            # PyIceberg would add them once more behind what another run has added meanwhile.
            self._table.properties[_RETRIES] = "0"
            told = {_LAST_INDEX: str(last_index)}
            with _translate_errors(self._name), self._table.transaction() as transaction:
                transaction.set_properties(told)
                transaction.add_files([f"{self._root}/{file.name}" for file in files], told)
        self.last_index = last_index

    def give_up(self) -> None:
        """There is nothing to give up."""


def _root(store: Store) -> str:
    return store.url.rstrip("/") if store.directory is None else f"file://{store.directory}"


def _catalog(store: Store, name: str | None) -> Catalog:
    if name is not None:
        return load_catalog(name)
    directory = store.directory
    if directory is None:
        raise InvalidArgument(
            f"an Iceberg table in {store.url} needs a catalogue that others can ask, too: "
            "--catalog NAME, of PyIceberg's configuration (.pyiceberg.yaml, PYICEBERG_CATALOG__*)"
        )
    directory.mkdir(parents=True, exist_ok=True)
    return SqlCatalog(
        "dledger", uri=f"sqlite:///{directory / _CATALOG_FILE}", warehouse=f"file://{directory}"
    )


def _open_or_make(
    catalog: Catalog, name: str, location: str, owner: Owner, schema: pa.Schema
) -> Iceberg:
    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        pass
    with (
        catalog.create_table_transaction(
            name, schema, location, properties={_OWNER: owner.as_text()}
        ) as making,
        making.update_spec() as spec,
    ):
        for column in PARTITIONED_BY:
            spec.add_identity(column)
    return catalog.load_table(name)


def _last_index(table: Iceberg) -> int:
    for snapshot in ancestors_of(table.current_snapshot(), table.metadata):
        if snapshot.summary is not None and _LAST_INDEX in snapshot.summary.additional_properties:
            return int(snapshot.summary.additional_properties[_LAST_INDEX])
    return int(table.properties.get(_LAST_INDEX, 0))


@contextmanager
def _translate_errors(name: str) -> Iterator[None]:
    """Raise our errors for PyIceberg's, whose errors have no common base, nor its catalogues'."""
    try:
        yield
    except InvalidArgument:
        raise
    except CommitFailedException as error:
        raise VersionConflict(name) from error
    except Exception as error:
        raise TableError(f"Iceberg table {name}: {type(error).__name__}: {error}") from error
