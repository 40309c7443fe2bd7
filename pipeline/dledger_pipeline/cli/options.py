"""The options that commands of ``dledger-pipeline`` share, and what a job is given of each."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from dledger_pipeline.archive.expiry import Retention
from dledger_pipeline.cli.values import group_id, items, port, positive, rate, setting, size_mib
from dledger_pipeline.jobs.result import Result
from dledger_pipeline.jobs.runner import THRESHOLD_BYTES, RunnerName
from dledger_pipeline.object_store.store import Store
from dledger_pipeline.spark.master import LOCAL

_RATE_MB_S: Final = 20.0


class Command(NamedTuple):
    """A subcommand of ``dledger-pipeline``."""

    name: str
    help_text: str
    run: Callable[[argparse.Namespace], Result]
    add_arguments: Callable[[argparse.ArgumentParser], None] | None = None
    """Declares the options that it has beside the common ones."""
    needs_store: bool = True


def add_common_arguments(parser: argparse.ArgumentParser, *, needs_store: bool = True) -> None:
    """Declare the options that every command has."""
    parser.add_argument("--store", required=needs_store, metavar="URL", help="where backups are")
    parser.add_argument("--store-endpoint", metavar="URL", help="an S3 server other than Amazon's")
    parser.add_argument(
        "--allow-http", action="store_true", help="allow http://, which is not encrypted"
    )
    parser.add_argument(
        "--group-id", type=group_id, metavar="ID", help="needed if a store has several groups"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON line")
    parser.add_argument(
        "--metrics-port",
        type=port,
        default=0,
        metavar="PORT",
        help="serve /metrics on this port while it runs; 0: do not (0)",
    )
    parser.add_argument(
        "--result-file",
        type=Path,
        metavar="FILE",
        help="write the result, or the error, as JSON, in brief: of topics only the names",
    )


def open_store(args: argparse.Namespace) -> Store:
    """Return the store of backups."""
    return Store.open(args.store, args.store_endpoint, allow_http=args.allow_http)


def add_manifest(parser: argparse.ArgumentParser) -> None:
    """Declare which backup is meant, the newest without it."""
    parser.add_argument(
        "--manifest", type=positive, metavar="N", help="which backup, see `list` (the newest)"
    )


def add_endpoint(parser: argparse.ArgumentParser) -> None:
    """Declare the nodes to read."""
    parser.add_argument(
        "--endpoint",
        required=True,
        type=items,
        metavar="HOST:PORT,...",
        help="peer ports (20911) of the group's nodes; a follower is preferred for reading",
    )


def add_rate(parser: argparse.ArgumentParser) -> None:
    """Declare how fast nodes are read."""
    parser.add_argument(
        "--rate",
        type=rate,
        default=_RATE_MB_S,
        metavar="MB_PER_S",
        help="how fast nodes are read by all workers together, in 10^6 bytes a second, so that "
        f"clients do not wait; 0: no limit ({_RATE_MB_S:g})",
    )


def add_retention(parser: argparse.ArgumentParser) -> None:
    """Declare what of a store may be deleted."""
    parser.add_argument(
        "--keep-days",
        type=positive,
        default=0,
        metavar="DAYS",
        help="how far back a restore must be possible (default: to the first backup)",
    )
    parser.add_argument(
        "--keep-last",
        type=positive,
        default=0,
        metavar="N",
        help="how many of the newest backups must stay, however old",
    )
    parser.add_argument(
        "--drop-copies",
        action="store_true",
        help="keep all times, and delete manifests and objects that newer ones stand for",
    )


def retention_of(args: argparse.Namespace) -> Retention:
    """Return what of a store may be deleted."""
    return Retention(
        keep_days=args.keep_days, keep_last=args.keep_last, drop_copies=args.drop_copies
    )


def add_runner(parser: argparse.ArgumentParser) -> None:
    """Declare who does the work."""
    parser.add_argument(
        "--runner",
        choices=[str(name) for name in RunnerName],
        default=str(RunnerName.AUTO),
        help="who does the work: spark, plain (processes of this machine, without Spark and Java), "
        "or auto: plain below the threshold, unless --master is a cluster (auto)",
    )
    threshold_mib = THRESHOLD_BYTES >> 20
    parser.add_argument(
        "--local-threshold-mib",
        type=size_mib,
        default=threshold_mib,
        metavar="MIB",
        help=f"with fewer records than this to read, auto is plain; 0: never ({threshold_mib})",
    )


def runner_fields(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a request that say who does the work."""
    return {
        "runner": RunnerName(args.runner),
        "local_threshold_bytes": args.local_threshold_mib << 20,
    }


def add_spark_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare Spark's settings."""
    parser.add_argument("--master", default=LOCAL, metavar="URL", help=f"of Spark ({LOCAL})")
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        type=setting,
        metavar="KEY=VALUE",
        help="a Spark setting; may be given again",
    )


def spark_fields(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a `SparkRequest`."""
    return {
        "group_id": args.group_id,
        "master": args.master,
        "conf": dict(args.conf),
    }
