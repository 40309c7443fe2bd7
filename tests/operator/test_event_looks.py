"""How often Events are read: a reading is one of all Events of a namespace to the API server."""

from __future__ import annotations

from dledger_operator.cluster.api import ApiError
from dledger_operator.controllers.event_looks import CALM_S, LOOKED_S, EventLooks


class Reader:
    """Events that say what a test says, on a clock of the test's own."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.says = "FailedMount: no"
        self.fails = False
        self.reads: list[float] = []
        self.looks = EventLooks(lambda: self.now_s)

    async def look(self) -> str:
        """Read them."""
        self.reads.append(self.now_s)
        if self.fails:
            raise ApiError(0, "no answer")
        return self.says

    async def ask(self, seconds: int, uid: str = "uid-1") -> str:
        """Ask about an object each second for so long."""
        said = ""
        for _ in range(seconds):
            said = await self.looks.read(uid, self.look)
            self.now_s += 1
        return said


async def test_what_hangs_for_days_is_read_once_a_minute() -> None:
    """At first every five seconds, so that it is told soon."""
    reader = Reader()

    await reader.ask(30)
    assert len(reader.reads) == 6
    await reader.ask(3600)
    before = len(reader.reads)
    await reader.ask(3600)

    assert len(reader.reads) - before == 3600 / CALM_S
    reader.says = "FailedMount: still no"
    assert await reader.ask(int(CALM_S) + 1) == "FailedMount: still no"


async def test_a_new_pod_is_read_of_at_once_and_one_that_ran_meanwhile_too() -> None:
    """What hung an hour ago, and ran since, hangs for another reason."""
    reader = Reader()
    await reader.ask(3600)
    reader.says = "FailedAttachVolume: other"

    assert await reader.ask(1, "uid-2") == "FailedAttachVolume: other"
    reader.looks.forget("uid-1")
    assert reader.looks.recall("uid-1") is None
    assert await reader.ask(1) == "FailedAttachVolume: other"


async def test_what_was_said_stays_while_the_api_server_does_not_answer() -> None:
    """And is not asked for each second."""
    reader = Reader()
    await reader.ask(1)
    reader.fails = True

    assert await reader.ask(11) == "FailedMount: no"
    assert len(reader.reads) == 1 + 11 // LOOKED_S


async def test_what_nobody_asks_about_any_more_is_not_kept() -> None:
    """Each backup has a Job, with pods; there is one an hour, for years."""
    reader = Reader()
    for number in range(1000):
        await reader.ask(1, f"uid-{number}")
        reader.now_s += 99

    assert len(reader.looks._looks) < 10
    reader.looks.keep(["uid-999"])
    assert list(reader.looks._looks) == ["uid-999"]
