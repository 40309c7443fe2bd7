"""A keeper of room outside of a driver: its members, their disks and the clock are given."""

from __future__ import annotations

from collections.abc import Mapping

from dledger.common.reports import Report, Room
from dledger.raft.messages import Message
from dledger.replica.reports import ReportRequest, ReportResponse, Reports
from dledger.replica.room_keeper import RoomConfig, RoomKeeper
from dledger.types import NodeId

MIB = 1 << 20
OWN = NodeId("a")


class HandClock:
    """Time that goes by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        """Return the time."""
        return self.now_s

    def unix_ms(self) -> int:
        """Return the time, as a date."""
        return int(self.now_s * 1000)


class Keeping:
    """A keeper, and what it is told."""

    def __init__(self, others: tuple[str, ...] = (), config: RoomConfig | None = None) -> None:
        self.clock = HandClock()
        self.allocated_bytes = 0
        self._asked: list[Message] = []
        self.reports = Reports(OWN, clock=self.clock, send=self._asked.append, incarnation="1")
        self.others = [NodeId(other) for other in others]
        self.keeper = RoomKeeper(
            OWN,
            config=config or RoomConfig(segment_bytes=32 * MIB),
            reports=self.reports,
            voter_sets=lambda: [frozenset({OWN, *self.others})],
            allocated_bytes=lambda: self.allocated_bytes,
            now_s=self.clock.monotonic_s,
        )

    def tell(self, rooms: Mapping[str, Room]) -> None:
        """Let other members report their room."""
        self.reports.ask(self.others, term=1)
        for asked in [each for each in self._asked if isinstance(each, ReportRequest)]:
            room = rooms.get(asked.recipient)
            if room is not None:
                answer = ReportResponse(
                    sender=asked.recipient,
                    recipient=OWN,
                    term=1,
                    round=asked.round,
                    report=Report(incarnation="1", unix_ms=0, room=room),
                )
                self.reports.receive(answer, term=1)
        self._asked.clear()
