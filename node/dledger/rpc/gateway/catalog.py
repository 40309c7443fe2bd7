"""Topics and groups on demand: found in the state, or created through the log if allowed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from dledger.broker.commands import CreateGroup, CreateTopic
from dledger.broker.topics import NORMAL, Topic
from dledger.errors import InvalidArgument, UnknownGroup, UnknownTopic
from dledger.rpc.engine import Engine
from dledger.rpc.gateway.config import GatewayConfig

_USE_IS_SAID_MS: Final = 3_600_000


class Catalog:
    """What exists, as far as the leader's state says. Call it on the leader only."""

    def __init__(self, engine: Engine, config: GatewayConfig) -> None:
        self._engine, self._config = engine, config
        self._creating: dict[bytes, asyncio.Task[object]] = {}

    async def topic(self, name: str) -> Topic:
        """Return a topic, creating it if need be.

        Raises:
            UnknownTopic: It does not exist, and topics are not created on demand.
        """
        found = self._engine.state.topics.get(name)
        if found is None and self._config.auto_create:
            command = CreateTopic(name=name, type=NORMAL, queues=self._config.default_queues)
            await self._create(
                command.encode(), lambda: self._engine.state.topics.get(name) is not None
            )
            found = self._engine.state.topics.get(name)
        if found is None:
            raise UnknownTopic(name)
        return found

    async def group(self, name: str) -> None:
        """Return when a consumer group exists, creating it if need be.

        A group that nobody uses is let go some day. A reader of an empty topic leaves no trace in
        the log, so it is said there once in a while that the group is in use.

        Raises:
            UnknownGroup: It does not exist, and groups are not created on demand.
        """
        groups = self._engine.state.groups
        if groups.was_used(name, self._engine.now_ms(), within_ms=_USE_IS_SAID_MS):
            return
        if not (groups.exists(name) or self._config.auto_create):
            raise UnknownGroup(name)
        await self._create(
            CreateGroup(name=name).encode(), lambda: self._engine.state.groups.exists(name)
        )

    async def _create(self, command: bytes, exists: Callable[[], bool]) -> None:
        """Propose *command* once, however many requests ask for it at the same time."""
        task = self._creating.get(command)
        if task is None:
            task = asyncio.ensure_future(self._engine.propose(command))
            self._creating[command] = task
            task.add_done_callback(lambda done: self._created(command, done))
        try:
            await asyncio.shield(task)
        except InvalidArgument:
            if not exists():  # someone else made it with other settings, which is as good
                raise

    def _created(self, command: bytes, done: asyncio.Task[object]) -> None:
        self._creating.pop(command, None)
        if not done.cancelled():
            done.exception()  # those who wait for it raise it; there may be none any more
