"""Makes ``spark.read.format("dledger")`` known to Spark.

The first time that a session asks for a format which is not built in, Spark 4 imports every module
on the driver's Python path whose name begins with ``pyspark_`` and takes its `DefaultSource`
(``pyspark.sql.worker.lookup_data_sources``). So nothing has to be registered.
"""

from __future__ import annotations

import contextlib

# Where the extra `pipeline` is not installed, an error here would hide all other formats, too.
with contextlib.suppress(ImportError):
    from dledger_pipeline.spark.source import LedgerDataSource as DefaultSource

__all__ = ["DefaultSource"]
