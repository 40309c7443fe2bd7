"""Query: answers SQL about a backup, a row a line. Called by the command line."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from dledger.errors import InvalidArgument
from dledger_pipeline.archive import catalog
from dledger_pipeline.archive.manifest import Manifest
from dledger_pipeline.jobs.request import SparkRequest
from dledger_pipeline.jobs.result import COMPLETED, Result
from dledger_pipeline.spark.session import first_line, spark_session, typed_errors
from dledger_pipeline.spark.source import FORMAT, View

_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
_SPARKS_LOGGER: Final = "SQLQueryContextLogger"
"""Prints what is wrong with a statement, as JSON with a stack trace, besides raising it."""
_TABLES: Final = (View.MESSAGES, View.ENTRIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRequest(SparkRequest):
    """What to ask: *sql* about the tables ``messages`` and ``entries`` of backup *number*.

    None: the newest.
    """

    sql: str
    number: int | None = None
    allow_http: bool = False


def query(request: QueryRequest, tell: Callable[[str], None]) -> Result:
    """Give *tell* each row of the answer as a JSON object; return how many there are.

    Raises:
        StoreError, BackupError: The store or what it holds is at fault.
        MessageError: Messages cannot be read out of the backup.
        InvalidArgument: The SQL is wrong.
        SparkFailed: Spark did not run it.
    """
    manifest = catalog.load(request.store, request.group_id, request.number)
    logging.getLogger(_SPARKS_LOGGER).disabled = True
    name, rows = f"dledger-query-{manifest.group}", 0
    with spark_session(name, request.master, request.conf) as joined, typed_errors():
        spark = joined.newSession()  # whoever started the other one may have such views, too
        spark.conf.set(_PUSHDOWN, "true")
        for view in _TABLES:
            _table(spark, request, manifest, view)
        found = _asked(spark, request.sql)
        line = sf.to_json(sf.struct("*"), {"ignoreNullFields": "false"})
        for row in found.select(line).toLocalIterator():
            tell(row[0])
            rows += 1
    return {"phase": COMPLETED, "groupId": manifest.group_id, "rows": rows}


def _asked(spark: SparkSession, sql: str) -> DataFrame:
    try:
        return spark.sql(sql)
    except (AnalysisException, ParseException) as error:
        raise InvalidArgument(f"not an answerable query: {first_line(error)}") from error


def _table(spark: SparkSession, request: QueryRequest, manifest: Manifest, view: View) -> None:
    options = {
        "store": request.store.url,
        "storeEndpoint": request.store.endpoint or "",
        "allowHttp": str(request.allow_http),
        "groupId": manifest.group_id,
        "manifest": str(manifest.number),
        "view": view,
        "pushdown": "true",
    }
    spark.read.format(FORMAT).options(**options).load().createOrReplaceTempView(view)
