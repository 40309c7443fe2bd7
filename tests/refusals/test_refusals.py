"""What a node refuses it refuses in the same bytes, words, codes and trailers as it was recorded.

Whoever moves the edge of the node sees here what its clients would have seen of that. The recorded
answers are `golden/*.yaml`; after a change that is meant, ``python -m tests.refusals --record``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import grpc
import pytest

from dledger.errors import DiskFull
from dledger.rpc import error_table
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.rocketmq_stubs import service
from dledger.server.config import NATIVE
from tests.refusals import worlds
from tests.refusals.golden import HOW, Recorded, answered, differences, placed, recorded
from tests.refusals.worlds import ADMIN, TOPIC_ADMIN


async def test_every_refusal_is_answered_as_it_was_recorded() -> None:
    """By each server, at the leader, at a follower, and at the ports of peers."""
    said = list(differences(recorded(), await answered()))

    assert not said, "\n\n".join(
        (f"{len(said)} answers are not as recorded (if that is meant: {HOW})", *said)
    )


async def test_a_code_that_is_changed_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is said of which RPC, refusal and server: a comparison that sees nothing passes."""
    known = _of_refused_commands(recorded())
    row = error_table.TABLE[DiskFull]
    changed = replace(row, grpc=grpc.StatusCode.DATA_LOSS, rocketmq="INTERNAL_ERROR")
    monkeypatch.setitem(error_table.TABLE, DiskFull, changed)

    found = await worlds.refused_commands(NATIVE)

    said = list(differences(known, placed(NATIVE, found)))
    firsts = [each.splitlines()[0] for each in said]
    assert "Ledger/Append, 'the disk is full', on native at the leader:" in firsts
    assert "SendMessage, 'the disk is full', on native at the follower:" in firsts
    assert all("the disk is full'" in first for first in firsts)
    (append,) = [each for each in said if each.startswith("Ledger/Append") and "leader" in each]
    assert "- RESOURCE_EXHAUSTED: the disk has 0 bytes free" in append
    assert "+ DATA_LOSS: the disk has 0 bytes free" in append


def test_an_answer_that_is_missing_or_new_is_seen() -> None:
    """As when an RPC goes, or a world asks for less than it did."""
    where = ("SendMessage", "body: empty", NATIVE, worlds.LEADER)

    assert "asked no longer" in next(differences({where: "x"}, {}))
    assert "not recorded" in next(differences({}, {where: "x"}))


def test_every_method_has_recorded_refusals() -> None:
    """Of RocketMQ's service and of ours; one that is added is asked for something, too."""
    described: Iterable[str] = (
        *(m.name for m in service.DESCRIPTOR.services_by_name["MessagingService"].methods),
        *(
            f"{name}/{method.name}"
            for name, each in pb.DESCRIPTOR.services_by_name.items()
            for method in each.methods
        ),
    )
    of_each = {rpc: set[str]() for rpc in described}
    for rpc, refusal, *_ in recorded():
        of_each.setdefault(rpc, set()).add(refusal)

    few = {
        rpc for rpc, refusals in of_each.items() if not rpc.startswith("/") and len(refusals) < 2
    }

    assert not few, f"nothing, or nearly nothing, is recorded of {sorted(few)}"
    assert {f"Admin/{name}" for name in (*ADMIN, *TOPIC_ADMIN)} <= of_each.keys()


def _of_refused_commands(known: Recorded) -> Recorded:
    refusals = {
        "the disk is full",
        "a member does not know the command",
        "too often",
        "a bug",
        "stored or not, and then the disk is full",
        "stored or not, and then too often",
    }
    places = (worlds.LEADER, worlds.FOLLOWER)
    return {
        where: says
        for where, says in known.items()
        if where[1] in refusals
        and where[2] == NATIVE
        and where[3] in places
        and not where[0].startswith("Admin/")
    }
