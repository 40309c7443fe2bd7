"""The operator's process listens to its nodes, and asks those that do not tell what changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from tests.operator.live import Operator, Story
from tests.waiting import eventually_async

LEADER = ("pods", "-l", "dledger.io/role=leader")


async def _leads(story: Story, ordinal: int) -> bool:
    pods = await story.list(*LEADER)
    return [pod["metadata"]["name"] for pod in pods] == [f"{story.name}-{ordinal}"]


async def test_nodes_that_tell_what_changes_are_not_asked(story: Story, operator: Operator) -> None:
    """Ten rounds of a settled group ask nobody, and an election is seen all the same."""
    await story.up()
    nodes = story.nodes

    async def is_watched() -> bool:
        return nodes.watchers == 3

    async def rounds() -> float:
        return sum(operator.metric(f'dledger_operator_rounds_total{{group="{story.name}"'))

    await eventually_async(is_watched, "a stream to each node")
    asked = nodes.asked
    for number in range(10):
        before = await rounds()
        await story.kubectl("annotate", "--overwrite", "bg", story.name, f"touched={number}")
        await eventually_async(partial(_is_more, rounds, before), "a round")

    assert nodes.asked - asked <= 3  # those of the minute, if it ended meanwhile
    nodes.elect(1)
    await eventually_async(lambda: _leads(story, 1), "1 leads")
    assert nodes.watchers == 3


async def _is_more(count: Callable[[], Awaitable[float]], than: float) -> bool:
    return await count() > than


async def test_older_nodes_are_asked(story: Story) -> None:
    """As many operators are newer than the images of their groups."""
    story.nodes.old = True
    await story.up()

    story.nodes.elect(1)

    await eventually_async(lambda: _leads(story, 1), "1 leads")
    assert story.nodes.watchers == 0
