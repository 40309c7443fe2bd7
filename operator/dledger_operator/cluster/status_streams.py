"""The streams over which nodes tell their statuses, as they change. Used by `nodes`.

A node's stream is believed no further than its answers. It may tell as much as it likes, and is
read no faster than a group's rounds can take: what it does not get rid of waits at its own end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import aclosing
from typing import Final

from dledger.client import AdminClient
from dledger.common.status import NodeStatus
from dledger.common.token_bucket import TokenBucket
from dledger.errors import DledgerError, NotServed, Unavailable

log: Final = logging.getLogger(__name__)

FIRST_WORD_S: Final = 5.0
"""A stream begins with a status; its node answered a moment ago, so there is no hurry."""
SILENCE_S: Final = 2.5
"""A leader says each second that it leads; one that is silent for so long is not believed to."""
STEADY_S: Final = 10.0
"""A stream that ends sooner after its begin than this is not opened again for `AVOIDED_S`."""
AVOIDED_S: Final = 15.0
"""For so long a node is asked instead that does not know the call, or does not keep a stream up."""
BURST: Final = 20
WORDS_PER_S: Final = 4.0
"""An election is a few words at once; lasting news of more than so many a second is a fault."""


class StatusStreams:
    """The streams of one group's nodes, by pod name.

    Args:
        heard: Takes what a pod's node said: its status, or None: the last one holds. What it raises
            ends the stream.
        ended: Told when a pod's stream ended by itself.
        monotonic_s: A clock.
    """

    def __init__(
        self,
        *,
        heard: Callable[[str, NodeStatus | None], None],
        ended: Callable[[str], None],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._heard = heard
        self._ended = ended
        self._monotonic_s = monotonic_s
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._begun: set[str] = set()
        self._avoided: dict[str, tuple[AdminClient, float]] = {}

    def tells(self, name: str) -> bool:
        """Whether a pod's node tells what changes: it has begun to, and goes on."""
        return name in self._begun

    def open(self, name: str, admin: AdminClient) -> None:
        """Open the stream of a node that just answered; nothing if it did not keep one lately."""
        avoided, until_s = self._avoided.get(name, (None, 0.0))
        if name in self._tasks or (avoided is admin and self._monotonic_s() < until_s):
            return
        self._avoided.pop(name, None)
        self._tasks[name] = asyncio.create_task(self._run(name, admin))

    async def close(self, names: Iterable[str]) -> None:
        """Close the streams of these pods."""
        tasks = [task for name in names if (task := self._tasks.pop(name, None)) is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._begun &= self._tasks.keys()

    def forget(self, name: str) -> None:
        """Forget how a pod's streams went that is gone."""
        self._avoided.pop(name, None)

    async def _run(self, name: str, admin: AdminClient) -> None:
        began_s = self._monotonic_s()
        is_unknown = False
        try:
            await self._read(name, admin)
        except DledgerError as error:
            is_unknown = isinstance(error, NotServed)
            log.debug("the stream of %s ended: %s", name, error)
        except Exception:
            log.exception("the stream of %s ended", name)
        now_s = self._monotonic_s()
        if is_unknown or now_s - began_s < STEADY_S:
            self._avoided[name] = admin, now_s + AVOIDED_S
        self._tasks.pop(name, None)
        self._begun.discard(name)
        if not is_unknown:  # its last answer is as good as before
            self._ended(name)

    async def _read(self, name: str, admin: AdminClient) -> None:
        """Hand on what a node says until its stream ends. Raises DledgerError."""
        allowance = TokenBucket(at_once=BURST, per_s=WORDS_PER_S)
        patience_s: float | None = FIRST_WORD_S
        async with aclosing(admin.watch_status()) as words:
            while True:
                try:
                    async with asyncio.timeout(patience_s):
                        said = await anext(words)
                except StopAsyncIteration:
                    return
                except TimeoutError as error:
                    raise Unavailable(f"{name} is silent") from error
                if said is not None:
                    patience_s = SILENCE_S if said.role == "leader" else None
                self._heard(name, said)
                self._begun.add(name)
                if pause_s := allowance.owe(self._monotonic_s()):
                    await asyncio.sleep(pause_s)
