"""A round of one group: observe, plan, act, report. Its `GroupLoop` calls it again and again.

Nothing is kept in memory that could not be lost: what has to be remembered is in the status.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, Protocol

from dledger.errors import (
    AlreadyBootstrapped,
    DledgerError,
)
from dledger_operator.api import names
from dledger_operator.api.brokerbackup import BrokerBackup
from dledger_operator.api.brokeroperation import BrokerOperation
from dledger_operator.api.reasons import EventReason
from dledger_operator.api.schedule import due, round_due
from dledger_operator.api.spec import BrokerGroup, Json, Manifest
from dledger_operator.cluster.api import ApiError
from dledger_operator.cluster.cluster import Cluster, owned
from dledger_operator.cluster.nodes import Nodes
from dledger_operator.cluster.peer_channels import PeerChannels
from dledger_operator.controllers.absences import Absences
from dledger_operator.controllers.certificate_keeper import CertificateKeeper
from dledger_operator.controllers.child_keeper import ChildKeeper
from dledger_operator.controllers.claims import Claims
from dledger_operator.controllers.job_troubles import JobTroubles
from dledger_operator.controllers.member_keeper import MemberKeeper
from dledger_operator.controllers.topic_keeper import TopicKeeper
from dledger_operator.decisions.actions import (
    Action,
    Bootstrap,
    Child,
    Forget,
    LabelRole,
    LookAgain,
    MarkRestored,
    RecordGroupId,
    is_prerequisite,
)
from dledger_operator.decisions.backoff import Backoff
from dledger_operator.decisions.disruptions import RENEWED_S, DeleteTopic, Disruption, Footing
from dledger_operator.decisions.facts import Facts, facts_of
from dledger_operator.decisions.growth import GrowClaim, ReleasePods
from dledger_operator.decisions.plan import plan
from dledger_operator.decisions.starts import is_starting, wanted_mounts
from dledger_operator.decisions.topics import CreateTopic, GrowTopic, RetainTopic
from dledger_operator.decisions.turns import RolloutTurns, is_begun, stage
from dledger_operator.metrics.metrics import Metrics
from dledger_operator.observed.job_status import JobPod, JobStatus
from dledger_operator.observed.observed import Observed, Pod, Ref, Volume, ref_of
from dledger_operator.observed.parsers import with_shared_texts
from dledger_operator.resources import Platform, desired
from dledger_operator.resources.accepted import accepted_spec
from dledger_operator.status.backup_history import too_old_from
from dledger_operator.status.compaction_history import overdue_from
from dledger_operator.status.departure import departure_event, last_status
from dledger_operator.status.status import Event, events, rfc3339, status, worth_writing

log: Final = logging.getLogger(__name__)

GRACE_S: Final = 10.0
"""A voter that is out of sync for no longer is one that starts or restarts."""
_MINUTE: Final = len("2031-05-06T07:08")


class Watched(Protocol):
    """What the watches know of one group; see `handlers.Indexes`, which kopf keeps up to date."""

    def children(self, namespace: str, group: str) -> list[Manifest]:
        """Return its labelled children, without volume claims and pods."""

    def pods(self, namespace: str, group: str) -> list[Pod]:
        """Return its pods."""

    def volumes(self, namespace: str, group: str) -> list[Volume]:
        """Return its volume claims."""

    def job_pods(self, namespace: str, group: str) -> list[tuple[str, JobPod]]:
        """Return the pods of its Jobs, each with its Job's name."""

    def backups(self, namespace: str, group: str) -> list[BrokerBackup]:
        """Return the BrokerBackups that name it."""

    def operations(self, namespace: str, group: str) -> list[BrokerOperation]:
        """Return the BrokerOperations that name it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Time and random ids, which tests replace."""

    monotonic_s: Callable[[], float] = time.monotonic
    now: Callable[[], str] = lambda: rfc3339(int(datetime.now(UTC).timestamp() * 1000))
    fresh_id: Callable[[], str] = lambda: str(uuid.uuid4())


@dataclass(slots=True)
class _Memory:
    """What saves reads and writes; if it is lost, they are done again."""

    written_at_s: float = float("-inf")
    seen: tuple[Json, Observed, str] = field(default_factory=lambda: ({}, Observed(), ""))
    at_rest: bool = False
    short_since_s: float | None = None
    answering: frozenset[str] = frozenset()
    considered: Disruption | None = None


class Reconciler:
    """Looks after one BrokerGroup object."""

    def __init__(
        self,
        body: Json,
        *,
        cluster: Cluster,
        nodes: Nodes,
        watched: Watched,
        platform: Platform,
        metrics: Metrics,
        lease_s: Callable[[], float],
        turns: asyncio.Semaphore | None = None,
        rollout_turns: RolloutTurns | None = None,
        seen_every_s: Callable[[], float] = lambda: float("inf"),
        clock: Clock | None = None,
    ) -> None:
        self.body = _without_managed_fields(body)
        self._read: tuple[Json, BrokerGroup] | None = None
        self.facts: Facts | None = None
        self._turns = turns or asyncio.Semaphore()
        self._cluster = cluster
        self._nodes = nodes
        self._watched = watched
        self._platform = platform
        self._metrics = metrics
        self._lease_s = lease_s
        self._seen_every_s = seen_every_s
        self._members = MemberKeeper(cluster, nodes, post=self._post, refuse=self._refuse)
        self._clock = clock or Clock()
        self._rollout_turns = rollout_turns or RolloutTurns(self._clock.monotonic_s, settles_s=0)
        self._memory = _Memory()
        self._backoff = Backoff(self._clock.monotonic_s)
        self._certificates = CertificateKeeper(
            cluster,
            nodes,
            monotonic_s=self._clock.monotonic_s,
            now=self._clock.now,
            post=self._post,
            refuse=self._refuse,
        )
        self._children = ChildKeeper(
            cluster,
            monotonic_s=self._clock.monotonic_s,
            post=self._post,
            refuse=self._refuse,
        )
        self._claims = Claims(
            platform.operator,
            cluster=cluster,
            metrics=metrics,
            monotonic_s=self._clock.monotonic_s,
            post=self._post,
        )
        self._absences = Absences(cluster, monotonic_s=self._clock.monotonic_s, now=self._clock.now)
        self._jobs = JobTroubles(cluster, monotonic_s=self._clock.monotonic_s, now=self._clock.now)
        self._topics = TopicKeeper(
            nodes, monotonic_s=self._clock.monotonic_s, post=self._post, refuse=self._refuse
        )

    def update(self, body: Json) -> None:
        """Take a newer form of the object; one older than our own last write is ignored."""
        same = body["metadata"]["uid"] == self.body["metadata"]["uid"]
        if same and _version(body) >= _version(self.body):
            self.body = _without_managed_fields(body)

    @property
    def group(self) -> BrokerGroup:
        """The group as the newest known form of its object has it, read once for each form."""
        if self._read is None or self._read[0] is not self.body:
            self._read = self.body, self._parsed(self.body)
        return self._read[1]

    async def reconcile(self) -> None:
        """Do one round.

        Raises:
            ApiError: The API server does not answer, or refused a status.
        """
        if not await self._is_ours():
            return
        group = self.group
        if group.deleted_at:
            await self._depart(group)
            return
        observed = await self._observe(group)
        # Once a minute a round goes on in any case: backups get old without anything else changing.
        turn = self._rollout_turns.tell((group.namespace, group.name))
        seen = self.body, observed, f"{self._clock.now()[:_MINUTE]} {turn}"
        if self._memory.at_rest and seen[0] is self._memory.seen[0] and seen == self._memory.seen:
            return
        async with self._turns:
            await self._go_on(group, observed, seen)

    async def _go_on(
        self, group: BrokerGroup, observed: Observed, seen: tuple[Json, Observed, str]
    ) -> None:
        """Plan, act and report. Raises ApiError."""
        facts = self.facts = self._facts(group, observed)
        await self._members.tell(group, observed)
        children = desired(facts.group, self._platform)
        footing = Footing(
            oldest_answer_s=self._nodes.oldest_answer_s(),
            lease_s=self._lease_s(),
            considered=self._memory.considered,
        )
        self._memory.considered = None
        planned = plan(facts, children, fresh_id=self._clock.fresh_id(), footing=footing)
        actions = [action for action in planned if not self._children.is_vain(action)]
        going_on = await self._certificates.tend(facts)
        for action in actions:
            if isinstance(action, Child):
                # Later objects rely on earlier ones: no pods without their NetworkPolicy.
                if going_on or not is_prerequisite(action):
                    going_on &= await self._children.make(group, observed, action)
            else:
                group = await self._act(group, observed, action)
        known = self._certificates.view()
        at_end = replace(observed, refusals=self._backed_off(group), certificates=known)
        reported = await self._report(group, at_end)
        is_waiting = self._memory.short_since_s is not None and not facts.overdue
        is_waiting |= is_starting(observed.pods, self._clock.now())
        self._memory.at_rest = (
            reported and not actions and not is_waiting and known == observed.certificates
        )
        self._memory.seen = seen

    async def _is_ours(self) -> bool:
        """Whether this operator acts on the group now; marks one that nobody has. Raises ApiError.

        One that is another operator's is let go of.
        """
        group = self.group
        if self._claims.is_elsewhere(group):
            await self._let_go(group)
            return False
        if not self._claims.is_ours(group):
            version = self.body["metadata"]["resourceVersion"]
            written = await self._claims.claim(group, version=version)
            if written is None:
                return False  # changed meanwhile; the next round sees by whom
            self.update(written)
        return self._claims.may_act

    async def _depart(self, group: BrokerGroup) -> None:
        """Say of a group that is being deleted who holds it; nothing else is done to it."""
        self.facts = None
        self._rollout_turns.forget((group.namespace, group.name))
        await self._nodes.poll({})
        self._metrics.forget(group.namespace, group.name)
        after = last_status(group, now=self._clock.now())
        self._memory.at_rest = True
        if not worth_writing(group.status, after, since_write_s=float("inf")):
            return
        self._memory.at_rest = await self._write_status(group, after)
        event = departure_event(group, after)
        if self._memory.at_rest and event is not None:
            await self._post(group, event)

    async def _let_go(self, group: BrokerGroup) -> None:
        """Forget what was known of a group, and tell whose it is. Raises ApiError."""
        self.facts, self._memory = None, _Memory()
        self._rollout_turns.forget((group.namespace, group.name))
        await self._nodes.poll({})
        await self._claims.tell_elsewhere(group)

    @property
    def is_let_alone(self) -> bool:
        """Whether nobody here looks after the group: it is another's, or is being deleted."""
        return self._claims.is_elsewhere(self.group) or self.group.deleted_at != ""

    @property
    def is_ours(self) -> bool:
        """Whether this operator acts on the group: it carries its mark, and nobody else lets go."""
        return self._claims.is_ours(self.group) and self._claims.may_act

    @property
    def is_settled(self) -> bool:
        """Whether the next round is due only when a watch or a node tells something."""
        if self._claims.is_elsewhere(self.group):
            return True
        if self.group.deleted_at:
            return self._memory.at_rest
        return self._memory.at_rest and self._nodes.tell_changes

    def call_on_news(self, wake: Callable[[], None]) -> None:
        """Have *wake* called when a node tells something."""
        self._nodes.on_news = wake

    @property
    def channels(self) -> PeerChannels:
        """How the peer ports of the group's nodes are reached."""
        return self._nodes.channels

    async def close(self) -> None:
        """Close the connections to the nodes."""
        await self._nodes.close()

    def _facts(self, group: BrokerGroup, observed: Observed) -> Facts:
        """Return what follows from what is seen, and for how long already if that is too little."""
        facts, now_s = self._of(group, observed), self._clock.monotonic_s()
        facts = replace(facts, turn=self._turn(facts))
        memory = self._memory
        if facts.is_whole:
            memory.short_since_s = None
            return facts
        answering = frozenset(observed.nodes)
        is_news = not group.bootstrapped and answering != memory.answering
        memory.answering = answering
        if memory.short_since_s is None or is_news:  # pods that start answer one after the other
            memory.short_since_s = now_s
        return replace(facts, overdue=now_s - memory.short_since_s >= GRACE_S)

    def _turn(self, facts: Facts) -> str:
        """Return whom the group's rollout waits for."""
        key, has_begun = (facts.group.namespace, facts.group.name), is_begun(facts)
        found = stage(facts, self._clock.now())
        return self._rollout_turns.ask(key, found, has_begun=has_begun)

    def _of(self, group: BrokerGroup, observed: Observed) -> Facts:
        spec = accepted_spec(observed.children.values())
        kept = None if spec is None else self._parsed({**self.body, "spec": spec})
        return facts_of(group, observed, accepted=kept, now=self._clock.now())

    def _parsed(self, body: Json) -> BrokerGroup:
        return self._platform.group(body)

    def _backed_off(self, group: BrokerGroup) -> dict[Ref, str]:
        return self._backoff.active(group.generation)

    async def _observe(self, group: BrokerGroup) -> Observed:
        key = group.namespace, group.name
        pods = self._members.known_of(self._watched.pods(*key))
        own = (child for child in self._watched.children(*key) if owned(child, group))
        observed = Observed(
            children={ref_of(child): child for child in own},
            pods=pods,
            volumes={volume.name: volume for volume in self._watched.volumes(*key)},
            nodes=await self._nodes.poll(pods, everyone=self._memory.considered is not None),
            refusals=self._backed_off(group),
            recovery=await self._recovery(group),
            backups=tuple(self._watched.backups(*key)),
            operations=tuple(self._watched.operations(*key)),
        )
        observed = await self._absences.seen(
            group,
            observed,
            wanted=lambda: wanted_mounts(self._of(group, observed).group),
            afresh=self._memory.considered is not None,
        )
        now = datetime.fromisoformat(self._clock.now())
        due_at = due(group, observed.backups, now=now)
        rounds = [one for one in observed.operations if one.is_round]
        return replace(
            observed,
            disbelieved=self._nodes.disbelieved,
            due=due_at,
            round_due=round_due(group, rounds, backup_due=due_at, now=now),
            topics=await self._topics.seen(group, observed),
            certificates=await self._certificates.seen(observed),
        )

    async def _recovery(self, group: BrokerGroup) -> JobStatus | None:
        """Return the status of the Job that restores the first volume."""
        name, key = names.recovery_job(group.name), (group.namespace, group.name)
        jobs = [
            child
            for child in self._watched.children(*key)
            if ref_of(child) == ("Job", name) and owned(child, group)
        ]
        pods = [pod for job, pod in self._watched.job_pods(*key) if job == name]
        if not jobs:
            return None
        return await self._jobs.status(group, jobs[0], pods)

    async def _act(self, group: BrokerGroup, observed: Observed, action: Action) -> BrokerGroup:
        """Carry out one action; return the group with the status that is recorded afterwards."""
        log.debug("group %s/%s: %s", group.namespace, group.name, action.why)
        match action:
            case MarkRestored():
                await self._children.mark_restored(group, action)
            case RecordGroupId():
                return await self._record(group, action)
            case Bootstrap():
                await self._bootstrap(group, observed, action)
            case Forget(name, uid, kind):
                await self._cluster.forget(group, kind, name, uid=uid)
            case LabelRole(pod, role):
                await self._cluster.label_role(group, pod, role)
            case CreateTopic() | GrowTopic() | RetainTopic():
                await self._topics.act(group, observed, action)
            case GrowClaim() | ReleasePods():
                await self._children.enlarge(group, action)
            case LookAgain(wanted):
                self._memory.considered = wanted
            case _ if isinstance(action, Disruption):
                await self._disrupt(group, observed, action)
        return group

    async def _disrupt(self, group: BrokerGroup, observed: Observed, action: Disruption) -> None:
        if self._lease_s() >= RENEWED_S:
            return  # the round took long: another operator may lead by now
        if isinstance(action, DeleteTopic):
            await self._topics.delete(group, observed, action.name)
        else:
            await self._members.act(group, observed, action)

    async def _record(self, group: BrokerGroup, action: RecordGroupId) -> BrokerGroup:
        """Write the group id, if the object is still the one that the plan was made from."""
        version = self.body["metadata"]["resourceVersion"]
        recorded = {**group.status, "groupId": action.group_id}
        try:
            written = await self._cluster.write_status(group, recorded, only_if=version)
        except ApiError as error:
            if error.status != 409:
                raise
            log.info("group %s/%s: changed meanwhile; trying again", group.namespace, group.name)
            return group
        self.update(written)
        reason = EventReason.ADOPTED if action.adopted else EventReason.GROUP_ID_RECORDED
        await self._post(group, Event(reason, f"group id {action.group_id}"))
        return self._parsed(written)

    async def _bootstrap(self, group: BrokerGroup, observed: Observed, action: Bootstrap) -> None:
        try:
            pod = observed.pods[action.pod]
            await self._nodes.bootstrap(pod, action.group_id, action.members)
        except AlreadyBootstrapped:
            return  # by an earlier try whose answer was lost; the next round shows it
        except DledgerError as error:
            log.warning("group %s/%s: not founded: %s", group.namespace, group.name, error)
            return
        message = f"{action.pod} founded group {action.group_id} with {len(action.members)} members"
        await self._post(group, Event(EventReason.FOUNDED, message))

    async def _report(self, group: BrokerGroup, observed: Observed) -> bool:
        """Write the status if it changed, then post the Events that the change is worth.

        Returns whether the recorded status is up to date.
        """
        before = group.status
        facts = self._facts(group, observed)
        after = status(facts, now=self._clock.now())
        asked = facts.group.spec.replicas
        self._metrics.show(group.namespace, group.name, after, asked=asked)
        too_old_at = too_old_from(facts.group, after.get("backup") or {})
        self._metrics.backups.show(group, after, too_old_at=too_old_at)
        overdue_at = overdue_from(facts.group, after.get("compaction") or {})
        self._metrics.compaction.show(group, after, overdue_at=overdue_at)
        seen = observed.certificates
        self._metrics.show_certificates(
            group.namespace, group.name, ca=seen.authority_ends_s, peers=seen.peers_end_s
        )
        now_s = self._clock.monotonic_s()
        since_write_s = now_s - self._memory.written_at_s
        seen_every_s = self._seen_every_s()
        if not worth_writing(before, after, since_write_s=since_write_s, seen_every_s=seen_every_s):
            return not worth_writing(before, after, since_write_s=float("inf"))
        if not await self._write_status(group, after):
            return False
        self._memory.written_at_s = now_s
        for event in events(before, after):
            await self._post(group, event)
        return True

    async def _write_status(self, group: BrokerGroup, after: Manifest) -> bool:
        """Write the whole status; False if the object was changed meanwhile, or is gone."""
        # By version, too: the API server does not check the uid of a status write.
        version = self.body["metadata"]["resourceVersion"]
        try:
            written = await self._cluster.write_status(group, after, only_if=version)
        except ApiError as error:
            if error.status != 409:
                raise
            return False
        self.update(written)
        return True

    async def _post(self, group: BrokerGroup, event: Event) -> None:
        await self._cluster.post(group, event, now=self._clock.now())

    def _refuse(self, group: BrokerGroup, ref: Ref, error: str) -> None:
        self._backoff.add(ref, error, generation=group.generation)
        log.warning("group %s/%s: %s %s: %s", group.namespace, group.name, *ref, error)


def _without_managed_fields(body: Json) -> Manifest:
    """Return an object without who wrote which of its fields, which is most of it."""
    metadata = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
    manifest: Manifest = with_shared_texts({**body, "metadata": metadata})
    return manifest


def _version(body: Json) -> int:
    """Return the resourceVersion; Kubernetes numbers the writes of one object upwards."""
    text = str(body["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdigit() else 0
