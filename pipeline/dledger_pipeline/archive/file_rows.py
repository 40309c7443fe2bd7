"""The rows of a manifest's files as JSON, and back, each field checked. Pure. Used by `catalog`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from itertools import chain, pairwise
from typing import Any, Final

from dledger_pipeline.archive.archive import ManifestRow, object_name
from dledger_pipeline.archive.erasures import ErasuresRow, erasures_name
from dledger_pipeline.archive.hashed_json import MAX_NUMBER, row_of
from dledger_pipeline.archive.places import MAX_SPANS, PlacesRow, QueueSpan, places_name
from dledger_pipeline.errors import CorruptManifest

_MAX_CRC: Final = (1 << 32) - 1
_OF_FILE: Final = tuple(field.name for field in fields(ManifestRow))
_OF_PLACES: Final = tuple(field.name for field in fields(PlacesRow))
_OF_ERASURES: Final = tuple(field.name for field in fields(ErasuresRow))


def encode_rows(files: Sequence[ManifestRow]) -> bytes:
    """Return *files* as JSON; the same rows give the same bytes. A span is a list of numbers."""
    rows = [file_fields(row) for row in files]
    return json.dumps(rows, sort_keys=True, separators=(",", ":")).encode()


def file_fields(row: ManifestRow) -> dict[str, Any]:
    """Return the fields of a row, with those of its places and its erasures, for JSON."""
    found = {name: getattr(row, name) for name in _OF_FILE}
    if row.places is not None:
        found["places"] = {name: getattr(row.places, name) for name in _OF_PLACES}
    if row.erasures is not None:
        found["erasures"] = {name: getattr(row.erasures, name) for name in _OF_ERASURES}
    return found


def file_row(name: str, content: Any) -> ManifestRow:
    """Return the row that `file_fields` described.

    Raises:
        CorruptManifest: *name* has something else there.
    """
    _check_fields(name, content, _OF_FILE)
    places, erasures = _places(name, content["places"]), _erasures(name, content["erasures"])
    row = row_of(ManifestRow, name, content, places=places, erasures=erasures)
    if row.name != object_name(row.first_index, row.last_index, row.sha256):
        raise CorruptManifest(name, f"{row.name!r:.200} does not have the name of its contents")
    crc = max(row.first_chain, row.last_chain)
    if not 1 <= row.first_index <= row.last_index or crc > _MAX_CRC or not row.object_bytes:
        raise CorruptManifest(name, f"{row.name} states numbers that no log has")
    if places and places.name != places_name(row.first_index, row.last_index, places.sha256):
        raise CorruptManifest(name, f"{places.name!r:.200} is not the name of the places of a file")
    if erasures and erasures.name != erasures_name(
        row.first_index, row.last_index, erasures.sha256
    ):
        raise CorruptManifest(name, f"{erasures.name!r:.200} is not the name of a file's erasures")
    return row


def _places(name: str, content: Any) -> PlacesRow | None:
    if content is None:
        return None
    _check_fields(name, content, _OF_PLACES)
    row = row_of(PlacesRow, name, content, spans=spans_from(name, content["spans"]))
    if not row.object_bytes or (row.spans is not None and bool(row.spans) != bool(row.rows)):
        raise CorruptManifest(name, f"{row.name:.200} states places that no file has")
    return row


def _erasures(name: str, content: Any) -> ErasuresRow | None:
    if content is None:
        return None
    _check_fields(name, content, _OF_ERASURES)
    row = row_of(ErasuresRow, name, content)
    if not row.object_bytes or not row.rows:
        raise CorruptManifest(name, f"{row.name:.200} states erasures that no file has")
    return row


def spans_from(name: str, content: Any) -> tuple[QueueSpan, ...] | None:
    """Return the spans out of their lists of numbers; None for null. Raises CorruptManifest."""
    if content is None:
        return None
    if not (
        isinstance(content, list)
        and len(content) <= MAX_SPANS
        and all(isinstance(each, list) and len(each) == len(QueueSpan._fields) for each in content)
        and all(type(n) is int and 0 <= n <= MAX_NUMBER for n in chain.from_iterable(content))
    ):
        raise CorruptManifest(name, f"spans are {content!r:.80}")
    spans = tuple(QueueSpan(*each) for each in content)
    if not (
        all(one.generation and one.first_queue <= one.last_queue for one in spans)
        and all(one.first_offset < one.end_offset for one in spans)
        and all(one[:2] < other[:2] for one, other in pairwise(spans))
    ):
        raise CorruptManifest(name, f"spans that no queues have: {content!r:.80}")
    return spans


def _check_fields(name: str, content: Any, names: Sequence[str]) -> None:
    if not isinstance(content, dict) or content.keys() != {*names}:
        raise CorruptManifest(name, f"not the fields of a file: {content!r:.200}")
