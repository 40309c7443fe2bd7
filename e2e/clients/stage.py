"""Where a case happens: a running group, one language's driver, and names of its own."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dledger.client import AdminClient, Client
from e2e.clients.drivers import ClientFailed, Delivery, Driver, delivery, driver
from e2e.clients.sdks import SDKS, Sdk
from e2e.cluster.pki import Authority
from e2e.harness.dev_group import DevGroup, running
from e2e.harness.ports import HOST
from e2e.harness.processes import connected_ports
from e2e.harness.tasks import cancelled

QUEUES: Final = 8
_POLL_S: Final = 0.05
_POLLERS: Final = 4
_POLL_AWAIT_S: Final = 5
POLL_INVISIBLE_S: Final = 30
"""What a poll got in an answer that died on its way comes again after so long."""
_POLL_BATCH: Final = 16
_AFTER_FAILED_ACK_S: Final = 0.5
_PRODUCER: Final = "producer"
_numbers = itertools.count(1)


class CaseFailed(Exception):
    """Something was not as a user may expect; the message says what, and what was seen."""


@dataclass(frozen=True, slots=True)
class TlsGroup:
    """A group of real nodes whose TLS ports have certificates of a CA of its own."""

    group: DevGroup
    roots: Path

    async def stored(self, topic: str) -> list[str]:
        """Return the text of every message in the log, queue by queue."""
        endpoint = self.group.endpoints[(await self.group.until_whole())["leader"]]
        async with Client(endpoint, timeout_s=30.0) as client:
            return [
                stored.record.body[:64].decode()
                for queue in range(QUEUES)
                async for stored in client.read(topic, queue)
            ]

    async def open_transactions(self, topic: str) -> list[str]:
        """Return the names of the transactions of a topic that nobody ended so far."""
        async with AdminClient(self.group.admins[0], timeout_s=30.0) as admin:
            found, _ = await admin.transactions(topic, limit=None)
        return [each.name for each in found]


def _certified(work: Path) -> tuple[str, str]:
    """Make *work* with a CA and a node's certificate in it; return the node's settings."""
    work.mkdir(parents=True)
    authority = Authority("dledger-clients")
    pair = authority.issue("dledger-node", hosts=(HOST, "localhost"))
    files = {"roots": authority.pair.certificate, "node": pair.certificate, "key": pair.key}
    for name, text in files.items():
        (work / f"{name}.pem").write_text(text, "ascii")
    return f"tls_cert_file={work / 'node.pem'}", f"tls_key_file={work / 'key.pem'}"


@asynccontextmanager
async def with_tls(work: Path, *settings: str, nodes: int = 3) -> AsyncIterator[TlsGroup]:
    """Run a group below *work*; it ends with the block. Raises AssertionError."""
    every = (*_certified(work), *settings)
    async with running(work / "group", every, nodes=nodes) as group:
        yield TlsGroup(group, work / "roots.pem")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One language at one group, through one kind of port."""

    language: str
    sdk: Sdk
    command: Sequence[str]
    at: TlsGroup
    tls: bool
    work: Path

    async def topic(self, case: str, kind: str = "NORMAL") -> str:
        """Make a topic that no other case has; return its name."""
        name = f"{case.replace('_', '-')}-{self.language}-{next(_numbers)}"
        async with Client(self.at.group.endpoints[0], timeout_s=30.0) as client:
            await client.create_topic(name, kind, queues=QUEUES)
        return name

    @asynccontextmanager
    async def user(self) -> AsyncIterator[User]:
        """Start the client's process; the end of the block kills it."""
        leader = (await self.at.group.until_whole())["leader"]
        every = self.at.group.tls_endpoints if self.tls else self.at.group.endpoints
        endpoints = [*every[leader:], *every[:leader]]  # some clients use only the first
        roots = self.at.roots if self.tls else None
        async with using(self.language, self.command, endpoints, self.work, roots) as user:
            yield user

    @asynccontextmanager
    async def producing(
        self, case: str, kind: str = "NORMAL", **more: Any
    ) -> AsyncIterator[tuple[User, str]]:
        """Start the client's process with a producer; yield it, and the topic of its own."""
        topic = await self.topic(case, kind)
        async with self.user() as user:
            await user.producer(topic, **more)
            yield user, topic


@asynccontextmanager
async def using(
    language: str,
    command: Sequence[str],
    endpoints: Sequence[str],
    work: Path,
    roots: Path | None = None,
) -> AsyncIterator[User]:
    """Start a client's process; the end of the block kills it.

    Args:
        language: Of `SDKS`.
        command: How its driver is started.
        endpoints: What the client is given.
        work: Where its log goes, and what it writes at home.
        roots: The CA of TLS ports; None: the endpoints are in plain text.
    """
    sdk, environment = SDKS[language], dict[str, str]()
    if roots is not None and sdk.one_tls_address:
        endpoints = endpoints[:1]
    if roots is not None and sdk.roots:
        environment[sdk.roots] = str(roots)
    log = work / f"{language}-{next(_numbers)}.log"
    async with driver(command, log, environment) as started:
        user = User(started, sdk, {"endpoints": list(endpoints), "tls": roots is not None})
        try:
            yield user
        finally:
            await user.forget()


class User:
    """One process of the client, in the words of its users."""

    def __init__(self, driver: Driver, sdk: Sdk, where: dict[str, Any]) -> None:
        self._driver, self._sdk, self._where = driver, sdk, where
        self._polled: defaultdict[str, list[Delivery]] = defaultdict(list)
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}
        self.receive_errors = 0

    async def producer(self, topic: str, *, name: str = _PRODUCER, **more: Any) -> None:
        """Start the producer, or one of several."""
        await self._driver.ask("producer", name=name, topic=topic, **self._where, **more)

    async def send(self, topic: str, text: str, *, producer: str = _PRODUCER, **more: Any) -> str:
        """Send one message; return why the end of its transaction failed, if it has one.

        Raises:
            ClientFailed: It was not acknowledged.
        """
        told = await self._driver.ask("send", producer=producer, topic=topic, text=text, **more)
        return str(told.get("end_error", ""))

    async def push(self, name: str, topic: str, group: str, **more: Any) -> None:
        """Start a push consumer; see `got`."""
        more |= self._where
        await self._driver.ask("push", name=name, topic=topic, group=group, **more)

    async def simple(self, name: str, topic: str, group: str, **more: Any) -> None:
        """Start a simple consumer."""
        more = {"await_s": _POLL_AWAIT_S} | self._where | more
        await self._driver.ask("simple", name=name, topic=topic, group=group, **more)

    async def receive(self, name: str, count: int, invisible_s: int) -> list[Delivery]:
        """Poll a simple consumer once."""
        told = await self._driver.ask(
            "receive", consumer=name, count=count, invisible_s=invisible_s
        )
        return [delivery(each, time.monotonic()) for each in told["messages"]]

    async def received(
        self, name: str, count: int, *, invisible_s: int = 60, deadline_s: float = 60.0
    ) -> list[Delivery]:
        """Poll until at least *count* came, or until it is too late; return what came."""
        found: list[Delivery] = []
        end_s = time.monotonic() + deadline_s
        while len(found) < count and time.monotonic() < end_s:
            found += await self.receive(name, min(_POLL_BATCH, count - len(found)), invisible_s)
        return found

    async def ack(self, name: str, message: Delivery) -> None:
        """Acknowledge. Raises ClientFailed."""
        await self._driver.ask("ack", consumer=name, handle=message.handle)

    async def change(self, name: str, message: Delivery, invisible_s: int) -> None:
        """Change how long a message stays invisible. Raises ClientFailed."""
        handle = message.handle
        await self._driver.ask("change", consumer=name, handle=handle, invisible_s=invisible_s)

    async def listen(self, name: str, topic: str, group: str, *, by_polls: bool = False) -> None:
        """Consume as an application does: by push; without one, by polls and acks in a loop."""
        if self._sdk.has_push and not by_polls:
            await self.push(name, topic, group)
            return
        await self.simple(name, topic, group)
        self._tasks[name] = [asyncio.create_task(self._poll(name)) for _ in range(_POLLERS)]

    async def _poll(self, name: str) -> None:
        while True:
            try:
                found = await self.receive(name, _POLL_BATCH, POLL_INVISIBLE_S)
            except ClientFailed:
                self.receive_errors += 1
                await asyncio.sleep(_POLL_S)
                continue
            self._polled[name] += found
            await asyncio.gather(*(self._acknowledge(name, each) for each in found))

    async def _acknowledge(self, name: str, message: Delivery) -> None:
        """Acknowledge until it is done, as long as the message is this consumer's."""
        end_s = message.at_s + POLL_INVISIBLE_S
        while time.monotonic() < end_s:
            try:
                await self.ack(name, message)
            except ClientFailed:
                await asyncio.sleep(_AFTER_FAILED_ACK_S)
            else:
                return

    def got(self, name: str) -> Sequence[Delivery]:
        """Return what a listening consumer has got so far."""
        return self._driver.pushed[name] or self._polled[name]

    def texts(self, *names: str) -> list[str]:
        """Return the texts of it, of all *names* together."""
        return [each.text for name in names for each in self.got(name)]

    def reached(self, endpoints: Sequence[str]) -> set[int]:
        """Return the indexes of *endpoints* to which the client has a connection now."""
        ports = connected_ports(self._driver.process.pid)
        return {n for n, each in enumerate(endpoints) if int(each.rpartition(":")[2]) in ports}

    async def stop(self, name: str) -> None:
        """End a client as an application does."""
        await cancelled(*self._tasks.pop(name, []))
        await self._driver.ask("stop", name=name)

    async def forget(self) -> None:
        """End what this side does for the client."""
        await cancelled(*itertools.chain(*self._tasks.values()))
