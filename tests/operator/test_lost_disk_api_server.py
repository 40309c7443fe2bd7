"""A lost disk on a real API server, with nodes that are played: healed, told, and held back."""

from __future__ import annotations

import pytest

from tests.operator.live import Story, eventually

pytestmark = pytest.mark.e2e
EMPTY = "True/MemberReplacedByEmptyDisk"


async def _told(story: Story) -> list[str]:
    events = await story.list("events")
    return [each["message"] for each in events if each["reason"] == "MemberReplaced"]


async def test_a_lost_disk_is_healed_without_a_command(story: Story) -> None:
    """Degraded until the new disk votes; the Event names the pod and both nodes."""
    await story.up()
    await story.until_condition("Degraded", "False/AsExpected")
    lost = story.nodes.lose_disk(2)

    await eventually("the Event", lambda: _told(story))
    assert story.nodes.changes == [(f"{lost}-again", lost)]
    assert await story.condition("Degraded") == EMPTY
    assert await story.condition("Progressing") == "True/Joining"
    story.nodes.catch_up()
    await story.until_condition("Degraded", "False/AsExpected")
    await story.until_condition("Progressing", "False/Complete")

    assert await _told(story) == [f"orders-2: node {lost}-again took the place of {lost}"]
    assert len(story.nodes.changes) == 1


async def test_a_paused_group_keeps_its_members_until_it_goes_on(story: Story) -> None:
    """Who wants the old volume back has the time for it."""
    await story.up()
    await story.until_condition("Degraded", "False/AsExpected")
    await story.apply(paused=True)
    await story.until_condition("Paused", "True/PausedByUser")
    story.nodes.lose_disk(2)

    await story.until_condition("Degraded", EMPTY)
    assert story.nodes.changes == []
    await story.apply(paused=False)

    await eventually("the Event", lambda: _told(story))
