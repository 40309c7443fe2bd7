"""The BrokerBackup that a schedule makes, and the work of any BrokerBackup. Pure.

It is the pipeline, which reads the log from the nodes and writes it to the store.
"""

from __future__ import annotations

from dledger_operator.api import names
from dledger_operator.api.brokerbackup import BrokerBackup
from dledger_operator.api.schedule_times import unix_minute
from dledger_operator.api.spec import BrokerGroup, Manifest, Store
from dledger_operator.resources.certificates import backup_volumes
from dledger_operator.resources.common import metadata
from dledger_operator.resources.log_job import LogRange, LogWork, node_args


def backup_work(
    backup: BrokerBackup, group: BrokerGroup, *, store: Store, log: LogRange
) -> LogWork:
    """Return what the Job of a backup does."""
    last_index = backup.spec.last_index or log.last_index
    nodes = node_args(group, log, last_index=last_index)
    return LogWork(
        owner=backup,
        name=names.backup_job(backup.name),
        component=names.BACKUP_JOBS,
        args=("backup", *nodes, *_keeping(group, store)),
        store=store,
        log=log,
        certificate=tuple(backup_volumes(group)),
    )


def scheduled_backup(group: BrokerGroup, at: str) -> Manifest:
    """Return the backup for a time of the schedule, RFC 3339; always of the same name.

    It is deleted with the group; what it wrote to the store stays.
    """
    name = names.scheduled_backup(group.name, unix_minute(at))
    described = metadata(group, name)
    described["annotations"] = {names.SCHEDULED_ANNOTATION: at}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.BACKUP_KIND,
        "metadata": described,
        "spec": {"group": group.name},
    }


def _keeping(group: BrokerGroup, store: Store) -> list[str]:
    """Return what the backup makes and deletes beside its entries.

    A group's retention is about the group's store: a BrokerBackup with another one deletes nothing.
    """
    spec = group.spec.backup
    asked = {"--base-every": spec.base_every_hours}
    if store.place == spec.store.place:
        asked |= {"--keep-days": spec.retention.keep_days, "--keep-last": spec.retention.keep_last}
    return [word for option, value in asked.items() if value for word in (option, str(value))]
