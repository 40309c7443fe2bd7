"""A client in a process of its own, driven by JSON lines.

A command is ``{"id": 7, "do": NAME, …}``, its answer ``{"id": 7, …}``, with ``error`` where the
client raised something. Commands run beside each other. What a push consumer gets is an event:
``{"event": "message", "consumer": NAME, …}``. The commands, with what they take:

- ``producer`` and, below, each consumer: name, endpoints, tls, topic; producer: transaction
- ``push``: group, tag or sql, fail (so many deliveries of each message); ``simple``: await_s
- ``send``: producer, topic, text, size (the text is repeated to so many bytes), tag, keys,
  properties, async, message_group, deliver_at_ms, priority, transaction; end: "commit" or
  "rollback" of a transaction, or else its producer says nothing more. The answer has
  ``end_error`` if the end failed. A checker rolls back what begins with "no", and commits the rest
- ``receive``: consumer, count, invisible_s; ``ack``: consumer, handle; ``change``: invisible_s, too
- ``stop``: name
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_LINE_BYTES: Final = 16 << 20
_COMMAND_S: Final = 60.0
_TEXT_BYTES: Final = 64


class ClientFailed(Exception):
    """The client raised something, or did not come back; the message is what its user sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One message as a client handed it to its user.

    Attributes:
        text: The first 64 bytes of its body.
        at_s: When the harness read of it, by the monotonic clock.
        handle: What `ack` and `change` take; 0 from a push consumer.
    """

    text: str
    size: int
    sha256: str
    tag: str | None
    keys: Sequence[str]
    properties: Mapping[str, str]
    attempt: int
    at_s: float
    handle: int = 0


def delivery(told: Mapping[str, Any], at_s: float) -> Delivery:
    """Return what a driver told of a message."""
    return Delivery(
        text=told["text"],
        size=told["size"],
        sha256=told["sha256"],
        tag=told["tag"] or None,
        keys=sorted(told["keys"]),
        properties=told["properties"],
        attempt=told["attempt"],
        at_s=at_s,
        handle=told["handle"],
    )


def expected_body(text: str, size: int) -> tuple[str, str]:
    """Return (text, sha256) as a `Delivery` has them when *text* fills a body of *size* bytes."""
    words = text.encode()
    body = (words * (size // len(words) + 1))[:size]
    return body[:_TEXT_BYTES].decode(), hashlib.sha256(body).hexdigest()


@dataclass(slots=True)
class Driver:
    """A running driver; `driver` starts one."""

    process: asyncio.subprocess.Process
    pushed: defaultdict[str, list[Delivery]] = field(default_factory=lambda: defaultdict(list))
    _waiting: dict[int, asyncio.Future[dict[str, Any]]] = field(default_factory=dict)
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    async def ask(self, do: str, *, timeout_s: float = _COMMAND_S, **asked: Any) -> dict[str, Any]:
        """Carry out a command; return the answer.

        Raises:
            ClientFailed: See there.
        """
        assert self.process.stdin is not None
        number = next(self._ids)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        line = json.dumps({"id": number, "do": do, **asked})
        try:
            self.process.stdin.write(line.encode() + b"\n")
            await self.process.stdin.drain()
            told: dict[str, Any] = await asyncio.wait_for(answer, timeout_s)
        except TimeoutError:
            raise ClientFailed(f"{do} did not come back in {timeout_s:.0f} s") from None
        except (BrokenPipeError, ConnectionResetError):
            raise ClientFailed(f"{do}: the client's process has ended") from None
        finally:
            self._waiting.pop(number, None)
        if "error" in told:
            raise ClientFailed(f"{told['error']}")
        return told

    async def read(self) -> None:
        """Take answers and events until the process ends."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            told = json.loads(line)
            if told.get("event") == "message":
                self.pushed[told["consumer"]].append(delivery(told, time.monotonic()))
            elif (waiting := self._waiting.get(told["id"])) and not waiting.done():
                waiting.set_result(told)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result({"error": "the client's process has ended"})


@asynccontextmanager
async def driver(
    command: Sequence[str], log: Path, environment: Mapping[str, str]
) -> AsyncIterator[Driver]:
    """Start a driver, which ends with the block. Its home is beside *log*: clients write there."""
    home = log.parent / "home"
    home.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            cwd=home,
            env={**os.environ, "HOME": str(home), **environment},
            limit=_LINE_BYTES,
        )
    started = Driver(process)
    reading = asyncio.create_task(started.read())
    try:
        yield started
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading
