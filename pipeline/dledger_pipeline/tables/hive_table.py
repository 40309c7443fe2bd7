"""A folder of Parquet files by topic and day, for everything that reads Parquet.

::

    <to>/topic=<name>/date=<day>/<first>-<last>-<nth>-<hash>.parquet
    <to>/_dledger/<number>.begun.json   export <number> adds the messages of that backup
    <to>/_dledger/<number>.json         it is done: its files, and its last entry

Who reads such a folder by a wildcard sees each file as it comes. So that none is there twice, an
export says first what it adds (create-only), and whoever comes next does just that, with the same
names, before anything newer: a backup does not change. Used by the job `export`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Final

from dledger_pipeline.archive.hashed_json import decode_hashed, encode_hashed, field
from dledger_pipeline.errors import AlreadyExists, VersionConflict
from dledger_pipeline.object_store.store import Store
from dledger_pipeline.tables.files import Layout, TableFile
from dledger_pipeline.tables.table import Begun, Owner

_FOLDER: Final = "_dledger"
_DONE: Final = re.compile(rf"{_FOLDER}/(\d{{10}})\.json")
_FIRST_OF: Final = re.compile(r"topic=[^/]+/date=[^/]+/(\d{20})-\d{20}-\d{4}-[0-9a-f]{16}\.parquet")
_MAX_BYTES: Final = 512 << 20
"""Of JSON: 130 bytes for each file of one export."""


class HiveTable:
    """See the module; an object is for one export."""

    layout: Final = Layout(has_folders=True, has_partitions=False)

    def __init__(self, store: Store, owner: Owner) -> None:
        """Open the folder that is *store*. Raises InvalidArgument, StoreError, CorruptManifest."""
        self._store, self._owner = store, owner
        done = (_DONE.fullmatch(name) for name in store.list(_FOLDER))
        newest = max((int(match[1]) for match in done if match), default=0)
        self._number = newest + 1
        self._resumed: Begun | None = None
        self.last_index = 0
        if newest:
            name = _done_name(newest)
            content = self._read(name)
            self.last_index = int(field(name, content, "last_index", int))

    def begin(self, wanted: Begun) -> Begun:
        """Return what was begun, or begin *wanted*."""
        name = f"{_FOLDER}/{self._number:010}.begun.json"
        try:
            self._store.create(
                name, encode_hashed({"owner": self._owner.as_text(), **asdict(wanted)})
            )
        except AlreadyExists:
            content = self._read(name)
            numbers = {each.name: field(name, content, each.name, int) for each in fields(Begun)}
            self._resumed = Begun(**numbers)
            return self._resumed
        return wanted

    def commit(self, files: Sequence[TableFile], last_index: int) -> None:
        """Write that the export is done, which nobody else may have said otherwise."""
        names = {file.name for file in files}
        if self._resumed is not None:
            self._remove_left(self._resumed, names)
        name = _done_name(self._number)
        content = {
            "owner": self._owner.as_text(),
            "last_index": last_index,
            "files": sorted(names),
        }
        try:
            self._store.create(name, encode_hashed(content))
        except AlreadyExists as error:
            counted = {*field(name, self._read(name), "files", list)}
            if counted != names:
                for unwanted in names - counted:
                    self._store.delete(unwanted)
                raise VersionConflict(name) from error
        self._number, self.last_index, self._resumed = self._number + 1, last_index, None

    def give_up(self) -> None:
        """Write that the export is done and added nothing, and remove its files."""
        self.commit((), self.last_index)

    def _remove_left(self, begun: Begun, names: Collection[str]) -> None:
        """Remove files that a killed run wrote and this one did not, being of another version."""
        for listed in [*self._store.listed()]:
            match = _FIRST_OF.fullmatch(listed.name)
            is_of_this = match and self.last_index < int(match[1]) <= begun.last_index
            if is_of_this and listed.name not in names:
                self._store.delete(listed.name)

    def _read(self, name: str) -> Mapping[str, Any]:
        content = decode_hashed(name, self._store.get(name, max_bytes=_MAX_BYTES))
        self._owner.check_is(field(name, content, "owner", str), self._store.url)
        return content


def _done_name(number: int) -> str:
    return f"{_FOLDER}/{number:010}.json"
