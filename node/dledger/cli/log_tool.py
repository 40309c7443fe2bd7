"""``dledger log verify|dump DIR``: reads a commit log offline, and changes nothing.

(``dledger log discard`` is in `discard_tool`.)

DIR is a node's data directory, or its ``log`` directory. The log may be in use: its tail above the
watermark may then be incomplete, and is reported as such, not as damage.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from dledger.errors import DledgerError
from dledger.files.files import Files, Mode, RealFiles
from dledger.server import discard_tool
from dledger.store.discards import Discard, load_discards
from dledger.store.format import decode_index
from dledger.store.identity import LOG_DIRECTORY, Identity, load_identity
from dledger.store.log_scan import LogScan, survey
from dledger.store.recovery import check
from dledger.store.segment import Segment, span
from dledger.store.segment_scan import to_index
from dledger.store.watermark import Watermark
from dledger.types import Entry, EntryKind

_CHUNK_BYTES = 4 << 20
_FAULTY = (
    "damaged entries: {}; their identities are known, so a running node repairs them from its peers"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``dledger log``."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    verify = actions.add_parser("verify", help="check every record and its CRCs")
    dump = actions.add_parser("dump", help="print one JSON line for each entry")
    discard = actions.add_parser("discard", help="in a group of one: discard damaged entries")
    discard_tool.add_arguments(discard)
    for action in (verify, dump):
        action.add_argument("directory", type=Path, metavar="DIR", help="a node's data directory")
    dump.add_argument("--first", type=int, default=1, metavar="INDEX", help="start at this entry")
    dump.add_argument("--last", type=int, metavar="INDEX", help="end at this entry")


def run(args: argparse.Namespace) -> int:
    """Run ``dledger log``.

    Returns 0, 1 if the log is damaged or unreadable, or 2 if the directory does not exist.
    """
    files = RealFiles()
    if not args.directory.is_dir():
        print(
            f"dledger log {args.action}: {args.directory}: no such directory; "
            "name the data directory of a node",
            file=sys.stderr,
        )
        return 2
    try:
        if args.action == "discard":
            return discard_tool.run(args)
        found = _survey(files, args.directory, full=args.action == "verify")
        if args.action == "verify":
            for line in _report(files, found):
                print(line)
            for act in load_discards(files, args.directory):
                print(_told(act))
        else:
            for line in _dump(files, found, args.first, args.last):
                print(line)
        check(found)
        for damage in found.damages:
            print(f"dledger log {args.action}: {damage}", file=sys.stderr)
        if found.damages:
            print(_FAULTY.format(len(found.faulty)), file=sys.stderr)
            return 1
    except (DledgerError, OSError) as error:
        print(f"dledger log {args.action}: {error}", file=sys.stderr)
        return 1
    return 0


def _survey(files: Files, directory: Path, *, full: bool) -> LogScan:
    inside = directory / LOG_DIRECTORY
    identity: Identity | None = None
    if files.list(inside):
        identity, directory = load_identity(files, directory), inside
    watermark = Watermark.open(files, directory, Mode.READ)
    rows = watermark.rows()
    watermark.close()
    return survey(files, directory, watermark.mark, identity, rows=rows, full=full)


def _report(files: Files, found: LogScan) -> Iterator[str]:
    for segment in found.segments:
        index = _index_state(files, segment, found)
        yield (
            f"{segment.name}: entries [{segment.first_index}, {segment.last_index}], "
            f"{segment.end} of {segment.capacity_bytes} bytes, index {index}"
        )
    if found.fault and found.last_index >= found.mark.index:
        yield (
            f"tail: {found.fault} ({found.fault_segment}, byte {found.fault_offset}); "
            "it was never synced; opening the log removes it"
        )
    first, mark = found.mark.first_index, found.mark
    yield (
        f"entries [{first}, {found.last_index}], synced up to {mark.index}, "
        f"last chain CRC {found.last_chain:#010x}"
    )


def _told(act: Discard) -> str:
    when = datetime.fromtimestamp(act.at_ms / 1000, UTC).isoformat(timespec="seconds")
    gone = ", ".join(each.strip() for each in act.lost) or "no message"
    return f"discarded on {when}, entries {[list(pair) for pair in act.damaged]} damaged: {gone}"


def _index_state(files: Files, segment: Segment, found: LogScan) -> str:
    """Describe the segment's index file; any state is harmless, because a node rebuilds it."""
    try:
        file = files.open(segment.index_path, Mode.READ)
    except FileNotFoundError:
        return "none (not sealed)" if segment is found.segments[-1] else "missing"
    try:
        with closing(file):
            index = decode_index(file.pread(file.size(), 0))
    except ValueError as error:
        return f"damaged: {error}"
    return "good" if index == to_index(segment, found.runs, found.memberships) else "stale"


def _dump(files: Files, found: LogScan, first: int, last: int | None) -> Iterator[str]:
    last = found.last_index if last is None else min(last, found.last_index)
    for segment in found.segments:
        start, stop = max(first, segment.first_index), min(last, segment.last_index)
        file = files.open(segment.path, Mode.READ)
        while start <= stop:
            fault = found.faulty.next(start)
            if fault == start:
                yield _line_of_faulty(start, segment, found)
                start += 1
                continue
            end = stop if fault is None else min(stop, fault - 1)
            records = span(segment, start, end, _CHUNK_BYTES)
            for entry in records.read(file):
                yield _line(entry, segment)
            start += len(records.offsets) - 1
        file.close()


def _line(entry: Entry, segment: Segment) -> str:
    fields: dict[str, object] = {
        "index": entry.index,
        "term": entry.term,
        "kind": entry.kind.name,
        "timestampMs": entry.timestamp_ms,
        "sizeBytes": entry.size_bytes,
        "crc32c": f"{entry.crc32c:08x}",
        "chain": f"{segment.chain(entry.index):08x}",
        "segment": segment.name,
        "position": segment.position(entry.index),
    }
    if entry.kind is EntryKind.MEMBERSHIP:
        fields["membership"] = json.loads(entry.data)
    return json.dumps(fields)


def _line_of_faulty(index: int, segment: Segment, found: LogScan) -> str:
    """Return what is known about an entry whose record is damaged."""
    fields = {
        "index": index,
        "term": found.runs.term(index),
        "chain": f"{segment.chain(index):08x}",
        "segment": segment.name,
        "position": segment.position(index),
        "faulty": True,
    }
    return json.dumps(fields)
