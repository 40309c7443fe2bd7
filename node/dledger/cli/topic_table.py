"""``dledger topic table``: prints a compacted topic as a table, and what changes in it."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import aclosing
from typing import Final

from dledger.cli.admin_options import add_admin_arguments, client_of, in_json
from dledger.client import StoredRecord, Table

_ABSENT: Final = 1
_CLIENT_PORT: Final = "any member's client port (8081)"
_EPILOG: Final = """\
examples:
  dledger topic table prices --endpoint 10.0.0.1:8081
  dledger topic table prices --endpoint 10.0.0.1:8081 --key EUR --json
  dledger topic table prices --endpoint 10.0.0.1:8081 --follow

Reads the whole topic and prints the newest message of each key, sorted: key, offset and body; with
--follow then what changes, until it is interrupted. With --json a line has one object; a body that
is no UTF-8 is in body_base64. Exits with 1 if there is no such --key.
"""


def add_table_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``dledger topic table``."""
    parser.add_argument("name")
    parser.add_argument("--key", metavar="KEY", help="print only this key")
    parser.add_argument("--follow", action="store_true", help="go on with what changes")
    add_admin_arguments(parser, _EPILOG, port=_CLIENT_PORT)


async def show_table(args: argparse.Namespace) -> int:
    """Print the table. Raises Unavailable if the node does not answer, and as `Table` does."""
    async with client_of(args, args.endpoint) as client:
        await client.topics()  # a table would wait for a node that is away
    table = Table(args.endpoint, args.name)
    await table.catch_up()
    there = [args.key] if args.key is not None else sorted(table)
    for key in there:
        if key in table:
            _print(args, key, table[key])
    if not args.follow:
        if args.key is not None and args.key not in table:
            print(f"dledger: topic {args.name} has no key {args.key!r}", file=sys.stderr)
            return _ABSENT
        return 0
    async with aclosing(table.changes()) as changes:
        async for change in changes:
            if args.key in {None, change.key}:
                _print(args, change.key, change.stored, deleted=change.deleted)
    return 0


def _print(
    args: argparse.Namespace, key: str, stored: StoredRecord, *, deleted: bool = False
) -> None:
    body = stored.record.body
    if not args.json:
        shown = "(deleted)" if deleted else body.decode(errors="backslashreplace")
        print(f"{key:32} {stored.offset:12} {shown}", flush=True)
        return
    view = {"key": key, "offset": stored.offset, "stored_at_ms": stored.stored_at_ms}
    print(json.dumps({**view, "deleted": deleted, **in_json(body)}), flush=True)
