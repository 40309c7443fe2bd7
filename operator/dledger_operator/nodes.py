"""What the nodes of one group say, asked through their Admin port, and the calls of plans.

Keeps a connection to each node and its last answer. While one leader is followed by all, only the
leader is asked most of the time; its silence or another word of it makes everybody be asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from dledger.client import AdminClient, Client, TopicInfo
from dledger.errors import DledgerError, Refused, Unavailable
from dledger.status import NodeStatus
from dledger.types import Member, NodeId
from dledger_operator import names
from dledger_operator.build.backup import LogRange
from dledger_operator.observed import Failover, MemberView, NodeView, Pod
from dledger_operator.spec import Topic

log: Final = logging.getLogger(__name__)

STATUS_TIMEOUT_S: Final = 1.0
CALL_TIMEOUT_S: Final = 5.0
EVERYBODY_EVERY: Final = 5
"""Everybody is asked at least once in so many looks."""


class Admin(Protocol):
    """What of `dledger.client.AdminClient` is needed here."""

    async def status(self) -> NodeStatus:
        """See `AdminClient.status`."""

    async def bootstrap(self, group_id: str, members: Sequence[Member]) -> None:
        """See `AdminClient.bootstrap`."""

    async def export_size(self, first_index: int = 1) -> tuple[int, int]:
        """See `AdminClient.export_size`."""

    async def close(self) -> None:
        """See `AdminClient.close`."""


class Topics(Protocol):
    """What of `dledger.client.Client` is needed here."""

    async def topics(self) -> tuple[TopicInfo, ...]:
        """See `Client.topics`."""

    async def create_topic(self, name: str, type: str = "NORMAL", queues: int = 8) -> bool:  # noqa: A002
        """See `Client.create_topic`."""

    async def close(self) -> None:
        """See `Client.close`."""


def _admin(address: str) -> Admin:
    return AdminClient(address, timeout_s=STATUS_TIMEOUT_S)


def _slow_admin(address: str) -> Admin:
    return AdminClient(address, timeout_s=CALL_TIMEOUT_S)


def _topics(address: str) -> Topics:
    return Client(address, timeout_s=CALL_TIMEOUT_S)


class Nodes:
    """The nodes of one group.

    Args:
        group: Its name; a node of another group at a reused address is not believed.
        admin: Makes a connection to a peer port, given ``host:port``.
        topics: Makes a connection to a client port, given ``host:port``.
    """

    def __init__(
        self,
        group: str,
        *,
        admin: Callable[[str], Admin] = _admin,
        topics: Callable[[str], Topics] = _topics,
    ) -> None:
        self._group = group
        self._make_admin = admin
        self._make_topics = topics
        self._admins: dict[str, tuple[str, Admin]] = {}
        self._views: dict[str, NodeView] = {}
        self._looks = 0

    async def look(self, pods: Mapping[str, Pod]) -> Mapping[str, NodeView]:
        """Return what each node that answers says; answers of followers may be seconds old."""
        reachable = {name: pod for name, pod in pods.items() if pod.ip}
        await self._forget(name for name in list(self._admins) if name not in reachable)
        leader = self._settled_leader(reachable)
        self._looks += 1
        if leader is None or self._looks % EVERYBODY_EVERY == 0:
            await self._ask(reachable.values())
        else:
            await self._ask([reachable[leader]])
            if self._settled_leader(reachable) != leader:
                await self._ask(pod for name, pod in reachable.items() if name != leader)
        return dict(self._views)

    async def bootstrap(
        self, pod: Pod, group_id: str, members: Iterable[tuple[str, str, str]]
    ) -> None:
        """Tell one node to found the group. Raises DledgerError."""
        admin = self._make_admin(_address(pod, names.PEER_PORT))
        try:
            await admin.bootstrap(
                group_id, [Member(id=NodeId(i), name=n, address=a) for i, n, a in members]
            )
        finally:
            await admin.close()

    async def topics(self, pod: Pod) -> frozenset[str]:
        """Return the names of the topics there are. Raises DledgerError."""
        client = self._make_topics(_address(pod, names.CLIENT_PORT))
        try:
            return frozenset(topic.name for topic in await client.topics())
        finally:
            await client.close()

    async def create_topic(self, pod: Pod, topic: Topic) -> bool:
        """Create a topic; False when it was there. Raises DledgerError."""
        client = self._make_topics(_address(pod, names.CLIENT_PORT))
        try:
            return await client.create_topic(topic.name, topic.type, topic.queues)
        finally:
            await client.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._forget(list(self._admins))

    async def _ask(self, pods: Iterable[Pod]) -> None:
        await asyncio.gather(*(self._ask_one(pod) for pod in pods))

    async def _ask_one(self, pod: Pod) -> None:
        admin = await self._admin_of(pod)
        try:
            said = await admin.status()
        except DledgerError as error:
            log.debug("%s does not answer: %s", pod.name, error)
            self._views.pop(pod.name, None)
            return
        if (said.group, said.name) == (self._group, pod.name):
            self._views[pod.name] = view_of(said)
        else:
            log.warning("%s at %s is %s of group %s", pod.name, pod.ip, said.name, said.group)
            self._views.pop(pod.name, None)

    async def _admin_of(self, pod: Pod) -> Admin:
        address = _address(pod, names.PEER_PORT)
        known = self._admins.get(pod.name)
        if known and known[0] == address:
            return known[1]
        await self._forget([pod.name])
        admin = self._make_admin(address)
        self._admins[pod.name] = (address, admin)
        return admin

    async def _forget(self, gone: Iterable[str]) -> None:
        for name in gone:
            self._views.pop(name, None)
            if known := self._admins.pop(name, None):
                await known[1].close()

    def _settled_leader(self, reachable: Mapping[str, Pod]) -> str | None:
        """Return the leader's name if all nodes answered and agree on who it is."""
        views = self._views
        if not views or views.keys() != reachable.keys():
            return None
        words = {(view.term, view.leader_id) for view in views.values()}
        leaders = [name for name, view in views.items() if view.role == "leader"]
        if len(words) > 1 or len(leaders) != 1:
            return None
        return leaders[0]


async def log_ahead(
    pods: Iterable[Pod], first_index: int, *, admin: Callable[[str], Admin] = _slow_admin
) -> LogRange:
    """Return how much committed log there is from *first_index* on, from the first that answers.

    Followers are asked first, as the backup itself does. A node that answers that there is no such
    range leaves the question to the backup, whose error names it.

    Raises:
        Unavailable: Nobody answers; with the last one's words.
    """
    last_error: DledgerError = Unavailable("no pod of the group has an address")
    for pod in sorted(pods, key=lambda pod: (pod.role == "leader", pod.name)):
        if not pod.ip:
            continue
        client = admin(_address(pod, names.PEER_PORT))
        try:
            last_index, size_bytes = await client.export_size(first_index)
        except Refused as error:
            log.info("%s does not plan an export: %s", pod.name, error)
            return LogRange()
        except DledgerError as error:
            last_error = error
        else:
            return LogRange(last_index=last_index, size_bytes=size_bytes)
        finally:
            await client.close()
    raise Unavailable(str(last_error))


def view_of(said: NodeStatus) -> NodeView:
    """Return what matters of a node's words."""
    failover = said.last_failover
    return NodeView(
        node_id=said.node_id,
        group_id=said.group_id,
        role=said.role,
        term=said.term,
        leader_id=said.leader_id,
        commit_index=said.commit_index,
        applied_index=said.applied_index,
        ready=said.ready,
        not_ready_reason=said.not_ready_reason,
        members=tuple(
            MemberView(
                id=row.member.id,
                name=row.member.name,
                role=row.role,
                match_index=row.match_index,
                lag=row.lag,
                connected=row.connected,
                feature_level=row.feature_level,
            )
            for row in said.members
        ),
        last_failover=None
        if failover is None
        else Failover(
            from_id=failover.from_id,
            to_id=failover.to_id,
            term=failover.term,
            cause=failover.cause,
            detected_ms=failover.detected_ms,
            elected_ms=failover.elected_ms,
            first_ack_ms=failover.first_ack_ms,
            at_ms=failover.at_ms,
        ),
        storage_used_bytes=said.storage_used_bytes,
        storage_capacity_bytes=said.storage_capacity_bytes,
        writes_refused_reason=said.writes_refused_reason,
        recovered_to=said.recovered_to,
        feature_level=said.feature_level,
    )


def _address(pod: Pod, port: int) -> str:
    host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
    return f"{host}:{port}"
