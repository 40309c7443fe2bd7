"""What the nodes of one group say, asked through their Admin port, and the calls of plans.

Keeps a connection to each node and its last answer. While one leader is followed by all, only the
leader is asked most of the time; its silence or another word of it makes everybody be asked.

What runs in a pod is the user's to say, and one operator serves many: an answer has a time, a size
and a number of members, its texts and numbers have bounds, and one that contradicts itself is not
believed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from dledger.client import AdminClient, Client, TopicInfo
from dledger.common.failover import FailoverRecord
from dledger.common.status import MemberStatus, NodeStatus
from dledger.errors import DledgerError, Overloaded, Refused, Unavailable
from dledger.types import Member, NodeId
from dledger_operator.api import names
from dledger_operator.api.spec import Topic
from dledger_operator.api.texts import GROUP_ID
from dledger_operator.observed.observed import Failover, MemberView, NodeView, Pod
from dledger_operator.resources.backup import LogRange

log: Final = logging.getLogger(__name__)

STATUS_TIMEOUT_S: Final = 1.0
CALL_TIMEOUT_S: Final = 5.0
POLL_ALL_EVERY: Final = 5
"""Everybody is asked at least once in so many looks."""
TOPICS_BYTES: Final = 2 << 20
"""Longest list of topics: as many as a group may have, with names of the longest."""
LONGEST_TEXT: Final = 1024
"""What is longer is cut; no node says more of anything."""
_GREATEST_COUNT: Final = 1 << 62
_GREATEST_MS: Final = 253402300799000
"""The last second of the year 9999, in Unix milliseconds."""


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
    return Client(address, timeout_s=CALL_TIMEOUT_S, max_answer_bytes=TOPICS_BYTES)


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
        self._disbelieved: dict[str, str] = {}
        self._polls = 0

    @property
    def disbelieved(self) -> Mapping[str, str]:
        """Whose answer to the last look is not believed, by pod name, and why."""
        return dict(self._disbelieved)

    async def poll(self, pods: Mapping[str, Pod]) -> Mapping[str, NodeView]:
        """Return what each node that answers says; answers of followers may be seconds old."""
        reachable = {
            name: pod
            for name, pod in pods.items()
            if pod.ip and names.is_replica(self._group, name)
        }
        await self._forget(name for name in list(self._admins) if name not in reachable)
        leader = self._settled_leader(reachable)
        self._polls += 1
        if leader is None or self._polls % POLL_ALL_EVERY == 0:
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
        self._disbelieved.pop(pod.name, None)
        try:
            view = self._believed(pod, await admin.status())
        except DledgerError as error:
            log.debug("%s does not answer: %s", pod.name, error)
            if isinstance(error, Overloaded) or not isinstance(error, Unavailable):
                # gRPC says of an answer that is too long what a busy node would say.
                self._disbelieved[pod.name] = _cut(str(error))
            view = None
        if view is None:
            self._views.pop(pod.name, None)
        else:
            self._views[pod.name] = view

    def _believed(self, pod: Pod, said: NodeStatus) -> NodeView | None:
        """Return what a node says, if it is the one that was asked.

        Raises:
            DledgerError: It cannot be what it says.
        """
        if (said.group, said.name) == (self._group, pod.name):
            return view_of(said)
        who, group = _cut(said.name), _cut(said.group)
        log.warning("%s at %s is %r of group %r", pod.name, pod.ip, who, group)
        return None

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
            self._disbelieved.pop(name, None)
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


async def log_since(
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
    """Return what matters of a node's words, within bounds.

    Raises:
        DledgerError: They cannot be a node's: a group id that none has, or a member named twice.
    """
    if not GROUP_ID.fits(said.group_id):
        raise DledgerError(f"its group id {GROUP_ID.words}, not {_cut(said.group_id)!r}")
    members = tuple(map(_member_of, said.members))
    if min(len({row.id for row in members}), len({row.name for row in members})) < len(members):
        raise DledgerError("it names a member twice")
    return NodeView(
        node_id=_cut(said.node_id),
        group_id=said.group_id,
        role=_cut(said.role),
        term=_count(said.term),
        leader_id=_cut(said.leader_id),
        commit_index=_count(said.commit_index),
        applied_index=_count(said.applied_index),
        ready=said.ready,
        not_ready_reason=_cut(said.not_ready_reason),
        members=members,
        last_failover=_failover_of(said.last_failover) if said.last_failover else None,
        storage_used_bytes=_count(said.storage_used_bytes),
        storage_capacity_bytes=_count(said.storage_capacity_bytes),
        writes_refused_reason=_cut(said.writes_refused_reason),
        recovered_to=_count(said.recovered_to),
        feature_level=max(0, said.feature_level),
    )


def _member_of(row: MemberStatus) -> MemberView:
    return MemberView(
        id=_cut(row.member.id),
        name=_cut(row.member.name),
        role=_cut(row.role),
        match_index=_count(row.match_index),
        lag=_count(row.lag),
        connected=row.connected,
        feature_level=max(0, row.feature_level),
    )


def _failover_of(record: FailoverRecord) -> Failover:
    return Failover(
        from_id=_cut(record.from_id),
        to_id=_cut(record.to_id),
        term=_count(record.term),
        cause=_cut(record.cause),
        detected_ms=_count(record.detected_ms),
        elected_ms=_count(record.elected_ms),
        first_ack_ms=_count(record.first_ack_ms),
        at_ms=min(_count(record.at_ms), _GREATEST_MS),
    )


def _cut(text: str) -> str:
    return text[:LONGEST_TEXT]


def _count(number: int) -> int:
    """Return a count within what a status can hold, with room for sums."""
    return max(0, min(number, _GREATEST_COUNT))


def _address(pod: Pod, port: int) -> str:
    host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
    return f"{host}:{port}"
