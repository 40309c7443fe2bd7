"""What the spool's tests share: messages, a spool on a disk in memory, and a group that dedupes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

from dledger.broker.body_digests import digests_of
from dledger.broker.deduplication import DeduplicationWindow
from dledger.files.files import Files
from dledger.files.memory_files import MemoryFiles
from dledger.spool.identity import SpoolIdentity
from dledger.spool.opening import open_spool
from dledger.spool.payload import Message
from dledger.spool.producer import Producer
from dledger.spool.reader import Spooled
from dledger.spool.rejected import read_rejected
from dledger.spool.spool import Limits, Spool
from dledger.types import Record

DIR = Path("/spool")
CLIENT = "client-1"
STAMP = b"\xf1stamp\x00\xf2"
TOKEN = bytes(range(16))
CHUNK = 8


def message(number: int, topic: str = "orders", size: int = 40, queue_id: int = -1) -> Message:
    """Return the message of a number; its id and body tell which."""
    body = f"{topic} {number} ".encode().ljust(size, b".")
    record = Record(body=body, message_id=f"{number:06}", born_at_ms=1_700_000_000_000 + number)
    return Message(topic=topic, record=record, queue_id=queue_id)


def messages(first: int, last: int, size: int = 40) -> list[Message]:
    """Return messages [first, last] of one topic."""
    return [message(number, size=size) for number in range(first, last + 1)]


def identity(client_id: str = "") -> SpoolIdentity:
    """Return what a new spool is made as."""
    return SpoolIdentity(client_id=client_id or CLIENT, stamp=STAMP, token=TOKEN)


class Group:
    """A broker group in miniature: stores by id, once, while its window remembers the id."""

    def __init__(
        self, window: int = 2 * CHUNK, refuses: Callable[[Message], bool] = lambda _: False
    ) -> None:
        self._window = DeduplicationWindow(max_ids_of_client=window)
        self.refuses = refuses
        self.stored: list[Message] = []

    def store(self, client_id: str, batch: Iterable[Message]) -> None:
        for one in batch:
            key = one.record.message_id.encode()
            if self._window.find(client_id, one.topic, key) is None:
                its = digests_of([one.record.body])
                self._window.remember(client_id, one.topic, (key,), its, queue_id=0, first=0)
                self.stored.append(one)

    def numbers(self, topic: str = "orders") -> list[int]:
        """Return which messages it has, in order."""
        return [int(one.record.message_id) for one in self.stored if one.topic == topic]


class Disk:
    """A disk in memory and the spool on it."""

    def __init__(self, *, max_bytes: int = 1 << 20, file_bytes: int = 8192) -> None:
        self.files = MemoryFiles()
        self.limits = Limits(max_bytes, file_bytes)

    def open(self, files: Files | None = None) -> Spool:
        """Open the spool, making or recovering it."""
        return open_spool(files or self.files, DIR, limits=self.limits, new_identity=identity)

    def reopen(self) -> Spool:
        """Kill the process and open the spool again."""
        self.files.kill()
        return self.open()

    def crash(self, seed: int) -> Spool:
        """Cut the power and open the spool again."""
        self.files.crash(Random(seed))
        return self.open()

    def names(self, directory: str = ".") -> list[str]:
        """Return the spool files in a directory of the spool."""
        names = self.files.list(DIR / directory)
        return [name for name in names if name.endswith(".spool")]

    def contents(self, name: str) -> bytearray:
        """Return the bytes of a file, to look at or to rot."""
        return self.files.contents(DIR / name)

    def rejected(self) -> list[Message]:
        """Return what was rejected."""
        return [one.message for one in read_rejected(self.files, DIR, identity())]


def replay(spool: Spool, group: Group, *, chunks: int = 1 << 30) -> list[Spooled]:
    """Store what is spooled, up to *chunks* chunks; return it."""
    replayed: list[Spooled] = []
    for _ in range(chunks):
        chunk = spool.read(max_records=CHUNK, max_bytes=1 << 20)
        if chunk is None:
            break
        refused = [one for one in chunk.messages if group.refuses(one.message)]
        stored = [one.message for one in chunk.messages if not group.refuses(one.message)]
        group.store(spool.client_id, stored)
        if refused:
            spool.reject([(one, "no such topic") for one in refused])
        spool.advance(chunk)
        replayed += chunk.messages
    return replayed


async def end_by_kill(
    producer: Producer, files: MemoryFiles, sends: Iterable[asyncio.Task[Any]]
) -> None:
    """End a producer as SIGKILL does, with the *sends* that wait for it."""
    files.kill()
    ours = {producer._replaying, *producer._tasks, *sends}
    for task in ours:
        task.cancel()
    await asyncio.gather(*ours, return_exceptions=True)
    producer._executor.shutdown()
