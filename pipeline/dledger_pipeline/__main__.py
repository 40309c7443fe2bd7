"""The ``dledger-pipeline`` command: runs jobs, prints results, and turns errors into exit codes."""

from __future__ import annotations

import argparse
import json
import logging
import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

from dledger.common.memory import keep_blocks
from dledger.common.version import VERSION
from dledger.errors import DledgerError, InvalidArgument
from dledger_pipeline.archive.expiry import Retention
from dledger_pipeline.archive.manifest import time_ms
from dledger_pipeline.erase_command import HELP as ERASE_HELP
from dledger_pipeline.erase_command import add_erase_arguments, run_erase
from dledger_pipeline.errors import (
    NodeUnavailable,
    RangeNotAvailable,
    SparkFailed,
    StoreUnavailable,
    VersionConflict,
    WorkerFailed,
)
from dledger_pipeline.jobs.backup import BASE_EVERY_HOURS, BackupRequest, backup
from dledger_pipeline.jobs.compact import CompactRequest, compact
from dledger_pipeline.jobs.export import ExportRequest, export
from dledger_pipeline.jobs.progress import Progress, served
from dledger_pipeline.jobs.result import Result, count, in_brief, size
from dledger_pipeline.jobs.runner import THRESHOLD_BYTES, RunnerName
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
from dledger_pipeline.object_store.store import Store, is_folder
from dledger_pipeline.spark.master import LOCAL
from dledger_pipeline.tables.columns import Columns, columns_of
from dledger_pipeline.tables.opening import DEFAULT_NAME, Target
from dledger_pipeline.tables.table import TableFormat

_EXIT_OK: Final = 0
_EXIT_FAILED: Final = 1
_EXIT_TRY_AGAIN: Final = 4
_EXIT_SIGNAL: Final = 128  # and the signal's number, as shells count
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_RATE_MB_S: Final = 20.0
_MAY_PASS: Final = (
    *(NodeUnavailable, StoreUnavailable, SparkFailed, WorkerFailed),
    VersionConflict,  # with another backup of the group, which has ended by then
    RangeNotAvailable,  # at a follower that lags, while the others are down
)
"""What may go well the next time; the operator's Jobs are tried again for nothing else."""
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_MAX_MESSAGE: Final = 3000  # beside its type, of MOST_BYTES

_EPILOG: Final = """\
examples:
  dledger-pipeline backup --endpoint 127.0.0.1:18281,127.0.0.1:18282 --store file:///backups
  dledger-pipeline verify --store file:///backups --deep
  dledger-pipeline restore --store file:///backups --data ./restored --name orders/orders-0
  dledger-pipeline restore --store s3://bucket/dledger --store-endpoint https://s3.example.com \\
      --data ./restored --name orders/orders-0 --to-time 2026-01-31T12:00:00Z
  dledger-pipeline list --store file:///backups
  dledger-pipeline erase --endpoint 127.0.0.1:18281 --store file:///backups --topic prices \\
      --key user-17 --dry-run
  dledger-pipeline erasures --store file:///backups --keep-days 30
  dledger-pipeline gc --store file:///backups --keep-days 30 --dry-run
  dledger-pipeline compact --endpoint 127.0.0.1:18281,127.0.0.1:18282 --again-in 24h
  dledger-pipeline compact --endpoint 127.0.0.1:18281 --store file:///backups --topics prices \\
      --dry-run --json
  dledger-pipeline query --store file:///backups 'SELECT topic, count(*) FROM messages GROUP BY 1'
  dledger-pipeline export --store file:///backups --to file:///lake/messages
  dledger-pipeline export --store file:///backups --to s3://lake/orders --format delta \\
      --topics orders --schema orders.json

stores: file:///absolute/path, s3://bucket/path with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_REGION and DLEDGER_STORE_ENDPOINT from the environment; DLEDGER_MANIFEST_KEY (32 bytes or more)
signs manifests, and refuses those that it did not sign: run `sign` once to start using it
exit codes: 0 done, 1 failed (one line says why), 2 wrong usage, 4 it may help to try again: the
group, the store or Spark cannot be used now, or another backup was published meanwhile; 130 stopped
by Ctrl-C, 143 stopped by SIGTERM
"""


class Stopped(KeyboardInterrupt):
    """A signal asked for the end; as Ctrl-C is, it is nothing that a job handles."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(f"stopped by {number.name} before the work was done")
        self.number = number


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    args = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], Result] = args.run
    keep_blocks()
    try:
        with _stoppable(), served(args.progress, args.metrics_port):
            result = run(args)
    except Stopped as error:
        print(f"dledger-pipeline: {error}", file=sys.stderr)
        _tell(args, _failure(error))
        return _EXIT_SIGNAL + error.number
    except (DledgerError, OSError) as error:
        print(f"dledger-pipeline: {error}", file=sys.stderr)
        _tell(args, _failure(error))
        return _EXIT_TRY_AGAIN if isinstance(error, _MAY_PASS) else _EXIT_FAILED
    except BaseException as error:
        _write_result(args, _failure(error))
        raise
    _tell(args, result)
    return _EXIT_OK


@contextmanager
def _stoppable() -> Iterator[None]:
    """Raise `Stopped` in the block at SIGINT and SIGTERM; behind it neither disturbs any more.

    Ctrl-C reaches workers and the JVM, too, so their end may be noticed first, or a library may
    make an error of its own of `Stopped`: what fails once a signal has come was stopped by it.
    Only a main thread can; elsewhere signals are somebody else's.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    asked: list[signal.Signals] = []

    def stop(number: int, _: object) -> NoReturn:
        asked.append(signal.Signals(number))
        logging.disable()  # what is cut off says so, Spark's connections with tracebacks
        raise Stopped(signal.Signals(number))

    after = {each: signal.signal(each, stop) for each in _SIGNALS}
    try:
        yield
    except KeyboardInterrupt as error:
        after = dict.fromkeys(_SIGNALS, signal.SIG_IGN)
        if isinstance(error, Stopped):
            raise
        raise Stopped(signal.SIGINT) from error  # by the handler that Spark has while it starts
    except Exception as error:
        if asked:
            raise Stopped(asked[0]) from error
        raise
    finally:
        for each, handler in after.items():
            signal.signal(each, handler)


def _failure(error: BaseException) -> Result:
    return {"error": {"type": type(error).__name__, "message": str(error)[:_MAX_MESSAGE]}}


def _tell(args: argparse.Namespace, result: Result) -> None:
    """Print the result and keep it in the result file."""
    _write_result(args, result)
    if not args.shows_result and "error" not in result:
        return  # it has printed what was asked for
    if args.json:
        print(json.dumps(result))
    elif "error" not in result:
        for name, value in result.items():
            print(f"{name:16} {_in_words(value)}")


def _in_words(value: object) -> object:
    if isinstance(value, dict):
        return json.dumps(value)
    return ", ".join(value) if isinstance(value, list) else value


def _write_result(args: argparse.Namespace, result: Result) -> None:
    if args.result_file:
        args.result_file.write_text(json.dumps(in_brief(result)), "utf-8")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dledger-pipeline",
        description="Back up, verify and restore a broker group's log, and compact its topics.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"dledger-pipeline {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_backup(commands)
    _add_restore(commands)
    _add_verify(commands)
    _command(commands, "sign", "sign the newest backup with the key for manifests", _sign)
    _add_list(commands)
    _add_erase(commands)
    _add_erasures(commands)
    _add_gc(commands)
    _command(commands, "repair", "make a manifest of the objects that are there", _repair)
    _add_compact(commands)
    _add_query(commands)
    _add_export(commands)
    return parser


def _command(
    commands: Any,
    name: str,
    help_text: str,
    run: Callable[[argparse.Namespace], Result],
    *,
    needs_store: bool = True,
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help_text,
        description=f"{help_text[0].upper()}{help_text[1:]}.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, shows_result=True, progress=Progress(name, _say))
    parser.add_argument("--store", required=needs_store, metavar="URL", help="where backups are")
    parser.add_argument("--store-endpoint", metavar="URL", help="an S3 server other than Amazon's")
    parser.add_argument(
        "--allow-http", action="store_true", help="allow http://, which is not encrypted"
    )
    parser.add_argument(
        "--group-id", type=_group_id, metavar="ID", help="needed if a store has several groups"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON line")
    parser.add_argument(
        "--metrics-port",
        type=_port,
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
    return parser


def _add_number(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--manifest", type=_positive, metavar="N", help="which backup, see `list` (the newest)"
    )


def _add_spark_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--master", default=LOCAL, metavar="URL", help=f"of Spark ({LOCAL})")
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        type=_setting,
        metavar="KEY=VALUE",
        help="a Spark setting; may be given again",
    )


def _add_runner(parser: argparse.ArgumentParser) -> None:
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
        type=_size_mib,
        default=threshold_mib,
        metavar="MIB",
        help=f"with fewer records than this to read, auto is plain; 0: never ({threshold_mib})",
    )


def _add_endpoint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--endpoint",
        required=True,
        type=_items,
        metavar="HOST:PORT,...",
        help="peer ports (20911) of the group's nodes; a follower is preferred for reading",
    )


def _add_rate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rate",
        type=_rate,
        default=_RATE_MB_S,
        metavar="MB_PER_S",
        help="how fast nodes are read by all workers together, in 10^6 bytes a second, so that "
        f"clients do not wait; 0: no limit ({_RATE_MB_S:g})",
    )


def _runner(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "runner": RunnerName(args.runner),
        "local_threshold_bytes": args.local_threshold_mib << 20,
    }


def _add_backup(commands: Any) -> None:
    parser = _command(commands, "backup", "add what is new in a group's log to its backup", _backup)
    _add_endpoint(parser)
    parser.add_argument(
        "--last-index", type=_positive, default=0, metavar="N", help="the last entry (default: all)"
    )
    parser.add_argument(
        "--target-mib", type=_positive, default=64, metavar="MIB", help="size of a range (64)"
    )
    parser.add_argument(
        "--base-every",
        type=_positive,
        default=BASE_EVERY_HOURS,
        metavar="HOURS",
        help=f"how old the newest snapshot of the state may become ({BASE_EVERY_HOURS:g})",
    )
    _add_retention(parser)
    _add_runner(parser)
    _add_rate(parser)
    _add_spark_arguments(parser)


def _backup(args: argparse.Namespace) -> Result:
    request = BackupRequest(
        endpoints=args.endpoint,
        last_index=args.last_index,
        target_bytes=args.target_mib << 20,
        base_every_hours=args.base_every,
        retention=_retention(args),
        bytes_per_s=args.rate * 1e6,
        store=_store(args),
        **_runner(args),
        **_spark_request(args),
    )
    return backup(request, args.progress)


def _add_restore(commands: Any) -> None:
    parser = _command(commands, "restore", "write a node's data directory from a backup", _restore)
    parser.add_argument(
        "--data", required=True, type=Path, metavar="DIR", help="an empty or missing directory"
    )
    parser.add_argument(
        "--name", required=True, metavar="GROUP/POD", help="name of the node that will have it"
    )
    _add_number(parser)
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--to-index", type=_positive, metavar="N", help="the last entry to restore")
    target.add_argument(
        "--to-time", type=_time_ms, metavar="RFC3339", help="nothing later, 2026-01-31T12:00:00Z"
    )


def _restore(args: argparse.Namespace) -> Result:
    return restore(
        _store(args),
        args.group_id,
        args.progress,
        directory=args.data,
        name=args.name,
        number=args.manifest,
        to_index=args.to_index,
        to_time_ms=args.to_time,
    )


def _add_verify(commands: Any) -> None:
    parser = _command(commands, "verify", "verify that a backup is complete and undamaged", _verify)
    _add_number(parser)
    parser.add_argument(
        "--deep", action="store_true", help="restore it, too, and compare all bytes"
    )
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="where --deep restores to")


def _verify(args: argparse.Namespace) -> Result:
    return verify(
        _store(args),
        args.group_id,
        args.progress,
        number=args.manifest,
        deep=args.deep,
        scratch=args.scratch,
    )


def _add_list(commands: Any) -> None:
    parser = _command(commands, "list", "list the backups of a store", _list)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--last",
        type=_positive,
        default=0,
        metavar="N",
        help="only the newest N of each group (default: all, of each of which a manifest is read)",
    )
    which.add_argument(
        "--objects",
        action="store_true",
        help="list the objects that one backup needs, the newest or --manifest, instead",
    )
    _add_number(parser)


def _list(args: argparse.Namespace) -> Result:
    if args.manifest and not args.objects:
        raise InvalidArgument("--manifest says of which backup --objects are listed")
    if args.objects:
        objects = list_objects(_store(args), args.group_id, args.manifest)
        if not args.json:
            print(*objects, sep="\n")
        return {"objects": objects} if args.json else {"count": len(objects)}
    backups = list_backups(_store(args), args.group_id, last=args.last)
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


def _add_retention(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep-days",
        type=_positive,
        default=0,
        metavar="DAYS",
        help="how far back a restore must be possible (default: to the first backup)",
    )
    parser.add_argument(
        "--keep-last",
        type=_positive,
        default=0,
        metavar="N",
        help="how many of the newest backups must stay, however old",
    )
    parser.add_argument(
        "--drop-copies",
        action="store_true",
        help="keep all times, and delete manifests and objects that newer ones stand for",
    )


def _retention(args: argparse.Namespace) -> Retention:
    return Retention(
        keep_days=args.keep_days, keep_last=args.keep_last, drop_copies=args.drop_copies
    )


def _add_erase(commands: Any) -> None:
    parser = _command(commands, "erase", ERASE_HELP, _erase)
    _add_endpoint(parser)
    add_erase_arguments(parser)
    _add_runner(parser)
    _add_rate(parser)
    _add_spark_arguments(parser)


def _erase(args: argparse.Namespace) -> Result:
    return run_erase(args, _store(args), **_runner(args), **_spark_request(args))


def _add_erasures(commands: Any) -> None:
    parser = _command(
        commands, "erasures", "list what was erased, and until when its bytes are kept", _erasures
    )
    parser.add_argument(
        "--keep-days",
        type=_positive,
        default=0,
        metavar="DAYS",
        help="what gc, or backup, is run with (default: all times are kept, so nothing goes)",
    )


def _erasures(args: argparse.Namespace) -> Result:
    found = list_erasures(_store(args), args.group_id, keep_days=args.keep_days)
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


def _add_gc(commands: Any) -> None:
    parser = _command(commands, "gc", "delete expired backups and what killed runs left", _gc)
    _add_retention(parser)
    parser.add_argument("--dry-run", action="store_true", help="only say what would go")


def _gc(args: argparse.Namespace) -> Result:
    return gc(_store(args), args.group_id, args.progress, _retention(args), dry_run=args.dry_run)


def _repair(args: argparse.Namespace) -> Result:
    return repair(_store(args), args.group_id, args.progress)


def _sign(args: argparse.Namespace) -> Result:
    return sign(_store(args), args.group_id, args.progress)


def _add_compact(commands: Any) -> None:
    help_text = "let a group's compacted topics keep only the newest message of each key"
    parser = _command(commands, "compact", help_text, _compact, needs_store=False)
    _add_endpoint(parser)
    parser.add_argument(
        "--topics",
        type=_items,
        default=(),
        metavar="A,B",
        help="the topics to compact (all that are compacted)",
    )
    parser.add_argument(
        "--again-in",
        type=_duration_ms,
        default=0,
        metavar="TIME",
        help="when it will be run next, such as 24h: what retention drops until then is copied "
        "now, without what may go (default: nobody knows, nothing is copied ahead)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only say what may go; the group is not told"
    )
    _add_runner(parser)
    _add_rate(parser)
    _add_spark_arguments(parser)


def _compact(args: argparse.Namespace) -> Result:
    request = CompactRequest(
        endpoints=args.endpoint,
        store=_store(args) if args.store else None,
        topics=args.topics,
        again_in_ms=args.again_in,
        dry_run=args.dry_run,
        bytes_per_s=args.rate * 1e6,
        **_runner(args),
        **_spark_request(args),
    )
    return compact(request, args.progress)


def _spark_request(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a `SparkRequest`."""
    return {
        "group_id": args.group_id,
        "master": args.master,
        "conf": dict(args.conf),
    }


def _add_query(commands: Any) -> None:
    help_text = "answer SQL about a backup, a line of JSON for each row"
    parser = _command(commands, "query", help_text, _query)
    parser.set_defaults(shows_result=False)
    parser.add_argument(
        "sql", metavar="SQL", help="about the tables `messages`, `entries` and `current`"
    )
    parser.add_argument(
        "--to-time",
        type=_time_ms,
        metavar="RFC3339",
        help="what table `current` had then, 2026-01-31T12:00:00Z; default: at the end",
    )
    _add_number(parser)
    _add_spark_arguments(parser)


def _query(args: argparse.Namespace) -> Result:
    from dledger_pipeline.jobs.query import (  # noqa: PLC0415, the others need no Spark
        QueryRequest,
        query,
    )

    request = QueryRequest(
        sql=args.sql,
        number=args.manifest,
        to_time_ms=args.to_time,
        allow_http=args.allow_http,
        store=_store(args),
        **_spark_request(args),
    )
    return query(request, print, args.progress)


def _add_export(commands: Any) -> None:
    help_text = "add the messages of a backup to a table that other engines read, each once"
    parser = _command(commands, "export", help_text, _export)
    parser.add_argument(
        "--to", required=True, metavar="URL", help="where the table is: file:///... or s3://..."
    )
    parser.add_argument(
        "--to-endpoint", metavar="URL", help="an S3 server for --to (default: --store-endpoint)"
    )
    parser.add_argument(
        "--format",
        choices=[str(each) for each in TableFormat],
        default=str(TableFormat.PARQUET),
        help="parquet: files in folders topic=.../date=...; iceberg and delta need dledger[export] "
        "(parquet)",
    )
    parser.add_argument(
        "--topics", type=_items, default=(), metavar="A,B", help="only these topics (default: all)"
    )
    parser.add_argument(
        "--since",
        type=_time_ms,
        default=0,
        metavar="RFC3339",
        help="of what is new only messages that were stored then or later; the others never come",
    )
    parser.add_argument(
        "--schema", type=Path, metavar="FILE", help="columns to make of JSON bodies"
    )
    parser.add_argument(
        "--no-body", action="store_true", help="leave out column body, such as beside --schema"
    )
    parser.add_argument(
        "--catalog",
        metavar="NAME",
        help="of PyIceberg's configuration (default: a file in the table's directory)",
    )
    parser.add_argument(
        "--table",
        type=_table_name,
        default=DEFAULT_NAME,
        metavar="NAMESPACE.NAME",
        help=f"of an Iceberg table in its catalogue ({DEFAULT_NAME})",
    )
    _add_runner(parser)
    _add_spark_arguments(parser)


def _export(args: argparse.Namespace) -> Result:
    target = Target(
        store=Store.open(
            args.to, args.to_endpoint or args.store_endpoint, allow_http=args.allow_http
        ),
        format=TableFormat(args.format),
        catalog=args.catalog,
        name=args.table,
    )
    request = ExportRequest(
        store=_store(args),
        target=target,
        topics=args.topics,
        columns=_columns(args),
        first_ms=args.since,
        **_runner(args),
        **_spark_request(args),
    )
    return export(request, args.progress)


def _columns(args: argparse.Namespace) -> Columns:
    if args.schema is None:
        return Columns(has_body=not args.no_body)
    text = args.schema.read_text("utf-8")
    return columns_of(str(args.schema), text, has_body=not args.no_body)


def _store(args: argparse.Namespace) -> Store:
    return Store.open(args.store, args.store_endpoint, allow_http=args.allow_http)


def _items(text: str) -> tuple[str, ...]:
    items = tuple(filter(None, (item.strip() for item in text.split(","))))
    if not items:
        raise argparse.ArgumentTypeError("must not be empty")
    return items


def _table_name(text: str) -> str:
    if not all(text.rpartition(".")):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAMESPACE.NAME")
    return text


def _group_id(text: str) -> str:
    if not is_folder(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not the id of a group, such as `list` shows")
    return text


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _size_mib(text: str) -> int:
    return 0 if text == "0" else _positive(text)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) >= 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return int(text)


def _duration_ms(text: str) -> int:
    unit_s = _UNITS_S.get(text[-1:], 0)
    if not unit_s or not text[:-1].isascii() or not text[:-1].isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration, such as 90m, 24h or 7d")
    return int(text[:-1]) * unit_s * 1000


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not math.isfinite(rate) or rate < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of MB a second, or 0")
    return rate


def _setting(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def _time_ms(text: str) -> int:
    try:
        return time_ms(text)
    except InvalidArgument as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
