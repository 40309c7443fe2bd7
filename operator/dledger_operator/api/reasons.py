"""The catalogue of reasons: every reason of a condition or Event, what it means and what to do.

The only list. `docs/operator.md` shows it (a test compares them) and runbooks are written from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Reason(StrEnum):
    """One word for why a condition has its status."""

    ACCEPTED = "Accepted"
    NOT_IMPLEMENTED_YET = "NotImplementedYet"
    INVALID_SPEC = "InvalidSpec"
    NOT_ALLOWED = "NotAllowed"
    LEADER_ELECTED = "LeaderElected"
    NO_LEADER = "NoLeader"
    WRITES_REFUSED = "WritesRefused"
    NODES_UNREACHABLE = "NodesUnreachable"
    WAITING_FOR_NODES = "WaitingForNodes"
    ALL_REPLICAS_READY = "AllReplicasReady"
    REPLICAS_NOT_READY = "ReplicasNotReady"
    CREATING = "Creating"
    FOUNDING = "Founding"
    JOINING = "Joining"
    RESTART_PENDING = "RestartPending"
    TOPICS_PENDING = "TopicsPending"
    BLOCKED = "Blocked"
    COMPLETE = "Complete"
    AS_EXPECTED = "AsExpected"
    MEMBER_REPLACED_BY_EMPTY_DISK = "MemberReplacedByEmptyDisk"
    MEMBER_NOT_CONNECTED = "MemberNotConnected"
    MEMBER_TOO_OLD = "MemberTooOld"
    ALL_DISKS_EMPTY = "AllDisksEmpty"
    DUPLICATE_NODE_ID = "DuplicateNodeId"
    STATUS_NOT_BELIEVED = "StatusNotBelieved"
    APPLY_REFUSED = "ApplyRefused"
    TOPIC_REFUSED = "TopicRefused"
    ONE_GROUP_ID = "OneGroupId"
    NOT_FOUNDED = "NotFounded"
    GROUP_ID_MISMATCH = "GroupIdMismatch"
    VOLUMES_BOUND = "VolumesBound"
    VOLUMES_PENDING = "VolumesPending"
    PAUSED_BY_USER = "PausedByUser"
    NOT_PAUSED = "NotPaused"
    RECOVERING = "Recovering"
    RECOVERY_FAILED = "RecoveryFailed"
    NOT_RESTORED = "NotRestored"
    BACKUP_NOT_CONFIGURED = "BackupNotConfigured"
    NO_BACKUP_YET = "NoBackupYet"
    BACKUP_COMPLETED = "BackupCompleted"
    BACKUP_FAILED = "BackupFailed"
    BACKUP_RUNNING = "BackupRunning"
    GROUP_MISSING = "GroupMissing"
    GROUP_SPEC_INVALID = "GroupSpecInvalid"
    NO_STORE = "NoStore"
    WAITING_FOR_GROUP = "WaitingForGroup"
    WAITING_FOR_TURN = "WaitingForTurn"


@dataclass(frozen=True, slots=True)
class Explanation:
    """For people: which condition says it, what it means, what to do about it."""

    condition: str
    meaning: str
    remedy: str = "Nothing."


CATALOGUE: Final[Mapping[Reason, Explanation]] = MappingProxyType(
    {
        Reason.ACCEPTED: Explanation(
            "SpecValid=True",
            "The operator acts on every field of the spec that asks for something.",
        ),
        Reason.NOT_IMPLEMENTED_YET: Explanation(
            "SpecValid=False; Complete=False of a BrokerBackup",
            "The spec asks for something that this version cannot do yet; the message names the "
            "fields. No part of the new spec is acted on but backups; a running group stays as it "
            "is.",
            "Set the named fields back to what the message says.",
        ),
        Reason.INVALID_SPEC: Explanation(
            "SpecValid=False; Complete=False of a BrokerBackup",
            "The spec contradicts itself or the volumes that exist; the message names the fields. "
            "No part of the new spec is acted on but backups; a running group stays as it is. Of a "
            "BrokerBackup: it can never be carried out.",
            "Correct the named fields. A BrokerBackup does not change: create another.",
        ),
        Reason.NOT_ALLOWED: Explanation(
            "SpecValid=False",
            "The spec asks for what whoever installed the operator does not allow: an image, a "
            "priority, less security of the pods; the message names the fields and the values of "
            "the chart. No part of the new spec is acted on but backups; a running group stays as "
            "it is.",
            "Take the named fields back, or have the values of the chart changed.",
        ),
        Reason.LEADER_ELECTED: Explanation(
            "Available=True", "A majority follows one leader: writes are taken."
        ),
        Reason.NO_LEADER: Explanation(
            "Available=False",
            "No majority follows one leader. It lasts under two seconds at a failover.",
            "If it lasts, bring nodes back until a majority is up: see the pods and their events.",
        ),
        Reason.WRITES_REFUSED: Explanation(
            "Available=False, StorageHealthy=False",
            "A node, named with its own words, refuses writes, such as on a full disk. "
            "Available is False only when it is the leader.",
            "Make room: the node takes writes again by itself.",
        ),
        Reason.NODES_UNREACHABLE: Explanation(
            "Available=Unknown, GroupIDConsistent=Unknown",
            "Pods are ready but answer the operator no Status call, so nothing is known of them. "
            "The group itself may be well: it does not need the operator.",
            "See whether a NetworkPolicy keeps the operator from port 20911 of the pods.",
        ),
        Reason.WAITING_FOR_NODES: Explanation(
            "Available=False",
            "The group is not founded yet: that takes the answer of every replica.",
            "See why the named pods do not run.",
        ),
        Reason.ALL_REPLICAS_READY: Explanation(
            "Ready=True", "Every replica is up, has joined and has caught up."
        ),
        Reason.REPLICAS_NOT_READY: Explanation(
            "Ready=False",
            "Some replicas, named with what is known of them, are missing or not ready.",
            "See the named pods and their events.",
        ),
        Reason.CREATING: Explanation(
            "Progressing=True; Complete=Unknown of a BrokerBackup",
            "Children or pods are being created; the message names them.",
        ),
        Reason.FOUNDING: Explanation(
            "Progressing=True",
            "The group has no first leader yet: replicas are awaited, told to found the group, or "
            "about to elect.",
        ),
        Reason.JOINING: Explanation(
            "Progressing=True", "The leader is bringing the named members in."
        ),
        Reason.RESTART_PENDING: Explanation(
            "Progressing=True",
            "The named pods run an older template (image, resources, configuration). The operator "
            "does not restart pods yet.",
            "Delete the named pods one at a time, the leader last, waiting for Ready each time.",
        ),
        Reason.TOPICS_PENDING: Explanation(
            "Progressing=True", "Topics of the spec are still to be created."
        ),
        Reason.BLOCKED: Explanation(
            "Progressing=False",
            "The operator is waiting: SpecValid, Degraded or GroupIDConsistent say for what.",
            "See those conditions.",
        ),
        Reason.COMPLETE: Explanation(
            "Progressing=False",
            "All that the spec asks for was made; see Ready for whether it runs.",
        ),
        Reason.AS_EXPECTED: Explanation("Degraded=False", "Nothing is known to be wrong."),
        Reason.MEMBER_REPLACED_BY_EMPTY_DISK: Explanation(
            "Degraded=True",
            "The named pods came up with an empty disk under the name of a member. They take no "
            "part, so that they cannot vote as if they remembered.",
            "Bring the old volume back. If it is lost for good, replace the member with "
            "`dledger member add --replace`: see docs/runbooks.md.",
        ),
        Reason.MEMBER_NOT_CONNECTED: Explanation(
            "Degraded=True",
            "The leader has no connection to the named members.",
            "See the named pods and the network between the nodes.",
        ),
        Reason.MEMBER_TOO_OLD: Explanation(
            "Degraded=True",
            "The named pods' image is older than what their group or their disk holds: the node "
            "stopped rather than skip what it does not know. The message has its last words; its "
            "disk is good.",
            "Set spec.image to the version that the group runs, and delete the named pods.",
        ),
        Reason.ALL_DISKS_EMPTY: Explanation(
            "Available=False, Degraded=True",
            "The group was founded, and now every disk is empty. The operator never founds a "
            "group a second time.",
            "Bring the volumes back. To start afresh without the data, delete the BrokerGroup and "
            "apply it again.",
        ),
        Reason.DUPLICATE_NODE_ID: Explanation(
            "Degraded=True",
            "Several pods show the same node id: a disk was copied. Nothing is done to the group.",
            "Give each pod its own volume.",
        ),
        Reason.STATUS_NOT_BELIEVED: Explanation(
            "Degraded=True",
            "What the named pods answer to the operator's Status call is an error, too long, or "
            "contradicts itself. They count as silent.",
            "See what runs in the named pods, and who else may have their addresses.",
        ),
        Reason.APPLY_REFUSED: Explanation(
            "Degraded=True; Complete=Unknown of a BrokerBackup",
            "The API server refused a child, or its name is taken by an object that belongs to "
            "someone else; the message has the answer. Nothing that comes after it is made.",
            "Correct the spec, or remove or rename what is in the way.",
        ),
        Reason.TOPIC_REFUSED: Explanation(
            "Degraded=True",
            "A topic of the spec could not be created as asked; the message has the answer.",
            "Correct the topic in the spec.",
        ),
        Reason.ONE_GROUP_ID: Explanation(
            "GroupIDConsistent=True", "Every volume that answers carries the recorded group id."
        ),
        Reason.NOT_FOUNDED: Explanation(
            "GroupIDConsistent=Unknown", "No volume is known to carry a group id yet."
        ),
        Reason.GROUP_ID_MISMATCH: Explanation(
            "GroupIDConsistent=False",
            "Volumes carry different group ids, or another than the recorded one; the message has "
            "both. Nothing is done to the group.",
            "Give the group the volumes that belong together.",
        ),
        Reason.VOLUMES_BOUND: Explanation(
            "StorageHealthy=True", "Every volume is bound and no node refuses writes."
        ),
        Reason.VOLUMES_PENDING: Explanation(
            "StorageHealthy=Unknown",
            "The named volumes are not there yet.",
            "If it lasts, see the claims and their events.",
        ),
        Reason.PAUSED_BY_USER: Explanation(
            "Paused=True; Complete=Unknown of a BrokerBackup",
            "spec.paused is set: the operator watches and reports, and changes nothing. The "
            "Service of the leader does not follow a failover meanwhile.",
            "Clear spec.paused.",
        ),
        Reason.NOT_PAUSED: Explanation("Paused=False", "The operator acts."),
        Reason.RECOVERING: Explanation(
            "Progressing=True",
            "A Job restores the first volume from a backup; the nodes start when it has ended. The "
            "message tells what holds it up.",
            "If it lasts, see the Job, its pod and their events.",
        ),
        Reason.RECOVERY_FAILED: Explanation(
            "Degraded=True",
            "The Job that restores the first volume failed; the message has the error in "
            "the pipeline's words. No node is started and no empty group is founded.",
            "Put right what the message names, then delete the Job: the operator makes it again. "
            "If the spec is wrong, delete the BrokerGroup and apply it corrected.",
        ),
        Reason.NOT_RESTORED: Explanation(
            "Degraded=True",
            "No disk is in a group, and the first one, it alone, does not carry a restored log. "
            "An empty group is never founded where a backup was asked for.",
            "Delete the BrokerGroup, then its volume claims if what they hold is not needed, and "
            "apply it again.",
        ),
        Reason.BACKUP_NOT_CONFIGURED: Explanation(
            "BackupReady=Unknown",
            "The group has no store for backups and never had a backup.",
            "Set spec.backup.store, or create a BrokerBackup with a store of its own.",
        ),
        Reason.NO_BACKUP_YET: Explanation(
            "BackupReady=False",
            "No backup of the group was completed yet.",
            "Create a BrokerBackup, or set spec.backup.schedule.",
        ),
        Reason.BACKUP_COMPLETED: Explanation(
            "BackupReady=True; Complete=True of a BrokerBackup",
            "The newest backup is whole and published; the message has its range and time.",
        ),
        Reason.BACKUP_FAILED: Explanation(
            "BackupReady=False; Complete=False of a BrokerBackup",
            "The newest backup failed; the message has the error in the pipeline's words. "
            "Nothing was published, and earlier backups are untouched.",
            "Put right what the message names and create another BrokerBackup.",
        ),
        Reason.BACKUP_RUNNING: Explanation(
            "Complete=Unknown of a BrokerBackup",
            "The Job works, or is being tried again; the message tells what holds it up.",
            "If it lasts, see the Job, its pod and their events.",
        ),
        Reason.GROUP_MISSING: Explanation(
            "Complete=Unknown of a BrokerBackup",
            "There is no BrokerGroup of that name in the namespace.",
            "Apply the BrokerGroup, or delete the BrokerBackup.",
        ),
        Reason.GROUP_SPEC_INVALID: Explanation(
            "Complete=Unknown of a BrokerBackup",
            "What the BrokerGroup says of stores or Spark cannot be used; the message names the "
            "fields.",
            "Correct the named fields of the BrokerGroup.",
        ),
        Reason.NO_STORE: Explanation(
            "Complete=Unknown of a BrokerBackup",
            "Neither the BrokerBackup nor its BrokerGroup names a store.",
            "Set spec.backup.store of the BrokerGroup.",
        ),
        Reason.WAITING_FOR_GROUP: Explanation(
            "Complete=Unknown of a BrokerBackup",
            "No node of the group answers what there is to copy.",
            "See the conditions of the BrokerGroup.",
        ),
        Reason.WAITING_FOR_TURN: Explanation(
            "Complete=Unknown of a BrokerBackup",
            "Another backup of the group, named in the message, goes first: there are never two at "
            "once.",
            "Nothing. To stop the other one, delete it.",
        ),
    }
)


class EventReason(StrEnum):
    """One word for what an Event tells."""

    GROUP_ID_RECORDED = "GroupIdRecorded"
    FOUNDED = "Founded"
    ADOPTED = "Adopted"
    LEADER_CHANGED = "LeaderChanged"
    SPEC_REFUSED = "SpecRefused"
    SPEC_ACCEPTED = "SpecAccepted"
    DEGRADED = "Degraded"
    RECOVERED = "Recovered"
    GROUP_ID_MISMATCH = "GroupIdMismatch"
    TOPIC_CREATED = "TopicCreated"
    RECOVERY_STARTED = "RecoveryStarted"
    RESTORED = "Restored"
    BACKUP_SCHEDULED = "BackupScheduled"
    BACKUP_STARTED = "BackupStarted"
    BACKUP_COMPLETED = "BackupCompleted"
    BACKUP_FAILED = "BackupFailed"


EVENTS: Final[Mapping[EventReason, str]] = MappingProxyType(
    {
        EventReason.GROUP_ID_RECORDED: "All disks are empty; the id to found the group with was "
        "recorded in the status.",
        EventReason.FOUNDED: "One node was told to found the group with the recorded id.",
        EventReason.ADOPTED: "Volumes carry a group id; it was recorded and nothing was founded.",
        EventReason.LEADER_CHANGED: "Another node leads; the message has the cause and the time.",
        EventReason.SPEC_REFUSED: "SpecValid became False.",
        EventReason.SPEC_ACCEPTED: "SpecValid became True again.",
        EventReason.DEGRADED: "Degraded became True, or for another reason.",
        EventReason.RECOVERED: "Degraded became False again.",
        EventReason.GROUP_ID_MISMATCH: "GroupIDConsistent became False.",
        EventReason.TOPIC_CREATED: "A topic of the spec was created.",
        EventReason.RECOVERY_STARTED: "The Job that restores the first volume was created.",
        EventReason.RESTORED: "The first volume was restored; the message has group and range.",
        EventReason.BACKUP_SCHEDULED: "A BrokerBackup was created as the schedule says.",
        EventReason.BACKUP_STARTED: "On a BrokerBackup: its Job was created.",
        EventReason.BACKUP_COMPLETED: "On a BrokerBackup: it is whole and published.",
        EventReason.BACKUP_FAILED: "On a BrokerBackup: it failed; the message says why.",
    }
)
