"""How far the first volume of a group that starts from a backup has come. Pure.

The progress is kept on the volume claim, not in the status, which is deleted with the object (adr
6): a claim is marked ``pending`` when it is made for a recovery, and ``done`` once the Job
succeeded. An unmarked claim belongs to an earlier group and is never restored over; see
`bootstrap_state`.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger_operator.api import names
from dledger_operator.api.spec import BrokerGroup, Json
from dledger_operator.observed.job_status import JobFailed, JobRunning, JobStatus, JobSucceeded
from dledger_operator.observed.observed import Observed
from dledger_operator.resources.recovery import PENDING


@dataclass(frozen=True, slots=True)
class NotRestoring:
    """No recovery is wanted, or it is done: the nodes may start."""


@dataclass(frozen=True, slots=True)
class NoClaim:
    """There is no volume to restore to yet."""


@dataclass(frozen=True, slots=True)
class NoJob:
    """The volume is there, and no Job that restores it."""


@dataclass(frozen=True, slots=True)
class Restoring:
    """The Job is running; *note* says what delays it, if that is known."""

    note: str


@dataclass(frozen=True, slots=True)
class Restored:
    """The Job succeeded; the claim is still to be marked."""

    result: Json


@dataclass(frozen=True, slots=True)
class RestoreFailed:
    """The Job failed; *error* is what the pipeline reported."""

    error: str


Recovery = NotRestoring | NoClaim | NoJob | Restoring | Restored | RestoreFailed


def recovery(group: BrokerGroup, observed: Observed) -> Recovery:
    """Return how far the recovery of a group has come."""
    built = ("StatefulSet", group.name) in observed.children
    if not group.recovers or group.group_id or built:
        return NotRestoring()
    claim = observed.volumes.get(names.claim(group.name, 0))
    if claim is None:
        return NoClaim()
    return _of_job(observed.recovery) if claim.recovery == PENDING else NotRestoring()


def _of_job(job: JobStatus | None) -> Recovery:
    match job:
        case None:
            return NoJob()
        case JobRunning(note=note):
            return Restoring(note)
        case JobSucceeded(result=result):
            return Restored(result)
        case JobFailed(error=error):
            return RestoreFailed(error)


def blocks_nodes(state: Recovery) -> bool:
    """Whether the nodes have to wait."""
    return not isinstance(state, NotRestoring)
