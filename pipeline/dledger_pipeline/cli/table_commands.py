"""``dledger-pipeline query`` and ``export``: what takes a backup's log for a table."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from dledger_pipeline.cli.options import (
    Command,
    add_manifest,
    add_runner,
    add_spark_arguments,
    open_store,
    runner_fields,
    spark_fields,
)
from dledger_pipeline.cli.values import instant_ms, items, table_name
from dledger_pipeline.jobs.export import ExportRequest, export
from dledger_pipeline.jobs.result import Result
from dledger_pipeline.object_store.store import Store
from dledger_pipeline.tables.columns import Columns, columns_of
from dledger_pipeline.tables.opening import DEFAULT_NAME, Target
from dledger_pipeline.tables.table import TableFormat


def _add_query(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(shows_result=False)
    parser.add_argument(
        "sql", metavar="SQL", help="about the tables `messages`, `entries` and `current`"
    )
    parser.add_argument(
        "--to-time",
        type=instant_ms,
        metavar="RFC3339",
        help="what table `current` had then, 2026-01-31T12:00:00Z; default: at the end",
    )
    add_manifest(parser)
    add_spark_arguments(parser)


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
        store=open_store(args),
        **spark_fields(args),
    )
    return query(request, print, args.progress)


def _add_export(parser: argparse.ArgumentParser) -> None:
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
        "--topics", type=items, default=(), metavar="A,B", help="only these topics (default: all)"
    )
    parser.add_argument(
        "--since",
        type=instant_ms,
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
        type=table_name,
        default=DEFAULT_NAME,
        metavar="NAMESPACE.NAME",
        help=f"of an Iceberg table in its catalogue ({DEFAULT_NAME})",
    )
    add_runner(parser)
    add_spark_arguments(parser)


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
        store=open_store(args),
        target=target,
        topics=args.topics,
        columns=_columns(args),
        first_ms=args.since,
        **runner_fields(args),
        **spark_fields(args),
    )
    return export(request, args.progress)


def _columns(args: argparse.Namespace) -> Columns:
    if args.schema is None:
        return Columns(has_body=not args.no_body)
    text = args.schema.read_text("utf-8")
    return columns_of(str(args.schema), text, has_body=not args.no_body)


COMMANDS: Final = (
    Command("query", "answer SQL about a backup, a line of JSON for each row", _query, _add_query),
    Command(
        "export",
        "add the messages of a backup to a table that other engines read, each once",
        _export,
        _add_export,
    ),
)
