"""A played kubelet: it starts the pods of a group, and gives each the disk of its claim.

Used by the API server tests whose pods come and go.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.operator.live import Story
from tests.waiting import eventually_async


@dataclass
class Kubelet:
    """Starts the pods of a story, and lets learners catch up; *saw* hears of each change."""

    story: Story
    saw: Callable[[], None] = lambda: None
    is_catching_up: bool = True
    disks: dict[int, str] = field(default_factory=dict)
    pods: int = 0

    async def run(self) -> None:
        """Look again and again."""
        while True:
            await self._look()
            if self.is_catching_up:
                self.story.nodes.catch_up()
            await asyncio.sleep(0.2)

    async def start(self, ordinal: int, uid: str) -> None:
        """Bring up the pod with that uid, which is new."""
        await self.story.run_pod(ordinal, uid=uid)

    async def _look(self) -> None:
        claims = {
            one["metadata"]["name"]: one["metadata"]["uid"] for one in await self.story.list("pvc")
        }
        pods = await self.story.list("pods")
        is_news = bool(self.pods) and len(pods) != self.pods
        self.pods = len(pods)
        for pod in pods:
            name = pod["metadata"]["name"]
            ordinal, uid = int(name.rpartition("-")[2]), claims.get(f"data-{name}")
            if uid is None or "deletionTimestamp" in pod["metadata"]:
                continue
            if uid != self.disks.setdefault(ordinal, uid):
                self.story.nodes.lose_disk(ordinal)
                self.disks[ordinal] = uid
                is_news = True
            if not (pod.get("status") or {}).get("podIP"):
                await self.start(ordinal, pod["metadata"]["uid"])
        if is_news:
            self.saw()


@contextlib.asynccontextmanager
async def running(kubelet: Kubelet, replicas: int = 3, **spec: Any) -> AsyncIterator[None]:
    """Bring the group of the kubelet's story up, and keep its pods running."""
    story = kubelet.story
    task = asyncio.create_task(kubelet.run())
    try:
        await story.apply(replicas=replicas, **spec)
        await story.until_condition("Available", "True/LeaderElected", 240)
        story.nodes.told_group_id = (await story.status())["groupId"]
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def settled(story: Story, replicas: int = 3, deadline_s: float = 120) -> None:
    """Wait until a group has so many members and pods, and nothing is left to do."""
    wanted = [f"{story.name}-{n}" for n in range(replicas)]

    async def is_done() -> bool:
        found = await story.get("bg", story.name)
        status = found["status"]
        told = {row["type"]: row["reason"] for row in status["conditions"]}
        built = (await story.get("statefulset", story.name))["spec"]["replicas"]
        services = [one["metadata"]["name"] for one in await story.list("services")]
        return (
            sorted(one.name for one in story.nodes.members) == wanted
            and not story.nodes.learners
            and built == replicas == len([name for name in services if "-client" in name])
            and [row["name"] for row in status["members"]] == wanted
            and status["observedGeneration"] == found["metadata"]["generation"]
            and (told["Progressing"], told["Degraded"]) == ("Complete", "AsExpected")
        )

    await eventually_async(is_done, f"{replicas} members", deadline_s)
