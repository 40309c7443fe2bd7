"""Topics, groups and filters: found in the state, or put there through the log if allowed."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Hashable
from typing import Final

from dledger.broker.commands import SECRET_BYTES, CreateGroup, CreateTopic, SetSecret, UseFilter
from dledger.broker.state_changes import StateChanges
from dledger.broker.topics import NORMAL, Topic
from dledger.checks.names import check_may_be_made, check_name
from dledger.common.token_bucket import TokenBucket
from dledger.errors import FilterInUse, InvalidArgument, RateLimited, UnknownTopic
from dledger.requests.config import RequestConfig
from dledger.requests.engine import Engine

_HOUR_MS: Final = 3_600_000
IN_USE_S: Final = 120.0
"""How long a topic counts as used since a client last named it: a poll takes 20 s and more."""


def use_is_said_ms(group_retention_hours: int) -> int:
    """Return how old a group's last use in the log may be before a poll says it again.

    An hour, and a quarter of the time after which an unused group is deleted at most: a poll may be
    a minute away, the leader may change, and its look comes once a minute.
    """
    return min(_HOUR_MS, group_retention_hours * _HOUR_MS // 4 or _HOUR_MS)


class TopicResolver:
    """Finds topics and groups in the leader's state. Call it on the leader only.

    Creation on first use is rate-limited. Client ids are not authenticated, so all clients share
    one budget for topics and one for groups. Explicit creation is not limited; see
    docs/security.md.

    Attributes:
        auto_creates: Whether topics are made when first used; may change at any time.
        group_retention_hours: How long a group is kept that nobody uses; likewise.
        retention_hours: How long messages are kept, if their topic says nothing; likewise.
    """

    def __init__(self, engine: Engine, config: RequestConfig) -> None:
        self._engine, self._config = engine, config
        self.auto_creates = config.auto_create_topics
        self.group_retention_hours = config.group_retention_hours
        self.retention_hours = config.retention_hours
        self._used_s: dict[str, float] = {}
        self._creating: dict[tuple[str, Hashable], asyncio.Task[object]] = {}
        self._budgets = {
            what: TokenBucket(at_once=config.made_at_once, per_s=config.made_per_s)
            for what in ("topic", "group")
        }

    def check_retention(self, topic: str, hours: int | None) -> None:
        """Raise InvalidArgument if a topic cannot keep its messages for so long; 0: for ever."""
        least = self.retention_hours
        if hours is not None and hours != 0 and (least == 0 or hours < least):
            its = f"for {least} hours" if least else "for ever"
            raise InvalidArgument(
                f"topic {topic!r} cannot keep its messages for {hours} hours: the group keeps all "
                f"{its} (retention.hours), in one log; set that lower, and more for other topics"
            )

    async def topic(self, name: str, *, kind: str = NORMAL.name) -> Topic:
        """Return a topic, creating it if need be.

        Messages of another *kind* than NORMAL may not make one: it would stay NORMAL.

        Raises:
            UnknownTopic: It does not exist, and is not created on demand.
            RateLimited: It does not exist, and too many were created on demand just now.
            LimitReached: It does not exist, and the group has the maximum number already.
        """
        topics = self._engine.state.topics
        found = topics.get(name)
        is_normal = kind == NORMAL.name
        if found is None and self.auto_creates and is_normal:
            check_may_be_made(name)
            command = CreateTopic(name=name, type=NORMAL.name, queues=self._config.default_queues)
            await self._make("topic", name, command.encode(), lambda: topics.get(name) is not None)
            found = self._engine.state.topics.get(name)
        if found is None:
            raise UnknownTopic(name, node=self._own_address(), kind="" if is_normal else kind)
        self._used_s[name] = time.monotonic()
        return found

    def _own_address(self) -> str:
        """Return this node's client port, as clients are told it."""
        own = (e for e in self._engine.endpoints() if e.node_id == self._engine.node_id)
        return next((f"{each.host}:{each.port}" for each in own), "HOST:PORT")

    def is_in_use(self, topic: str) -> bool:
        """Whether a client sent to a topic, or asked for its messages or routes, lately."""
        used_s = self._used_s.get(topic)
        return used_s is not None and time.monotonic() - used_s < IN_USE_S

    @property
    def made_again_queues(self) -> int:
        """How many queues a topic gets that is made on its first use; 0: none is."""
        return self._config.default_queues if self.auto_creates else 0

    def notify(self, changes: StateChanges) -> None:
        """Forget the use of topics that were deleted."""
        for topic, _ in changes.topics_gone:
            self._used_s.pop(topic, None)

    async def group(self, name: str) -> None:
        """Ensure that a consumer group exists, creating it if need be.

        An unused group is deleted eventually. Reading an empty topic writes nothing to the log, so
        this records there now and then that the group is in use.

        Raises:
            RateLimited: It does not exist, and too many were created on demand just now.
            LimitReached: It does not exist, and the group has the maximum number already.
        """
        groups = self._engine.state.groups
        within_ms = use_is_said_ms(self.group_retention_hours)
        if groups.was_used(name, self._engine.now_ms(), within_ms=within_ms):
            return
        command = CreateGroup(name=name).encode()
        if groups.exists(name):
            await self._propose("group", name, command)
        else:
            await self._make("group", name, command, lambda: groups.exists(name))

    async def use_filter(self, group: str, topic: str, tags: tuple[str, ...] | None) -> None:
        """Ensure, before a poll waits, that the log has the use of its filter.

        What a group's other filters pass over is kept for a filter that is in use. A poll that
        finds nothing writes nothing to the log; so the first one with a filter is recorded, and
        now and then another if the group has several filters for this topic.

        Raises:
            LimitReached: The filter is new, and there are too many.
            UnknownTopic, UnknownGroup: The topic or group was deleted meanwhile.
        """
        if self._engine.state.groups.is_filter_said(group, topic, tags, self._engine.now_ms()):
            return
        command = UseFilter(group=group, topic=topic, tags=tags).encode()
        await self._propose("filter", (group, topic, tags), command)

    async def use_expression(self, group: str, topic: str, sql: str) -> None:
        """Ensure the same of an SQL92 expression, and that it is served.

        Raises:
            FilterInUse: The group asks for the topic with another filter.
            LimitReached: It is new, and there are too many filters.
            UnknownTopic, UnknownGroup: The topic or group was deleted meanwhile.
        """
        groups = self._engine.state.groups
        if not groups.is_expression_said(group, topic, sql, self._engine.now_ms()):
            command = UseFilter(group=group, topic=topic, sql=sql).encode()
            await self._propose("filter", (group, topic, sql), command)
        if (other := self._engine.state.groups.filter_beside(group, topic, sql)) is not None:
            raise FilterInUse.of(other)

    async def secret(self) -> bytes:
        """Return the secret that signs receipt handles, creating it if there is none yet."""
        if not self._engine.state.secret:
            drawn = SetSecret(secret=secrets.token_bytes(SECRET_BYTES))
            await self._propose("secret", "", drawn.encode())
        return self._engine.state.secret

    async def _make(self, what: str, name: str, command: bytes, exists: Callable[[], bool]) -> None:
        """Create what a client has named, if the rate limit allows it."""
        check_name(what, name)
        endpoint = self._own_address() if what == "topic" else "HOST:20911"
        now_s = asyncio.get_running_loop().time()
        if (what, name) not in self._creating and not self._budgets[what].take(now_s):
            raise RateLimited(
                f"{what} {name!r} does not exist, and {self._config.made_at_once} {what}s at once, "
                f"then {self._config.made_per_s:g} a second, are created on their first use: "
                f"create it with `dledger {what} create {name} --endpoint {endpoint}`, or try "
                "again later"
            )
        try:
            await self._propose(what, name, command)
        except InvalidArgument:
            if not exists():  # another request created it with other settings, which is fine
                raise

    async def _propose(self, what: str, name: Hashable, command: bytes) -> None:
        """Propose *command* once, however many concurrent requests need it."""
        task = self._creating.get((what, name))
        if task is None:
            task = asyncio.ensure_future(self._engine.propose(command))
            self._creating[what, name] = task
            task.add_done_callback(lambda done: self._created((what, name), done))
        await asyncio.shield(task)

    def _created(self, key: tuple[str, Hashable], done: asyncio.Task[object]) -> None:
        self._creating.pop(key, None)
        if not done.cancelled():
            done.exception()  # mark it retrieved: all requests that would raise it may be gone
