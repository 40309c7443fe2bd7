"""Query: answers SQL about a backup, a row a line. Called by the command line.

Spark below 5 keeps what it pushed down on the table, not with the scan (SPARK-58551): where a plan
reads a table twice, both scans get the rows of whichever was planned last. So conditions are pushed
down only into a plan that reads each table once, out of tables that nothing else will read; any
other statement reads them whole, and Spark does all of the filtering.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from dledger.errors import InvalidArgument
from dledger_pipeline.archive import catalog
from dledger_pipeline.archive.manifest import Manifest, told_time
from dledger_pipeline.archive.planning import entries_left_out, gaps_told
from dledger_pipeline.jobs.request import SparkRequest
from dledger_pipeline.jobs.result import COMPLETED, Result
from dledger_pipeline.spark.session import first_line, spark_session, typed_errors
from dledger_pipeline.spark.source import FORMAT, READ_ONCE, View

_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
_SPARKS_LOGGER: Final = "SQLQueryContextLogger"
"""Prints what is wrong with a statement, as JSON with a stack trace, besides raising it."""
_TABLES: Final = (View.MESSAGES, View.ENTRIES, View.CURRENT)
_TABLE: Final = "DataSourceV2Relation"
_OF_CTE: Final = "CTERelationRef"
_WITHOUT_TABLE: Final = ("OneRowRelation", "LocalRelation", "Range", "ResolvedInlineTable")
"""Leaves of a plan as Spark calls their classes. A plan with any other one, such as that of a
command, which has run by then, or of a recursion, is not taken for one that reads a table once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRequest(SparkRequest):
    """What to ask.

    Attributes:
        sql: About the tables ``messages``, ``entries`` and ``current``.
        number: Of which backup; None: the newest.
        to_time_ms: As of when ``current`` is, Unix milliseconds; None: as of the backup.
        allow_http: Whether the store may be reached without encryption.
    """

    sql: str
    number: int | None = None
    to_time_ms: int | None = None
    allow_http: bool = False


def query(
    request: QueryRequest, tell: Callable[[str], None], say: Callable[[str], None] = lambda _: None
) -> Result:
    """Give *tell* each row of the answer as a JSON object; return how many there are.

    *say* is told of gaps in the backup, a line each.

    Raises:
        StoreError, BackupError: The store or what it holds is at fault.
        MessageError: Messages cannot be read out of the backup.
        InvalidArgument: The SQL is wrong.
        SparkFailed: Spark did not run it.
    """
    manifest = catalog.load(request.store, request.group_id, request.number)
    for gap in gaps_told(manifest):
        say(gap)
    logging.getLogger(_SPARKS_LOGGER).disabled = True
    name, rows = f"dledger-query-{manifest.group}", 0
    with spark_session(name, request.master, request.conf) as joined, typed_errors():
        spark = joined.newSession()  # whoever started the other one may have such views, too
        found = _answer(spark, request, manifest)
        line = sf.to_json(sf.struct("*"), {"ignoreNullFields": "false"})
        for row in found.select(line).toLocalIterator():
            tell(row[0])
            rows += 1
    return {
        "phase": COMPLETED,
        "groupId": manifest.group_id,
        "rows": rows,
        "entriesNotShown": entries_left_out(manifest),
    }


def _answer(spark: SparkSession, request: QueryRequest, manifest: Manifest) -> DataFrame:
    """Return the rows of the answer, which may be asked for once."""
    found = _asked(spark, request, manifest, read_once=False)
    if not reads_once(found):
        return found
    spark.conf.set(_PUSHDOWN, "true")
    return _asked(spark, request, manifest, read_once=True)


def _asked(
    spark: SparkSession, request: QueryRequest, manifest: Manifest, *, read_once: bool
) -> DataFrame:
    for view in _TABLES:
        _table(spark, request, manifest, view, read_once=read_once)
    try:
        return spark.sql(request.sql)
    except (AnalysisException, ParseException) as error:
        raise InvalidArgument(f"not an answerable query: {first_line(error)}") from error


def reads_once(found: DataFrame) -> bool:
    """Whether the plan of *found* reads at least one table, and none twice.

    Not so with subqueries in expressions, of which Spark may repeat what they are asked beside, and
    not if a CTE is named twice, which Spark puts where its name is.
    """
    plan = found._jdf.queryExecution().commandExecuted()  # noqa: SLF001, there is no other way
    if not plan.subqueriesAll().isEmpty():
        return False
    leaves = plan.collectLeaves()
    named = Counter(_named(leaves.apply(at)) for at in range(leaves.size()))
    known = all(kind in (_TABLE, _OF_CTE, *_WITHOUT_TABLE) for kind, _ in named)
    counted = [count for (kind, _), count in named.items() if kind not in _WITHOUT_TABLE]
    reads = any(kind == _TABLE for kind, _ in named)
    return known and reads and all(count == 1 for count in counted)


def _named(leaf: Any) -> tuple[str, str]:
    """Return the kind of a leaf, and which one of those it is."""
    kind = str(leaf.getClass().getSimpleName())
    if kind == _TABLE:
        return kind, str(leaf.options().get("view"))
    return kind, str(leaf.cteId()) if kind == _OF_CTE else ""


def _table(
    spark: SparkSession, request: QueryRequest, manifest: Manifest, view: View, *, read_once: bool
) -> None:
    options = {
        "store": request.store.url,
        "storeEndpoint": request.store.endpoint or "",
        "allowHttp": str(request.allow_http),
        "groupId": manifest.group_id,
        "manifest": str(manifest.number),
        "view": view,
        "asOf": _as_of(request) if view is View.CURRENT else "",
        READ_ONCE: str(read_once),
    }
    spark.read.format(FORMAT).options(**options).load().createOrReplaceTempView(view)


def _as_of(request: QueryRequest) -> str:
    return "" if request.to_time_ms is None else told_time(request.to_time_ms)
