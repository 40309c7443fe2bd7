"""A group that is polled is in use, however short the time that unused ones are kept."""

from __future__ import annotations

import pytest

from dledger.broker.commands import CreateGroup, ExpireGroups
from dledger.replica.retention import RetentionPolicy
from dledger.requests.config import RequestConfig
from dledger.requests.topic_resolver import TopicResolver, use_is_said_ms
from tests.broker.log import Log
from tests.requests.part_of_engine import PartOfEngine

_MINUTE_S = 60
_HOUR_S = 3_600


class Leader(PartOfEngine):
    """As much of an engine as a resolver needs, and its upkeep's look at the groups."""

    def __init__(self) -> None:
        self.log = Log()
        self.state = self.log.state
        self.said = 0

    def now_ms(self) -> int:
        return self.log.now_ms

    async def propose(self, command: bytes) -> object:
        self.said += command == CreateGroup(name="g").encode()
        return self.log.append(command)[0]

    async def look(self, policy: RetentionPolicy) -> None:
        """Let the unused groups go, as `Maintenance` does each minute."""
        before_ms = policy.unused_before_ms(self.state.groups.active_ms)
        if before_ms and self.state.groups.any_unused(before_ms):
            await self.propose(ExpireGroups(before_ms=before_ms).encode())


@pytest.mark.found
@pytest.mark.parametrize("phase_s", [0, 17, 59])
@pytest.mark.parametrize("poll_s", [1, 31, 60])
async def test_a_group_that_polls_keeps_its_place(poll_s: int, phase_s: int) -> None:
    """found: E6. A use was said once an hour, the least that an unused group may be kept."""
    leader, policy = Leader(), RetentionPolicy(hours=0, group_hours=1)
    resolver = TopicResolver(leader, RequestConfig(group_retention_hours=1))
    start_ms = leader.log.now_ms
    leader.log.create()
    leader.log.create(topic="busy", group="other")
    leader.log.produce("a")
    leader.log.ack(leader.log.receive(1))

    for second in range(1, 4 * _HOUR_S):
        leader.log.now_ms = start_ms + 1000 * second
        if second % _MINUTE_S == phase_s:
            leader.log.produce("others are busy", topic="busy")
            await leader.look(policy)
        if second % poll_s == 0:
            await resolver.group("g")

    assert leader.state.groups.committed("g", "t", 0) == 1
    assert not leader.state.groups.exists("other")
    assert 12 <= leader.said <= 4 * _HOUR_S // (_HOUR_S // 4)


@pytest.mark.parametrize(("hours", "minutes"), [(0, 60), (1, 15), (2, 30), (4, 60), (720, 60)])
def test_a_use_is_said_at_a_quarter_of_the_retention_at_most(hours: int, minutes: int) -> None:
    """And each hour at least, whatever the retention is: that is cheap, and shows who is there."""
    assert use_is_said_ms(hours) == minutes * 60_000
