"""The commands of ``dledger-pipeline`` that need no more than a store of backups.

They restore and verify a backup, list what a store has, and keep it in order; without Spark, and
without the group.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from dledger.errors import InvalidArgument
from dledger_pipeline.cli.options import (
    Command,
    add_manifest,
    add_retention,
    open_store,
    retention_of,
)
from dledger_pipeline.cli.values import instant_ms, positive
from dledger_pipeline.jobs.result import Result, count, size
from dledger_pipeline.jobs.without_spark import (
    gc,
    list_backups,
    list_erasures,
    list_objects,
    repair,
    restore,
    sign,
    verify,
)


def _add_restore(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", required=True, type=Path, metavar="DIR", help="an empty or missing directory"
    )
    parser.add_argument(
        "--name", required=True, metavar="GROUP/POD", help="name of the node that will have it"
    )
    add_manifest(parser)
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--to-index", type=positive, metavar="N", help="the last entry to restore")
    target.add_argument(
        "--to-time", type=instant_ms, metavar="RFC3339", help="nothing later, 2026-01-31T12:00:00Z"
    )


def _restore(args: argparse.Namespace) -> Result:
    return restore(
        open_store(args),
        args.group_id,
        args.progress,
        directory=args.data,
        name=args.name,
        number=args.manifest,
        to_index=args.to_index,
        to_time_ms=args.to_time,
    )


def _add_verify(parser: argparse.ArgumentParser) -> None:
    add_manifest(parser)
    parser.add_argument(
        "--deep", action="store_true", help="restore it, too, and compare all bytes"
    )
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="where --deep restores to")


def _verify(args: argparse.Namespace) -> Result:
    return verify(
        open_store(args),
        args.group_id,
        args.progress,
        number=args.manifest,
        deep=args.deep,
        scratch=args.scratch,
    )


def _sign(args: argparse.Namespace) -> Result:
    return sign(open_store(args), args.group_id, args.progress)


def _add_list(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--last",
        type=positive,
        default=0,
        metavar="N",
        help="only the newest N of each group (default: all, of each of which a manifest is read)",
    )
    which.add_argument(
        "--objects",
        action="store_true",
        help="list the objects that one backup needs, the newest or --manifest, instead",
    )
    add_manifest(parser)


def _list(args: argparse.Namespace) -> Result:
    if args.manifest and not args.objects:
        raise InvalidArgument("--manifest says of which backup --objects are listed")
    if args.objects:
        objects = list_objects(open_store(args), args.group_id, args.manifest)
        if not args.json:
            print(*objects, sep="\n")
        return {"objects": objects} if args.json else {"count": len(objects)}
    backups = list_backups(open_store(args), args.group_id, last=args.last)
    if args.json:
        return {"backups": [*backups]}
    found = 0
    for each in backups:
        print(_backup_line(each))
        found += 1
    return {"count": found}


def _backup_line(backup: Result) -> str:
    start = f"{backup['groupId']}  {backup['number']:>6}"
    if "error" in backup:
        return f"{start}  {backup['error']}"
    ranges = ", ".join(f"[{first}, {last}]" for first, last in backup["restorable"])  # type: ignore[attr-defined]
    size_told = size(int(str(backup["objectBytes"])))
    return f"{start}  {backup['asOf']}  restores to {ranges}  {size_told}"


def _add_erasures(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep-days",
        type=positive,
        default=0,
        metavar="DAYS",
        help="what gc, or backup, is run with (default: all times are kept, so nothing goes)",
    )


def _erasures(args: argparse.Namespace) -> Result:
    found = list_erasures(open_store(args), args.group_id, keep_days=args.keep_days)
    if args.json:
        return found
    erasures: Any = found["erasures"]
    for each in erasures:
        gone = f"gone from {each['gone']} on" if each["gone"] else "kept for now"
        print(
            f"entry {each['entry']}  {each['at']}  {each['topic'] or '-'}  "
            f"{count(each['messages'], 'message')}, bytes in up to "
            f"{count(each['objects'], 'object')}, {gone}"
        )
    return {"count": len(erasures)}


def _add_gc(parser: argparse.ArgumentParser) -> None:
    add_retention(parser)
    parser.add_argument("--dry-run", action="store_true", help="only say what would go")


def _gc(args: argparse.Namespace) -> Result:
    return gc(
        open_store(args), args.group_id, args.progress, retention_of(args), dry_run=args.dry_run
    )


def _repair(args: argparse.Namespace) -> Result:
    return repair(open_store(args), args.group_id, args.progress)


COMMANDS: Final = (
    Command("restore", "write a node's data directory from a backup", _restore, _add_restore),
    Command("verify", "verify that a backup is complete and undamaged", _verify, _add_verify),
    Command("sign", "sign the newest backup with the key for manifests", _sign),
    Command("list", "list the backups of a store", _list, _add_list),
    Command(
        "erasures",
        "list what was erased, and until when its bytes are kept",
        _erasures,
        _add_erasures,
    ),
    Command("gc", "delete expired backups and what killed runs left", _gc, _add_gc),
    Command("repair", "make a manifest of the objects that are there", _repair),
)
