"""The BrokerBackup that a group's schedule makes. Pure."""

from __future__ import annotations

from dledger_operator.api import names
from dledger_operator.api.schedule import unix_minute
from dledger_operator.api.spec import BrokerGroup, Manifest
from dledger_operator.resources.common import metadata


def scheduled_backup(group: BrokerGroup, at: str) -> Manifest:
    """Return the backup for a time of the schedule, RFC 3339; always of the same name.

    It goes with the group; what it wrote to the store stays.
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
