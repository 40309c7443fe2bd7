"""The nodes of one group: their statuses, and the calls that plans ask for, over gRPC.

Keeps a connection to each node and its last word. Nodes tell what changes over a stream
(`status_streams`), the leader also that nothing does; while it finds the others connected, they are
asked once a minute. Nodes that are too old for that are asked instead: mostly only the leader, all
when it is silent or its answer changes.

A group's user decides what runs in its pods, and one operator serves many groups: an answer has a
time limit and a size limit, its texts and numbers have bounds, and one that contradicts itself is
not believed. Called by the reconcilers.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final

from dledger.client import AdminClient, Client, Compaction, TopicInfo
from dledger.common.status import CLOCK_APART_MS, NodeStatus, without_counters
from dledger.errors import DledgerError, Overloaded, Refused, Unavailable
from dledger.types import Member, NodeId
from dledger_operator.api import names
from dledger_operator.api.spec import Topic
from dledger_operator.api.texts import GROUP_ID
from dledger_operator.cluster.peer_channels import Credentials, PeerChannels
from dledger_operator.cluster.status_streams import StatusStreams
from dledger_operator.decisions.compacting import asked_compaction
from dledger_operator.observed.observed import CompactionSeen, Pod, TopicSeen
from dledger_operator.resources.log_job import LogRange

log: Final = logging.getLogger(__name__)

STATUS_TIMEOUT_S: Final = 1.0
"""Nodes answer from memory, in milliseconds; one that takes longer counts as silent this round."""
MOST_ASKED: Final = 256
"""So many nodes are asked at the same time. All of hundreds of groups, if their streams break
together, could not answer within a second; fewer would let silent ones hold up the others."""
CALL_TIMEOUT_S: Final = 5.0
"""Creating or growing a topic takes a commit, and planning an export reads index files."""
FORCE_TIMEOUT_S: Final = 15.0
"""A survivor asks every other member first, and waits for silent ones."""
POLL_ALL_EVERY: Final = 5
"""All nodes are asked at least once in so many rounds, since followers answer for themselves."""
ASK_ALL_S: Final = 60.0
"""Where all nodes tell what changes, each is asked about this often nevertheless."""
TOPICS_BYTES: Final = 2 << 20
"""Longest list of topics: 10,000, the most a group may have, with names of the greatest length."""
LONGEST_TEXT: Final = 1024
"""Longer texts are cut; no field of a real node's answer is longer."""
_GREATEST_COUNT: Final = 1 << 62
_LONG_MS: Final = 60_000
"""A number of a status has 64 bits; half of that leaves room for sums of two."""


def _topics(address: str) -> Client:
    return Client(address, timeout_s=CALL_TIMEOUT_S, max_answer_bytes=TOPICS_BYTES)


_Way = tuple[str, Credentials | None, bool]
"""How a node is reached: its address, the credentials, and whether it is asked in plain text."""


class Nodes:
    """The nodes of one group.

    Args:
        group: Its name; a node of another group at a reused address is not believed.
        admin: Makes a connection in plain text to a peer port, given ``host:port``.
        topics: Makes a connection to a client port, given ``host:port``.
        asking: Held while a node is asked for its status; shared by all groups.
        monotonic_s: The clock that answers get their age from.
    """

    def __init__(
        self,
        group: str,
        *,
        asking: asyncio.Semaphore | None = None,
        admin: Callable[[str], AdminClient] | None = None,
        topics: Callable[[str], Client] = _topics,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group = group
        self._asking = asking or asyncio.Semaphore(MOST_ASKED)
        self.channels = PeerChannels(admin)
        self._make_topics = topics
        self._monotonic_s = monotonic_s
        self._seen_at_s: dict[str, float] = {}
        self._admins: dict[str, tuple[_Way, AdminClient]] = {}
        self._views: dict[str, NodeStatus] = {}
        self._disbelieved: dict[str, str] = {}
        self._over_tls: set[str] = set()
        self._polls = 0
        self._asked_all_s = float("-inf")
        # Groups that began together would ask all their nodes together, for ever.
        self._ask_all_s = ASK_ALL_S * random.uniform(0.75, 1.25)
        self._streams = StatusStreams(heard=self._hear, ended=self._miss, monotonic_s=monotonic_s)
        self.on_news: Callable[[], None] = lambda: None
        """Called when a node tells something new, or its stream breaks."""

    @property
    def tell_changes(self) -> bool:
        """Whether every node that was seen last tells what changes, a leader among them."""
        leads = any(view.role == "leader" for view in self._views.values())
        return leads and all(map(self._streams.tells, self._admins))

    @property
    def disbelieved(self) -> Mapping[str, str]:
        """Whose last answer is not believed, by pod name, and why."""
        return dict(self._disbelieved)

    def oldest_answer_s(self) -> float:
        """Return the age of the oldest answer that `poll` returned: since its node was asked."""
        now_s = self._monotonic_s()
        return max((now_s - self._seen_at_s[name] for name in self._views), default=float("inf"))

    async def poll(
        self, pods: Mapping[str, Pod], *, everyone: bool = False
    ) -> Mapping[str, NodeStatus]:
        """Return the status of each node that answers.

        Those of followers may be seconds old, unless *everyone* is to be asked.
        """
        reachable = {
            name: pod
            for name, pod in pods.items()
            if pod.ip and names.is_replica(self._group, name)
        }
        known = self._admins.items()
        await self._forget(
            name
            for name, (way, _) in list(known)
            if name not in reachable or way != self._way(reachable[name])
        )
        leader = self._settled_leader(reachable)
        self._polls += 1
        if everyone or leader is None or self._is_time_for_all():
            await self._ask(reachable.values())
            self._asked_all_s = self._monotonic_s()
        else:
            doubted = self._doubted(leader)
            await self._ask(reachable[name] for name in doubted)
            if self._settled_leader(reachable) != leader:
                await self._ask(pod for name, pod in reachable.items() if name not in doubted)
        for name in self._views:
            self._streams.open(name, self._admins[name][1])
        return dict(self._views)

    def _is_time_for_all(self) -> bool:
        if self.tell_changes:
            return self._monotonic_s() - self._asked_all_s >= self._ask_all_s
        return self._polls % POLL_ALL_EVERY == 0

    def _doubted(self, leader: str) -> list[str]:
        """Return whose last word does not stand: the leader's without a stream, and by its word."""
        apart = {row.member.name for row in self._views[leader].members if not row.connected}
        is_heard = self._streams.tells(leader)
        return [name for name in self._views if name in apart or (name == leader and not is_heard)]

    async def bootstrap(
        self, pod: Pod, group_id: str, members: Iterable[tuple[str, str, str]]
    ) -> None:
        """Tell one node to found the group. Raises DledgerError."""
        async with self._connection(pod, STATUS_TIMEOUT_S) as admin:
            await admin.bootstrap(
                group_id, [Member(id=NodeId(i), name=n, address=a) for i, n, a in members]
            )

    async def change_members(
        self, pod: Pod, *, add: Sequence[Member] = (), remove: Sequence[str] = ()
    ) -> None:
        """Have the leader, which is *pod*, add and remove members at once. Raises DledgerError."""
        async with self._connection(pod, CALL_TIMEOUT_S) as admin:
            await admin.change_members(add=add, remove=remove)

    async def transfer_leader(self, pod: Pod, target_id: str) -> str:
        """Have the leader, which is *pod*, hand over; return the new leader's node id.

        An empty *target_id* lets it choose. Raises DledgerError.
        """
        async with self._connection(pod, CALL_TIMEOUT_S) as admin:
            return await admin.transfer_leader(target_id)

    async def force_new_group(
        self, pod: Pod, group_id: str, node_id: str, *, last_term: int, last_index: int
    ) -> None:
        """Make one node the only member of its group. Raises DledgerError."""
        async with self._connection(pod, FORCE_TIMEOUT_S) as admin:
            await admin.force_new_group(
                *(group_id, node_id), expected_last_term=last_term, expected_last_index=last_index
            )

    async def topics(self, pod: Pod) -> Mapping[str, TopicSeen]:
        """Return all topics by name. Raises DledgerError."""
        async with self._make_topics(_address(pod, names.CLIENT_PORT)) as client:
            found = await client.topics()
            return {one.name: _topic_seen(one) for one in found}

    async def create_topic(self, pod: Pod, topic: Topic) -> bool:
        """Create a topic; False if it existed. Raises DledgerError."""
        async with self._make_topics(_address(pod, names.CLIENT_PORT)) as client:
            return await client.create_topic(
                topic.name, topic.type, topic.queues, compaction=_to_compaction(topic)
            )

    async def grow_topic(self, pod: Pod, name: str, queues: int) -> int:
        """Give a topic so many queues in all; return how many it had. Raises DledgerError."""
        async with self._connection(pod, CALL_TIMEOUT_S) as admin:
            return await admin.grow_topic(name, queues)

    async def set_topic_retention(self, pod: Pod, name: str, hours: int | None) -> int | None:
        """Keep a topic's messages so long, 0: for ever, None: as the group's; return what it was.

        Raises DledgerError.
        """
        async with self._connection(pod, CALL_TIMEOUT_S) as admin:
            return await admin.set_topic_retention(name, hours)

    async def delete_topic(self, pod: Pod, name: str) -> int:
        """Delete a topic; return how many messages went with it.

        Raises:
            UnknownTopic: There is none, also if an earlier call whose answer was lost deleted it.
            DledgerError: It was not done.
        """
        async with self._connection(pod, CALL_TIMEOUT_S) as admin:
            return await admin.delete_topic(await admin.describe_topic(name))

    @property
    def over_tls(self) -> frozenset[str]:
        """The pods whose last answer came over TLS, so from a node that proved its name."""
        return frozenset(self._views.keys() & self._over_tls)

    async def close(self) -> None:
        """Close all connections."""
        await self._forget(list(self._admins))

    async def _ask(self, pods: Iterable[Pod]) -> None:
        await asyncio.gather(*(self._ask_in_turn(pod) for pod in pods))

    async def _ask_in_turn(self, pod: Pod) -> None:
        async with self._asking:
            await self._ask_one(pod)

    async def _ask_one(self, pod: Pod) -> None:
        await self.channels.look(_address(pod, names.PEER_PORT), pod.name)
        admin = await self._admin_of(pod)
        self._disbelieved.pop(pod.name, None)
        asked_s = self._monotonic_s()
        try:
            view = self._believed(pod.name, await admin.status())
        except DledgerError as error:
            log.debug("%s does not answer: %s", pod.name, error)
            if isinstance(error, Overloaded) or not isinstance(error, Unavailable):
                # gRPC reports an answer that is too long with the code of a busy node.
                self._disbelieved[pod.name] = _cut(str(error))
            view = None
        if view is None:
            self._views.pop(pod.name, None)
            await self._streams.close([pod.name])
        elif pod.name not in self._views or self._seen_at_s[pod.name] <= asked_s:
            # Else its stream told something meanwhile, which may be the newer of the two.
            self._take(pod.name, view, asked_s)

    def _take(self, name: str, view: NodeStatus, at_s: float) -> None:
        self._views[name] = view
        self._over_tls -= {name}
        self._over_tls |= set() if self.channels.is_plain(name) else {name}
        self._seen_at_s[name] = at_s

    def _hear(self, name: str, said: NodeStatus | None) -> None:
        """Take a word of a node's stream. Raises DledgerError if it cannot be a node's."""
        known, now_s = self._views.get(name), self._monotonic_s()
        if known is None:
            raise Unavailable(f"{name} does not answer otherwise")
        if said is None:
            self._seen_at_s[name] = now_s
            return
        try:
            view = self._believed(name, said)
        except DledgerError as error:
            self._disbelieved[name] = _cut(str(error))
            raise
        if view is None:
            raise Unavailable(f"{name} is another node")
        self._take(name, view, now_s)
        if without_counters(view) != without_counters(known):
            self.on_news()

    def _miss(self, name: str) -> None:
        """Stop believing a node whose stream broke, until it answers."""
        self._views.pop(name, None)
        self.on_news()

    def _believed(self, name: str, said: NodeStatus) -> NodeStatus | None:
        """Return a node's status within bounds; None if another node than that of *name* spoke.

        Raises:
            DledgerError: It cannot be a node's.
        """
        if (said.group, said.name) == (self._group, name):
            return bounded(said)
        log.warning("%s is %r of group %r", name, _cut(said.name), _cut(said.group))
        return None

    def _way(self, pod: Pod) -> _Way:
        address = _address(pod, names.PEER_PORT)
        return address, self.channels.credentials, self.channels.is_plain(pod.name)

    async def _admin_of(self, pod: Pod) -> AdminClient:
        way = self._way(pod)
        known = self._admins.get(pod.name)
        if known and known[0] == way:
            return known[1]
        await self._forget([pod.name])
        admin = self._connection(pod, STATUS_TIMEOUT_S)
        self._admins[pod.name] = (way, admin)
        return admin

    def _connection(self, pod: Pod, timeout_s: float) -> AdminClient:
        address = _address(pod, names.PEER_PORT)
        return self.channels.connect(address, pod.name, timeout_s=timeout_s)

    async def _forget(self, gone: Iterable[str]) -> None:
        gone = list(gone)
        await self._streams.close(gone)
        for name in gone:
            self._streams.forget(name)
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
    pods: Iterable[Pod],
    first_index: int,
    *,
    admin: Callable[[str], AdminClient] | None = None,
    channels: PeerChannels | None = None,
) -> LogRange:
    """Return how much committed log there is from *first_index* on, as the first node says.

    Followers are asked first, as by the backup itself. A node that has dropped entries behind
    *first_index* says how much it has: the backup copies that, with a base before it. One that
    refuses that, too, leaves it to the backup, which reports it with its own error.

    Raises:
        Unavailable: No node answers; with the last one's error.
    """
    channels = channels or PeerChannels(admin)
    last_error: DledgerError = Unavailable("no pod of the group has an address")
    for pod in sorted(pods, key=lambda pod: (pod.role == "leader", pod.name)):
        if not pod.ip:
            continue
        address = _address(pod, names.PEER_PORT)
        await channels.look(address, pod.name)
        client = channels.connect(address, pod.name, timeout_s=CALL_TIMEOUT_S)
        try:
            last_index, size_bytes = await _export_size(client, first_index)
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


async def _export_size(client: AdminClient, first_index: int) -> tuple[int, int]:
    """Return the last index and the bytes up to it, of all that is kept if the range is not."""
    try:
        return await client.export_size(first_index)
    except Refused:
        return await client.export_size(0)


def bounded(said: NodeStatus) -> NodeStatus:
    """Return what a node says with its texts cut and its numbers within what a status can hold.

    Raises:
        DledgerError: It cannot be a node's: a group id that none has, or a member named twice.
    """
    if not GROUP_ID.fits(said.group_id):
        raise DledgerError(f"its group id {GROUP_ID.words}, not {_cut(said.group_id)!r}")
    within: NodeStatus = _bounded(said)
    # While a member is replaced, its old node votes still and its new one learns under one name.
    ids = {row.member.id for row in within.members}
    roles = {(row.member.name, row.voter) for row in within.members}
    if min(len(ids), len(roles)) < len(within.members):
        raise DledgerError("it names a member twice")
    # What moves by itself would be news each second.
    return replace(
        within,
        commit_waits_ms=0,
        log_ahead_ms=0,
        clock_ahead_ms=_coarse(within.clock_ahead_ms),
        clock_behind_ms=_coarse(within.clock_behind_ms),
    )


def _coarse(apart_ms: int) -> int:
    """Return how far a clock is apart, in steps that drift takes seldom; 0 if it is not."""
    step_ms = 2 * CLOCK_APART_MS if apart_ms < _LONG_MS else _LONG_MS
    return 0 if apart_ms <= CLOCK_APART_MS else max(apart_ms // step_ms * step_ms, step_ms)


def _bounded(value: Any) -> Any:
    """Return a text, a number, or a frozen value of such, within bounds."""
    if isinstance(value, str):
        return _cut(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return max(0, min(value, _GREATEST_COUNT))
    if isinstance(value, tuple):
        return tuple(map(_bounded, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _bounded(getattr(value, f.name)) for f in fields(value)})
    return value


def _cut(text: str) -> str:
    return text[:LONGEST_TEXT]


def _to_compaction(topic: Topic) -> Compaction | None:
    asked = asked_compaction(topic)
    return asked and Compaction(min_lag_ms=asked.min_lag_ms, tombstone_ms=asked.tombstone_ms)


def _topic_seen(one: TopicInfo) -> TopicSeen:
    said = one.compaction
    compaction = CompactionSeen(said.min_lag_ms, said.tombstone_ms) if said else None
    return TopicSeen(_cut(one.type), one.queues, one.retention_hours, compaction)


def _address(pod: Pod, port: int) -> str:
    host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
    return f"{host}:{port}"
