"""What every job that runs on Spark is asked with. Extended by the jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dledger_pipeline.object_store.store import Store
from dledger_pipeline.spark.master import LOCAL


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkRequest:
    """Whose log, and by which Spark.

    Attributes:
        group_id: The group it must be; None: the only one that the nodes or the store have.
        master, conf: See `session.spark_session`.
    """

    group_id: str | None = None
    master: str = LOCAL
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRequest(SparkRequest):
    """Whose backup, in which store.

    Attributes:
        store: The store's root; each group has its own folder below it.
    """

    store: Store
