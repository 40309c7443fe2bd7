"""What a user of any client may expect; each case is written once, for all languages.

A case raises CaseFailed, or ClientFailed where the client raised what its user would see.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from e2e.clients.drivers import ClientFailed, Delivery, expected_body
from e2e.clients.judging import not_once
from e2e.clients.stage import CaseFailed, Stage, User, with_tls
from e2e.harness.waiting import came_true

_ARRIVE_S: Final = 60.0
_SETTLE_S: Final = 1.5
"""What should not come has this long to come."""
_LATER_S: Final = 6
_MIB: Final = 1 << 20
MOST_BYTES: Final = 4 * _MIB
"""The largest body a group takes."""
SIZES: Final = (1, 1024, _MIB, MOST_BYTES - 4096)
"""Bodies that every client can send and get."""
Case = Callable[[Stage], Awaitable[None]]


def _numbered(first: int, end: int) -> list[str]:
    return [f"message-{number}" for number in range(first, end)]


async def _sent(user: User, topic: str, texts: list[str], **more: Any) -> None:
    for text in texts:
        await user.send(topic, text, **more)


async def _once(user: User, wanted: list[str], *names: str) -> None:
    """Wait until the consumers *names* have *wanted*, each message once among all of them."""
    await came_true(lambda: set(wanted) <= set(user.texts(*names)), _ARRIVE_S)
    await asyncio.sleep(_SETTLE_S)
    _exactly(wanted, user.texts(*names))


def _exactly(wanted: list[str], got: list[str]) -> None:
    """See that each of *wanted* came once, and nothing else. Raises CaseFailed."""
    if wrong := not_once(wanted, got):
        raise CaseFailed(wrong)


def _attempts(found: list[Delivery], wanted: list[int]) -> None:
    if (seen := [each.attempt for each in found]) != wanted:
        raise CaseFailed(f"delivery attempts {seen}, not {wanted}")


async def push(stage: Stage) -> None:
    """A push consumer gets what was sent before it started, and after, once each."""
    async with stage.producing("push") as (user, topic):
        await _sent(user, topic, _numbered(0, 20))
        await user.push("consumer", topic, f"g-{topic}")
        await _sent(user, topic, _numbered(20, 40))
        await _once(user, _numbered(0, 40), "consumer")


async def simple(stage: Stage) -> None:
    """A simple consumer gets each message once, and none that it has acknowledged."""
    async with stage.producing("simple") as (user, topic):
        await _sent(user, topic, _numbered(0, 20))
        await user.simple("consumer", topic, f"g-{topic}", await_s=2)
        found = await user.received("consumer", 20, invisible_s=10)
        _exactly(_numbered(0, 20), [each.text for each in found])
        for message in found:
            await user.ack("consumer", message)
        if again := await user.received("consumer", 1, deadline_s=12):
            raise CaseFailed(f"{again[0].text} came again after its acknowledgement")


async def async_send(stage: Stage) -> None:
    """100 sends under way at once are stored once each."""
    async with stage.producing("async_send") as (user, topic):
        options: Mapping[str, Any] = {"async": True}
        sends = (user.send(topic, text, **options) for text in _numbered(0, 100))
        await asyncio.gather(*sends)
    _exactly(_numbered(0, 100), await stage.at.stored(topic))


async def properties(stage: Stage) -> None:
    """Tag, keys, properties and a body beyond ASCII come as they were sent."""
    about: dict[str, Any] = {
        "tag": "tag-1",
        "keys": ["key-1", "key-2"],
        "properties": {"a": "wert", "ключ": "値"},
    }
    async with stage.producing("properties") as (user, topic):
        await user.send(topic, "Grüße, 世界", **about)
        await user.simple("consumer", topic, f"g-{topic}")
        (message,) = await user.received("consumer", 1)
    seen = {"tag": message.tag, "keys": message.keys, "properties": message.properties}
    if (message.text, seen) != ("Grüße, 世界", about):
        raise CaseFailed(f"{message.text!r} with {seen}, not {about}")


async def tags(stage: Stage) -> None:
    """A consumer gets the tags that it asked for."""
    async with stage.producing("tags") as (user, topic):
        for number, text in enumerate(_numbered(0, 30)):
            await user.send(topic, text, tag="abc"[number % 3])
        await user.simple("consumer", topic, f"g-{topic}", tag="a || c", await_s=2)
        found = await user.received("consumer", 20)
        found += await user.received("consumer", 1, deadline_s=3)
    wanted = [text for number, text in enumerate(_numbered(0, 30)) if number % 3 != 1]
    _exactly(wanted, [each.text for each in found])


async def bodies(stage: Stage) -> None:
    """Bodies of 1 B, 1 KiB, 1 MiB and 4 MiB less 4 KiB come as they were sent."""
    await _bodies(stage, SIZES)


async def whole_4_mib(stage: Stage) -> None:
    """A body of 4 MiB, the most that a group takes, comes as it was sent."""
    await _bodies(stage, (MOST_BYTES,))


async def _bodies(stage: Stage, sizes: tuple[int, ...]) -> None:
    async with stage.producing("bodies") as (user, topic):
        for size in sizes:
            await user.send(topic, "seven 7", size=size)
        await user.simple("consumer", topic, f"g-{topic}")
        found = await user.received("consumer", len(sizes))
    wanted = {size: expected_body("seven 7", size)[1] for size in sizes}
    if (seen := {each.size: each.sha256 for each in found}) != wanted:
        raise CaseFailed(f"bodies of {sorted(seen)} bytes, not {sorted(wanted)}, or changed ones")


async def body_over_the_limit(stage: Stage) -> None:
    """A body of a byte too many is refused by name, and not stored."""
    async with stage.producing("over") as (user, topic):
        await _refused(user.send(topic, "seven 7", size=MOST_BYTES + 1), "size", "large", "bytes")
    if await stage.at.stored(topic):
        raise CaseFailed("it is in the log")


async def long_poll(stage: Stage) -> None:
    """A poll of an empty topic is woken by the first message."""
    async with stage.producing("long_poll") as (user, topic):
        await user.simple("consumer", topic, f"g-{topic}", await_s=20)
        poll = asyncio.create_task(user.receive("consumer", 1, 30))
        await asyncio.sleep(_SETTLE_S)
        if poll.done():
            raise CaseFailed(f"the poll did not wait: {poll.result()}")
        await user.send(topic, "wakes")
        if [each.text for each in await poll] != ["wakes"]:
            raise CaseFailed("the poll ended without the message")


async def redelivery(stage: Stage) -> None:
    """What is not acknowledged comes again, counted; a handle that is over acknowledges nothing."""
    async with stage.producing("redelivery") as (user, topic):
        await user.send(topic, "again")
        await user.simple("consumer", topic, f"g-{topic}")
        found = await user.received("consumer", 1, invisible_s=3)
        found += await user.received("consumer", 1, invisible_s=3)
        with contextlib.suppress(ClientFailed):  # some clients tell, others do not
            await user.ack("consumer", found[0])
        found += await user.received("consumer", 1, invisible_s=8)
        _attempts(found, [1, 2, 3])
        await user.ack("consumer", found[2])
        if await user.received("consumer", 1, deadline_s=10):
            raise CaseFailed("it came again after its acknowledgement")


async def change(stage: Stage) -> None:
    """A message whose invisible duration is shortened comes again after that."""
    async with stage.producing("change") as (user, topic):
        await user.send(topic, "sooner")
        await user.simple("consumer", topic, f"g-{topic}")
        found = await user.received("consumer", 1, invisible_s=300)
        await user.change("consumer", found[0], 2)
        found += await user.received("consumer", 1)
        _attempts(found, [1, 2])
        await user.ack("consumer", found[1])


async def failed_comes_again(stage: Stage) -> None:
    """A message that a push consumer fails twice comes a third time."""
    async with stage.producing("failed") as (user, topic):
        await user.send(topic, "fails")
        await user.push("consumer", topic, f"g-{topic}", fail=2)
        await came_true(lambda: len(user.got("consumer")) > 2, _ARRIVE_S)
        await asyncio.sleep(_SETTLE_S)
        _attempts(list(user.got("consumer")), [1, 2, 3])


async def restart(stage: Stage) -> None:
    """A consumer that is started anew goes on where its predecessor ended."""
    async with stage.producing("restart") as (user, topic):
        group = f"g-{topic}"
        await _sent(user, topic, _numbered(0, 20))
        await user.listen("consumer", topic, group)
        await _once(user, _numbered(0, 20), "consumer")
        await user.stop("consumer")
        await _sent(user, topic, _numbered(20, 40))
    async with stage.user() as user:
        await user.listen("consumer", topic, group)
        await _once(user, _numbered(20, 40), "consumer")


async def two_groups(stage: Stage) -> None:
    """Each of two groups gets every message."""
    async with stage.producing("two_groups") as (user, topic):
        await _sent(user, topic, _numbered(0, 20))
        for name in ("one", "other"):
            await user.listen(name, topic, f"g-{name}-{topic}")
        for name in ("one", "other"):
            await _once(user, _numbered(0, 20), name)


async def three_share(stage: Stage) -> None:
    """Three consumers of a group get each message once among them."""
    names = ("first", "second", "third")
    async with stage.producing("three_share") as (user, topic):
        for name in names:
            await user.listen(name, topic, f"g-{topic}")
        await _sent(user, topic, _numbered(0, 60))
        await _once(user, _numbered(0, 60), *names)


async def unknown_topic(stage: Stage) -> None:
    """Without automatic creation, an unknown topic is refused by its name."""
    async with _made_by_hand(stage) as there, there.user() as user:
        await user.producer(await there.topic("known"))
        await _refused(user.send("nowhere", "hello"), "nowhere")


async def known_topic(stage: Stage) -> None:
    """Without automatic creation, a topic that is there has consumers as any other."""
    async with _made_by_hand(stage) as there:
        topic = await there.topic("known")
        async with there.user() as user:
            await user.producer(topic)
            await user.send(topic, "hello")
            await user.listen("consumer", topic, f"g-{topic}")
            await _once(user, ["hello"], "consumer")


@asynccontextmanager
async def _made_by_hand(stage: Stage) -> AsyncIterator[Stage]:
    """Yield the stage at a group, of one node, that makes no topic by itself."""
    work = Path(tempfile.mkdtemp(prefix="by-hand-", dir=stage.work))
    async with with_tls(work / "group", "auto_create_topics=false", nodes=1) as alone:
        yield replace(stage, at=alone)


async def _refused(doing: Awaitable[Any], *names: str) -> None:
    """See that it fails, with one of *names* in what the client says."""
    try:
        await doing
    except ClientFailed as error:
        if not any(name.lower() in str(error).lower() for name in names):
            raise CaseFailed(f"refused, but not by name: {error}") from None
    else:
        raise CaseFailed("it was not refused")


async def fifo(stage: Stage) -> None:
    """Messages of each message group come one after the other.

    None fails: how often it has tried a message where it is, Python's library does not tell.
    """
    groups, each = ("a", "b", "c"), range(8)
    async with stage.producing("fifo", "FIFO") as (user, topic):
        for number in each:
            for group in groups:
                await user.send(topic, f"{group}-{number}", message_group=group)
        await user.listen("consumer", topic, f"g-{topic}")
        wanted = [f"{group}-{number}" for group in groups for number in each]
        await came_true(lambda: set(wanted) <= set(user.texts("consumer")), _ARRIVE_S)
        got = list(dict.fromkeys(user.texts("consumer")))
    for group in groups:
        mine = [text for text in got if text.startswith(group)]
        if mine != [f"{group}-{number}" for number in each]:
            raise CaseFailed(f"message group {group} came as {', '.join(mine)}")


async def fifo_refused(stage: Stage) -> None:
    """A message of a message group is refused by a NORMAL topic."""
    await _kind_refused(stage, "FIFO", message_group="group")


async def delay_refused(stage: Stage) -> None:
    """A message for later is refused by name where the topic is not of that type."""
    await _kind_refused(stage, "DELAY", deliver_at_ms=4_000_000_000_000)


async def sent_for_later(stage: Stage) -> None:
    """A message for later comes once, and not before; one whose time has passed comes at once."""
    topic = await stage.topic("sent_for_later", "DELAY")
    async with stage.user() as user:
        await user.producer(topic)
        now_s, began_s = time.time(), time.monotonic()
        due_s = math.ceil(now_s) + _LATER_S  # some clients know seconds only
        await user.send(topic, "later", deliver_at_ms=due_s * 1000)
        await user.send(topic, "at once", deliver_at_ms=(due_s - 3600) * 1000)
        await user.simple("consumer", topic, f"g-{topic}", await_s=2)
        found = await user.received("consumer", 2)
        for message in found:
            await user.ack("consumer", message)
        found += await user.received("consumer", 1, deadline_s=3)
    _exactly(["at once", "later"], [each.text for each in found])
    late_s = found[-1].at_s - began_s - (due_s - now_s)
    if found[0].text != "at once" or late_s < 0:
        raise CaseFailed(f"it came {-late_s:.1f} s before its time")


async def priority(stage: Stage) -> None:
    """Of what waits, messages of the highest priority come first."""
    async with stage.producing("priority", "PRIORITY") as (user, topic):
        for number, text in enumerate(_numbered(0, 12)):
            await user.send(topic, text, priority=1 + number % 3)
        await user.simple("consumer", topic, f"g-{topic}", await_s=2)
        found = await user.received("consumer", 12)
    wanted = [f"message-{number}" for first in (2, 1, 0) for number in range(first, 12, 3)]
    if (got := [each.text for each in found]) != wanted:
        raise CaseFailed(f"they came as {', '.join(got)}")


async def transaction(stage: Stage) -> None:
    """A producer that does not end its transaction is asked; its checker commits."""
    topic = await stage.topic("transaction", "TRANSACTION")
    async with stage.user() as user:
        await user.producer(topic, transaction=True)
        await user.send(topic, "half", transaction=True)
        await user.simple("consumer", topic, f"g-{topic}", await_s=2)
        early = await user.received("consumer", 1, deadline_s=2)
        if early:
            raise CaseFailed("it came before its end")
        found = await user.received("consumer", 1)
        for message in found:
            await user.ack("consumer", message)
        found += await user.received("consumer", 1, deadline_s=3)
    _exactly(["half"], [each.text for each in found])


async def transaction_refused(stage: Stage) -> None:
    """A half message is refused by name where the topic is not of that type."""
    await _kind_refused(stage, "TRANSACTION", transaction=True)


async def _kind_refused(stage: Stage, kind: str, **more: Any) -> None:
    name, transaction = f"{kind.lower()}-refused", more.get("transaction", False)
    async with stage.producing(name, transaction=transaction) as (user, topic):
        await _refused(user.send(topic, "special", **more), kind, "type")
    if await stage.at.stored(topic):
        raise CaseFailed("it is in the log")


async def sql(stage: Stage) -> None:
    """A simple consumer with an SQL92 filter gets what matches."""
    async with stage.producing("sql") as (user, topic):
        for number, text in enumerate(_numbered(0, 30)):
            await user.send(topic, text, properties={"n": str(number)})
        wanted = "n BETWEEN 10 AND 19 AND NOT n = 15"
        await user.simple("consumer", topic, f"g-{topic}", sql=wanted, await_s=2)
        found = await user.received("consumer", 9)
        found += await user.received("consumer", 1, deadline_s=3)
    passed = (15,)
    _exactly(
        [text for n, text in enumerate(_numbered(0, 30)) if 10 <= n < 20 and n not in passed],
        [each.text for each in found],
    )


CASES: Final[Mapping[str, Case]] = {
    case.__name__: case
    for case in (
        push, simple, async_send, properties, tags, bodies, whole_4_mib, body_over_the_limit,
        long_poll, redelivery, change, failed_comes_again, restart, two_groups, three_share,
        unknown_topic, known_topic, fifo, fifo_refused, delay_refused, sent_for_later, priority,
        transaction, transaction_refused, sql,
    )
}  # fmt: skip
WITH_TLS: Final = (
    "push", "simple", "async_send", "properties", "bodies", "long_poll", "failed_comes_again",
    "restart",
)  # fmt: skip
"""The cases that run once more through the TLS port."""
