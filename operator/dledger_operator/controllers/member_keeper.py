"""The members of one group: carries out a plan's disruptions, and tells what came of them.

Used by the group's Reconciler.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Final, assert_never

from dledger.errors import DledgerError, InvalidArgument, Refused
from dledger.types import Member, NodeId
from dledger_operator.api.reasons import EventReason
from dledger_operator.api.spec import BrokerGroup
from dledger_operator.cluster.api import ApiError
from dledger_operator.cluster.cluster import Cluster
from dledger_operator.cluster.nodes import LONGEST_TEXT, Nodes
from dledger_operator.decisions.disruptions import (
    AddMember,
    ForceGroup,
    MemberDisruption,
    RemoveMember,
    ReplaceClaim,
    ReplaceMember,
    RestartPod,
    RetirePods,
    TransferLeader,
)
from dledger_operator.observed.observed import Observed, Pod, Ref
from dledger_operator.status.status import Event

log: Final = logging.getLogger(__name__)


class MemberKeeper:
    """Changes a group's members; what it remembers may be lost, and is then not told.

    Args:
        cluster: Deletes pods.
        nodes: Those of the group.
        post: Posts an Event on the group.
        refuse: Notes what failed and is not tried again at once.
    """

    def __init__(
        self,
        cluster: Cluster,
        nodes: Nodes,
        *,
        post: Callable[[BrokerGroup, Event], Awaitable[None]],
        refuse: Callable[[BrokerGroup, Ref, str], None],
    ) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._post = post
        self._refuse = refuse
        self._asked: MemberDisruption | None = None
        self._ended: set[str] = set()

    def known_of(self, pods: Iterable[Pod]) -> dict[str, Pod]:
        """Return pods by name, with those that were deleted here, which a watch shows later."""
        shown = list(pods)
        self._ended &= {pod.uid for pod in shown}
        return {
            pod.name: replace(pod, terminating=True) if pod.uid in self._ended else pod
            for pod in shown
        }

    async def act(self, group: BrokerGroup, observed: Observed, action: MemberDisruption) -> None:
        """Carry out an action; what came of it is seen in later rounds, also if the answer is lost.

        Raises:
            ApiError: The API server does not answer.
        """
        log.info("group %s/%s: %s", group.namespace, group.name, action.why)
        self._asked = action
        try:
            await self._do(group, observed, action)
        except (Refused, InvalidArgument) as error:
            self._refuse(group, ("Member", _name(action)), str(error)[:LONGEST_TEXT])
        except ApiError as error:
            if not error.refused:
                raise
            self._refuse(group, ("Member", _name(action)), str(error)[:LONGEST_TEXT])
        except DledgerError as error:
            who = group.namespace, group.name, action.why
            log.warning("group %s/%s: %s: not done yet: %s", *who, error)

    async def tell(self, group: BrokerGroup, observed: Observed) -> None:
        """Post the Event of what was asked for, once it is seen."""
        asked = self._asked
        if asked is None:
            return
        ids = {str(row.member.id) for row in observed.membership}
        told = _told(asked, ids)
        if told is not None:
            self._asked = None
            await self._post(group, told)

    async def _do(self, group: BrokerGroup, observed: Observed, action: MemberDisruption) -> None:
        match action:
            case ReplaceMember() | AddMember():
                new = Member(id=NodeId(action.member_id), name=action.pod, address=action.address)
                old = (action.old_id,) if isinstance(action, ReplaceMember) else ()
                leader = observed.pods[action.leader]
                await self._nodes.change_members(leader, add=(new,), remove=old)
            case RemoveMember():
                await self._remove(group, observed, action)
            case RetirePods():
                name = action.stateful_set
                await self._cluster.retire_pods(group, name, uid=action.uid, pods=action.pods)
            case TransferLeader():
                leader = observed.pods[action.leader]
                taker = await self._nodes.transfer_leader(leader, action.to_id)
                name = observed.member_names.get(taker, taker)
                said = f"{action.leader} handed over to {name}: {action.reason}"
                await self._post(group, Event(EventReason.LEADER_TRANSFERRED, said))
            case RestartPod():
                if await self._cluster.restart_pod(group, action.pod, uid=action.uid):
                    self._ended.add(action.uid)
                    await self._post(group, Event(EventReason.POD_RESTARTED, action.why))
            case ReplaceClaim():
                await self._replace_claim(group, action)
            case ForceGroup():
                await self._nodes.force_new_group(
                    observed.pods[action.pod],
                    action.group_id,
                    action.member_id,
                    last_term=action.last_term,
                    last_index=action.last_index,
                )
                said = f"{action.why}; all other members are removed for good"
                await self._post(group, Event(EventReason.GROUP_FORCED, said, warning=True))
            case unknown:
                assert_never(unknown)

    async def _remove(self, group: BrokerGroup, observed: Observed, action: RemoveMember) -> None:
        """Mark the claim, whose disk can then never be taken for a member's, and only then ask."""
        if action.claim and not await self._cluster.mark_removed(
            group, action.claim, uid=action.claim_uid, node_id=action.member_id
        ):
            return
        leader = observed.pods[action.leader]
        await self._nodes.change_members(leader, remove=(action.member_id,))

    async def _replace_claim(self, group: BrokerGroup, action: ReplaceClaim) -> None:
        who = action.pod, action.pod_uid
        if await self._cluster.replace_claim(
            group, action.claim, uid=action.uid, pod=who[0], pod_uid=who[1]
        ):
            self._ended.add(action.pod_uid)
            kept = f"volume {action.volume or '(none)'} is what it was bound to"
            said = f"{action.claim} of {action.pod} was deleted, to be made anew; {kept}"
            await self._post(group, Event(EventReason.CLAIM_REPLACED, said))


def _name(action: MemberDisruption) -> str:
    return action.leader if isinstance(action, TransferLeader) else action.pod


def _told(asked: MemberDisruption, ids: set[str]) -> Event | None:
    """Return what to tell of a change of the members, if these node ids show that it is done."""
    match asked:
        case ReplaceMember() if asked.member_id in ids and asked.old_id not in ids:
            message = f"{asked.pod}: node {asked.member_id} took the place of {asked.old_id}"
            return Event(EventReason.MEMBER_REPLACED, message)
        case AddMember() if asked.member_id in ids:
            message = f"{asked.pod}: node {asked.member_id} joined, and catches up"
            return Event(EventReason.MEMBER_ADDED, message)
        case RemoveMember() if ids and asked.member_id not in ids:
            message = f"{asked.pod}: node {asked.member_id} left, and can never return"
            return Event(EventReason.MEMBER_REMOVED, message)
    return None
