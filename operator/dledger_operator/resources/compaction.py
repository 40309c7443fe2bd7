"""The BrokerOperation that a schedule of compaction makes, and the work of any round. Pure.

A round is the pipeline, which reads keys from the newest backup and from the nodes, and tells the
leader what newer messages have replaced.
"""

from __future__ import annotations

from dledger_operator.api import names
from dledger_operator.api.brokeroperation import BrokerOperation, Kind
from dledger_operator.api.schedule_times import unix_minute
from dledger_operator.api.spec import BrokerGroup, Manifest
from dledger_operator.resources.certificates import compactor_volumes
from dledger_operator.resources.common import metadata
from dledger_operator.resources.log_job import DEADLINE_S, LogRange, LogWork, node_args


def round_work(
    operation: BrokerOperation, group: BrokerGroup, *, log: LogRange, again_in_s: int
) -> LogWork:
    """Return what the Job of a round does; it comes again in *again_in_s*, 0: nobody knows when.

    The store is only read, and need not be there: the nodes have all that the round rests on.
    """
    again = ("--again-in", f"{again_in_s}s") if again_in_s else ()
    return LogWork(
        owner=operation,
        name=names.compaction_job(operation.name),
        component=names.COMPACTION_JOBS,
        args=("compact", *node_args(group, log), *again),
        store=group.spec.backup.store,
        log=log,
        certificate=tuple(compactor_volumes(group)),
        reads_only=True,
        deadline_s=operation.spec.deadline_seconds,
    )


def scheduled_round(group: BrokerGroup, at: str) -> Manifest:
    """Return the round for a time of the schedule, RFC 3339; always of the same name."""
    described = metadata(group, names.scheduled_round(group.name, unix_minute(at)))
    described["annotations"] = {names.SCHEDULED_ANNOTATION: at}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.OPERATION_KIND,
        "metadata": described,
        "spec": {
            "group": group.name,
            "kind": str(Kind.COMPACT),
            "deadlineSeconds": DEADLINE_S,
        },
    }
