"""Odd messages beside good ones: each good one arrives, whatever lies next to it.

Another program sends by hand-made requests what its own library would not: what a door refuses, and
what it takes. And a log has what doors of versions before took. Then each client reads all of it,
by push and by polls, and gets 100 of 100 good messages of either.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc.aio

from dledger.client import Client
from dledger.rpc.rocketmq_stubs import SERVICE_NAME, definition, service
from e2e.clients.poisons import LARGE, ODD, OLD_COUNT, OLD_LARGE, PACKED, REFUSED, old_commands
from e2e.clients.stage import QUEUES, CaseFailed, Stage, TlsGroup, User
from e2e.harness import old_log
from e2e.harness.dev_group import DevGroup, running
from e2e.harness.ports import free_port_range
from e2e.harness.rocketmq_calls import channel_to
from e2e.harness.waiting import came_true

GOOD: Final[Sequence[str]] = [f"good {number}" for number in range(100)]
_ARRIVE_S: Final = 90.0
_SHOWN_BYTES: Final = 64


@asynccontextmanager
async def with_old_log(work: Path, languages: Iterable[str]) -> AsyncIterator[TlsGroup]:
    """Run a group whose log has poison from before, in a topic for each language."""
    topics = [old_topic(language) for language in languages]
    async with running(work / "group", ()) as begun:
        async with Client(begun.endpoints[0], timeout_s=60.0) as client:
            for topic in topics:
                await client.create_topic(topic, queues=QUEUES)
        port = begun.client_port
    commands = [command for topic in topics for command in old_commands(topic, GOOD, QUEUES)]
    await asyncio.to_thread(old_log.write, work / "group", commands)

    def start() -> DevGroup:
        assert free_port_range() is not None  # the group's own is this process's still
        group = DevGroup(work / "group", port)
        group.announced()
        return group

    group = await asyncio.to_thread(start)
    try:
        yield TlsGroup(group, work / "none.pem")
    finally:
        await asyncio.to_thread(group.stop)


def old_topic(language: str) -> str:
    """Return the name of the topic that has poison from before."""
    return f"poison-before-{language}"


async def poison(stage: Stage) -> None:
    """100 of 100 good messages arrive beside what doors take, and beside what they took once."""
    topic = await stage.topic("poison")
    await _send_all(stage, topic)
    wrong: list[str] = []
    small = "whole_4_mib" in stage.sdk.gaps  # it takes no frame over 4 MiB, from no node
    odd = len(ODD) - small * len(LARGE)
    before = OLD_COUNT - small * OLD_LARGE
    for where, name, others in (
        ("sent", topic, odd),
        ("before", old_topic(stage.language), before),
    ):
        for how in ("push", "polls"):
            async with stage.user() as user:
                got = await _read(user, name, f"g-{how}-{name}", how, len(GOOD) + others)
            good = len(set(GOOD) & set(got))
            print(
                f"    {stage.language}, {where}, by {how}: {good} of {len(GOOD)} good ones, "
                f"{len(got) - good} of {others} others",
                flush=True,
            )
            if good < len(GOOD):
                wrong.append(f"{where}, by {how}: {good} of {len(GOOD)} good ones")
            elif len(got) < len(GOOD) + others:
                wrong.append(f"{where}, by {how}: {len(got) - good} of {others} odd ones")
            elif stage.sdk.unpacks and not PACKED.keys() <= set(got):
                wrong.append(f"{where}, by {how}: what is packed is not unpacked")
    if wrong:
        raise CaseFailed("; ".join(wrong))


async def _send_all(stage: Stage, topic: str) -> None:
    """Send the odd among the good, to the leader and through a follower; what is refused is not."""
    every = stage.at.group.endpoints
    async with channel_to(every[0]) as one, channel_to(every[1]) as other:
        sends = [_call(each) for each in (one, other)]
        good = iter(GOOD)
        for number, each in enumerate((*ODD, *REFUSED)):
            for text in (next(good, None) for _ in range(2)):
                if text is not None:
                    await _send(sends[number % 2], topic, text)
            for send in sends if each.refused else [sends[number % 2]]:
                said = await _ask(send, each.request(topic, number))
                if said != (each.refused or "OK"):
                    raise CaseFailed(f"{each.name}: {said}, not {each.refused or 'OK'}")
        for text in good:
            await _send(sends[0], topic, text)


def _call(channel: grpc.aio.Channel) -> Any:
    return channel.unary_unary(
        f"/{SERVICE_NAME}/SendMessage",
        response_deserializer=service.SendMessageResponse.FromString,
    )


async def _send(send: Any, topic: str, text: str) -> None:
    system = definition.SystemProperties(message_id=text)
    message = definition.Message(
        topic=definition.Resource(name=topic), body=text.encode(), system_properties=system
    )
    said = await _ask(send, service.SendMessageRequest(messages=[message]).SerializeToString())
    if said != "OK":
        raise CaseFailed(f"a good message: {said}")


async def _ask(send: Any, raw: bytes) -> str:
    """Return the code, of RocketMQ or of gRPC, that answers a request."""
    try:
        answer = await send(raw, metadata=(("x-mq-client-id", "poison"),), timeout=30.0)
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return str(definition.Code.Name(answer.status.code))


async def _read(user: User, topic: str, group: str, how: str, count: int) -> list[str]:
    """Return what a consumer of the client's gets, each message once, if they can be told apart."""
    await user.listen("consumer", topic, group, by_polls=how == "polls")

    def distinct() -> dict[str, None]:
        every = user.got("consumer")
        return dict.fromkeys(e.text if e.size < _SHOWN_BYTES else e.sha256 for e in every)

    def has_all() -> bool:
        got = distinct()
        return len(got) >= count and got.keys() >= set(GOOD)

    await came_true(has_all, _ARRIVE_S)
    return list(distinct())
