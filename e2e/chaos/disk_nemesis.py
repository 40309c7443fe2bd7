"""Faults of disks and of what is on them: damaged, older than they say, or without room.

Each method begins one and returns it; `nemesis` ends it. They hit a minority: one node of three,
two of five.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import signal
from collections.abc import Sequence
from typing import Final

from dledger.client import Client, Record
from dledger.errors import DledgerError
from e2e.chaos.episodes import Episode, FaultKind
from e2e.chaos.fault import Fault
from e2e.chaos.faulty_group import FaultyGroup
from e2e.chaos.files import back_in_time, chunks_now, flip, put_back, truncate
from e2e.chaos.shim import Control
from e2e.harness.waiting import HarnessError

_REPLACE_S: Final = 60.0
_DOWN_S: Final = 0.5
SEALS: Final = 10
"""Messages of `fill` that seal two segments and begin a third."""
_FILL_BYTES: Final = 256 << 10
_WITHOUT_END: Final = 1 << 30
_NEIGHBOUR_PERCENT: Final = 92
"""How full others' files make a disk: above the shipped watermark, with room for segments left."""


class DiskNemesis:
    """Begins such faults on one group."""

    def __init__(self, group: FaultyGroup) -> None:
        self._group = group

    async def damage(self, episode: Episode, target: str, others: Sequence[str]) -> Fault:
        """Flip bits of, or cut, a file of each node of a minority while they run; then SIGKILL."""
        victims = self._minority(target, others)
        rng = random.Random(episode.number)
        change = flip if episode.fault is FaultKind.FLIP else truncate
        hits = [change(self._group.nodes[one].data, episode.part, rng) for one in victims]
        await self._group.kill(victims)
        return Fault(victims, down=victims, hit=lambda: any(hits))

    async def chunks_back(self, episode: Episode, target: str, others: Sequence[str]) -> Fault:
        """Let half of the newest files of a minority go back in time; then SIGKILL.

        Where both copies of a record went back, its node refuses to start by name, and is replaced
        as one that has lost its disk.
        """
        victims = self._minority(target, others)
        ids = {one: await self._id_of(one) for one in victims}
        before = [chunks_now(self._group.nodes[one].data) for one in victims]

        async def go_back() -> bool:
            rng = random.Random(episode.number)
            changed = sum(back_in_time(files, rng) for files in before)
            await self._group.kill(victims)
            return changed > 0

        async def replace_who_refuses() -> None:
            for one in victims:
                if not await self._group.starts(one, _REPLACE_S):
                    self._group.nodes[one].wipe()
                    self._group.nodes[one].may_run.set()
                    await self._replace(one, ids[one])

        return Fault(victims, down=victims, settle=go_back, repair=replace_who_refuses)

    async def _id_of(self, name: str) -> str:
        status = await self._group.nodes[name].status()
        if status is None:
            raise HarnessError(f"{name} does not say who it is")
        return status.node_id

    async def older_copy(self, target: str) -> Fault:
        """Put a node's whole directory back to what it was when the episode began.

        All others are up when it starts. With ``osBuffer`` that is what an ordinary power cut of
        one machine may leave: nothing was synced since.
        """
        node = self._group.nodes[target]
        image = node.data.with_suffix(".image")
        shutil.rmtree(image, ignore_errors=True)
        self._group.pause(target)
        await asyncio.to_thread(shutil.copytree, node.data, image)
        node.signal(signal.SIGCONT)

        async def go_back() -> bool:
            await self._group.kill([target])
            await asyncio.to_thread(put_back, node.data, image)
            return True

        return Fault([target], down=[target], settle=go_back)

    async def pause_kill(self, episode: Episode, target: str, others: Sequence[str]) -> Fault:
        """Let a minority miss writes; then kill another and pause the rest as those come back.

        So those that missed the writes and the one that crashed are a majority by themselves.
        """
        stale = others[: len(others) // 2]
        rest = others[len(stale) :]
        for name in stale:
            self._group.pause(name)

        async def turn() -> bool:
            await self._group.kill([target])
            for name in rest:
                self._group.pause(name)
            for name in stale:
                self._group.nodes[name].signal(signal.SIGCONT)
            self._group.nodes[target].may_run.set()
            await asyncio.sleep(episode.hold_s)
            return True

        return Fault([target, *stale], down=others, settle=turn)

    async def replace_under_kills(self, target: str, others: Sequence[str]) -> Fault:
        """Replace a wiped disk while each of the others is killed once, one at a time."""
        node = self._group.nodes[target]
        old_id = await self._id_of(target)
        await self._group.kill([target])
        node.wipe()

        async def kill_others() -> None:
            for name in others:
                await self._group.kill([name])
                await asyncio.sleep(_DOWN_S)
                self._group.nodes[name].may_run.set()
                await self._group.wait_for(
                    "a majority to answer", self._group.majority_answers, _REPLACE_S
                )

        async def replace() -> None:
            killing = asyncio.create_task(kill_others())
            try:
                await self._replace(target, old_id)
            finally:
                await killing

        return Fault([target], down=[target], repair=replace, costs_majority=True)

    async def _replace(self, target: str, old_id: str) -> None:
        """Ask until the member is another one: whoever was asked may have been killed."""
        node = self._group.nodes[target]

        async def replaced() -> bool:
            status = await node.status()
            if status is not None and status.role != "unjoined":
                return True
            with contextlib.suppress(HarnessError):
                await self._group.replace_disk(target, old_id, _REPLACE_S / 4)
            return False

        await self._group.wait_for(f"{target} to be replaced", replaced, _REPLACE_S)

    # -- room -----------------------------------------------------------------------------------

    async def full(self, episode: Episode, target: str) -> Fault:
        """Fill the disk: a real file system where there is one, else the shim's."""
        volume = self._group.nodes[target].volume
        if volume is not None:
            volume.fill(episode.free_bytes)
        return self._short(target, Control(full=volume is None))

    async def without_inodes(self, target: str) -> Fault:
        """Leave a disk no inode: its node may refuse writes, and must not end."""
        volume = self._group.nodes[target].volume
        if volume is not None:
            volume.take_inodes()
        return self._short(target, Control(no_inodes=volume is None))

    async def quota(self, target: str) -> Fault:
        """Let nothing grow, as a quota does: its node may refuse writes, and must not end."""
        return self._short(target, Control(full=True, quota=True))

    def _short(self, target: str, control: Control) -> Fault:
        """Write big messages to a node that is short of room, until there is room again."""
        node = self._group.nodes[target]
        node.control.set(control)
        writer = asyncio.create_task(self.fill(node.spec.endpoint))
        before = node.control.fired()

        def end() -> None:
            writer.cancel()
            if node.volume is not None:
                node.volume.empty()

        async def hit() -> bool:
            status = await node.status()
            refused = status is not None and bool(status.writes_refused_reason)
            taken = node.volume is not None and not node.volume.has_inodes
            return refused or taken or node.control.fired() > before

        return Fault([target], writable=False, undo=end, settle=hit)

    async def fill(self, endpoint: str, times: int = _WITHOUT_END) -> None:
        """Write big messages, so that the log needs new segments."""
        async with Client(endpoint) as client:
            for _ in range(times):
                with contextlib.suppress(DledgerError):
                    record = Record(body=bytes(_FILL_BYTES))
                    await client.append_once("filler", [record], queue_id=0, timeout_s=1.0)
                await asyncio.sleep(0.3 if times == _WITHOUT_END else 0.0)

    async def neighbour(self) -> Fault:
        """Let others' files fill most of the disk of a node that leads, and of no other."""
        name, node = next((n, one) for n, one in self._group.nodes.items() if one.volume)
        assert node.volume is not None, "that is how it was chosen"
        await self.fill(node.spec.endpoint, SEALS)
        await self._lead(name)
        node.volume.fill_to(_NEIGHBOUR_PERCENT)
        return Fault([name], undo=node.volume.empty)

    async def _lead(self, name: str) -> None:
        """Have a node lead; if it does not, the episode still says what becomes of its disk."""
        status, leader = await self._group.nodes[name].status(), await self._group.leader()
        if status is None or leader in (None, name):
            return
        with contextlib.suppress(DledgerError):
            await self._group.nodes[leader].admin.transfer_leader(status.node_id)

    def _minority(self, target: str, others: Sequence[str]) -> list[str]:
        return [target, *others][: len(others) // 2]
