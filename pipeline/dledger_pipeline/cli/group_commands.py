"""``dledger-pipeline backup``, ``compact`` and ``erase``: what reads the log of running nodes.

A key to erase is on the command line and in calls to the leader, and in nothing that is printed.
"""

from __future__ import annotations

import argparse
from typing import Final

from dledger_pipeline.cli.options import (
    Command,
    add_endpoint,
    add_rate,
    add_retention,
    add_runner,
    add_spark_arguments,
    open_store,
    retention_of,
    runner_fields,
    spark_fields,
)
from dledger_pipeline.cli.values import duration_ms, items, positive
from dledger_pipeline.jobs.backup import BASE_EVERY_HOURS, BackupRequest, backup
from dledger_pipeline.jobs.compact import CompactRequest, compact
from dledger_pipeline.jobs.erase import EraseRequest, erase
from dledger_pipeline.jobs.result import Result


def _add_backup(parser: argparse.ArgumentParser) -> None:
    add_endpoint(parser)
    parser.add_argument(
        "--last-index", type=positive, default=0, metavar="N", help="the last entry (default: all)"
    )
    parser.add_argument(
        "--target-mib", type=positive, default=64, metavar="MIB", help="size of a range (64)"
    )
    parser.add_argument(
        "--base-every",
        type=positive,
        default=BASE_EVERY_HOURS,
        metavar="HOURS",
        help=f"how old the newest snapshot of the state may become ({BASE_EVERY_HOURS:g})",
    )
    add_retention(parser)
    add_runner(parser)
    add_rate(parser)
    add_spark_arguments(parser)


def _backup(args: argparse.Namespace) -> Result:
    request = BackupRequest(
        endpoints=args.endpoint,
        last_index=args.last_index,
        target_bytes=args.target_mib << 20,
        base_every_hours=args.base_every,
        retention=retention_of(args),
        bytes_per_s=args.rate * 1e6,
        store=open_store(args),
        **runner_fields(args),
        **spark_fields(args),
    )
    return backup(request, args.progress)


def _add_compact(parser: argparse.ArgumentParser) -> None:
    add_endpoint(parser)
    parser.add_argument(
        "--topics",
        type=items,
        default=(),
        metavar="A,B",
        help="the topics to compact (all that are compacted)",
    )
    parser.add_argument(
        "--again-in",
        type=duration_ms,
        default=0,
        metavar="TIME",
        help="when it will be run next, such as 24h: what retention drops until then is copied "
        "now, without what may go (default: nobody knows, nothing is copied ahead)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only say what may go; the group is not told"
    )
    add_runner(parser)
    add_rate(parser)
    add_spark_arguments(parser)


def _compact(args: argparse.Namespace) -> Result:
    request = CompactRequest(
        endpoints=args.endpoint,
        store=open_store(args) if args.store else None,
        topics=args.topics,
        again_in_ms=args.again_in,
        dry_run=args.dry_run,
        bytes_per_s=args.rate * 1e6,
        **runner_fields(args),
        **spark_fields(args),
    )
    return compact(request, args.progress)


def _add_erase(parser: argparse.ArgumentParser) -> None:
    add_endpoint(parser)
    parser.add_argument("--topic", required=True, metavar="NAME", help="a compacted topic")
    parser.add_argument("--key", required=True, help="exactly this key")
    parser.add_argument(
        "--dry-run", action="store_true", help="only say how many there are; nothing is erased"
    )
    add_runner(parser)
    add_rate(parser)
    add_spark_arguments(parser)


def _erase(args: argparse.Namespace) -> Result:
    request = EraseRequest(
        endpoints=args.endpoint,
        store=open_store(args),
        topic=args.topic,
        key=args.key,
        dry_run=args.dry_run,
        bytes_per_s=args.rate * 1e6,
        **runner_fields(args),
        **spark_fields(args),
    )
    return erase(request, args.progress)


BACKUP: Final = Command(
    "backup", "add what is new in a group's log to its backup", _backup, _add_backup
)
COMPACT: Final = Command(
    "compact",
    "let a group's compacted topics keep only the newest message of each key",
    _compact,
    _add_compact,
    needs_store=False,
)
ERASE: Final = Command(
    "erase",
    "erase all messages that a key ever had, also those that only backups have",
    _erase,
    _add_erase,
)
