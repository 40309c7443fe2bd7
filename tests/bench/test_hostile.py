"""``make hostile`` judges what it saw: a broken promise is seen, and what was not measured."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from e2e.harness.checks import Check, Verdict, exit_code
from e2e.hostile import __main__ as command
from e2e.hostile import frames
from e2e.hostile.attacks import ATTACKS
from e2e.hostile.honest import Ended, Honest
from e2e.hostile.judging import Seen, held, lines
from e2e.hostile.running import Memory
from e2e.hostile.scene import Scene
from e2e.hostile.victim import Sent, Victim
from e2e.hostile.ways import WAYS

GOOD = Seen(
    calm_rate=20.0,
    attacked_rate=10.0,
    acknowledged=frozenset({"a", "b"}),
    stored=Counter({"a": 1, "b": 1}),
    received=frozenset({"a", "b"}),
    restarts=0,
    growth_mib=(1.0, 64.0, -3.0),
    refusals=(),
    new_client="",
    calm_deliveries=20.0,
    attacked_deliveries=10.0,
    left_mib=(1.0, 32.0, -3.0),
)


def test_what_was_promised_is_kept() -> None:
    """At its very bounds."""
    assert [line.what for line in lines("x", GOOD) if not line.kept] == []


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"acknowledged": frozenset()}, "acknowledged"),
        ({"stored": Counter({"a": 1})}, "acknowledged and lost"),
        ({"stored": Counter({"a": 1, "b": 2})}, "stored twice"),
        ({"received": frozenset({"a"})}, "not delivered"),
        ({"restarts": 1}, "restarts"),
        ({"growth_mib": (1.0, 64.1, 2.0)}, "growth of a node"),
        ({"growth_mib": (1.0, None, 2.0)}, "growth of a node"),
        ({"left_mib": (1.0, 32.1, 2.0)}, "growth left 60 s after it"),
        ({"left_mib": (1.0, None, 2.0)}, "growth left 60 s after it"),
        ({"attacked_deliveries": 9.9}, "deliveries"),
        ({"calm_deliveries": 0.0, "attacked_deliveries": 0.0}, "deliveries"),
        ({"attacked_rate": 9.9}, "sends answered"),
        ({"attacked_rate": 0.0, "is_crowd": True}, "sends answered"),
        ({"calm_rate": 0.0, "attacked_rate": 0.0}, "sends answered"),
        ({"refusals": ("TOO_MANY_REQUESTS",)}, "refused 10 s after it"),
        ({"new_client": "UNAVAILABLE"}, "a new client"),
    ],
)
def test_a_figure_that_is_broken_is_seen(change: dict[str, Any], what: str) -> None:
    """Each by itself, and so is one that was not measured."""
    found = lines("x", replace(GOOD, **change))

    assert [line.what for line in found if not line.kept] == [f"x: {what}"]


def test_what_an_honest_crowd_leaves_is_told_and_not_judged() -> None:
    """They want what the victim wants; nothing else is forgiven them."""
    assert all(line.kept for line in lines("x", replace(GOOD, attacked_rate=0.1, is_crowd=True)))


def test_the_exit_code_is_the_lines_and_what_is_missing() -> None:
    """1 for a broken promise, 2 for what came to no figures, 0 only for all."""
    kept, broken = held("x", 1, "some", True), held("x", 0, "some", False)

    assert exit_code([kept.verdict]) == 0
    assert exit_code([kept.verdict, broken.verdict, Verdict.UNMEASURED]) == 1
    assert exit_code([kept.verdict, Verdict.UNMEASURED]) == 2
    assert exit_code([]) == 2


def test_only_answered_sends_of_the_time_count() -> None:
    """By when they were sent; what is refused is told from its own time on."""
    victim = Victim(["127.0.0.1:1"])
    victim.sent = [Sent(str(n), float(n), 0.1, "OK" if n % 2 else "UNAVAILABLE") for n in range(8)]
    victim.refused.append((7.5, "poll: INTERNAL_ERROR"))

    victim.received_s = [0.5, 1.0, 3.9, 4.0]

    assert victim.rate(0, 4) == 0.5
    assert victim.deliveries(0, 4) == 0.75
    assert victim.acknowledged() == {"1", "3", "5", "7"}
    assert victim.refusals(5.0) == ["UNAVAILABLE", "poll: INTERNAL_ERROR"]


def test_a_node_that_is_gone_has_no_growth() -> None:
    """It was not there to be measured."""
    memory = Memory.of([2**22 + 1])
    memory.look()

    assert memory.growth() == [None]


def test_an_attack_that_fails_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are made all the same, and the file says which is missing."""

    async def one(name: str, work: Path) -> list[Check]:
        if name == "a01/plain":
            raise RuntimeError("came to nothing")
        return [held(name, 1, "some", True)]

    monkeypatch.setattr(command, "one", one)

    assert command.main(["--only", "a01,a03", "--ways", "plain", "--out", str(tmp_path)]) == 2

    found = json.loads((tmp_path / "hostile.json").read_text("utf-8"))
    assert [line["what"] for line in found["lines"]] == ["a03/plain"]
    assert found["unmeasured"] == ["a01/plain: RuntimeError: came to nothing"]


def test_every_attack_says_what_it_does() -> None:
    """Its first line is what a run prints."""
    assert all(ATTACKS[name].what.startswith(name[0].upper()) for name in ATTACKS)


def test_an_attack_comes_in_every_way_that_it_has() -> None:
    """What is about clients' ports by TLS and through doors, too; what needs no group once."""
    found = command.cases(["a05", "b02", "k01"], WAYS)

    assert found == ["a05/plain", *(f"b02/{way}" for way in WAYS), "k01"]
    assert command.cases(["b02", "b04h"], ["plain"]) == ["b02/plain"]


def test_a_scene_is_the_same_in_the_process_of_the_attack() -> None:
    """It is sent as JSON, the stranger's addresses with it."""
    scene = Scene(
        endpoints=["127.0.0.1:1"], tls_endpoints=[], admins=["127.0.0.1:201"], pids=[1], leader=0,
        seconds=1.0, sources=WAYS["many"].sources,
    )  # fmt: skip

    assert Scene.decode(scene.encode()) == scene
    assert (scene.source(0), scene.source(33)) == ("127.0.0.2", "127.0.0.3")
    assert scene.http(0) == ("127.0.0.1", 301)


def test_frames_by_hand_are_read_as_they_were_made() -> None:
    """Whole ones, in whatever pieces they come; what is left waits for its rest."""
    sent = frames.call(1, b"SendMessage", b"x" * 300) + frames.settings((4, 9))
    buffer, read = bytearray(), list[frames.Frame]()
    for at in range(0, len(sent), 7):
        buffer += sent[at : at + 7]
        read += frames.read_frames(buffer)

    assert [(one.kind, one.stream) for one in read] == [(1, 1), (0, 1), (4, 0)]
    assert b"".join(frames.frame(*one) for one in read) == sent
    assert not buffer


async def test_a_client_of_the_crowd_is_not_served_by_silence() -> None:
    """Whose connection ends has no answer, and a status that is none is no OK."""
    client = Honest("crowd@1")
    client.connection_lost(None)

    with pytest.raises(Ended):
        await client.route("crowd")


def test_the_attacks_that_need_no_group_are_borne(tmp_path: Path) -> None:
    """A user's specs, a lying node, a poisoned archive: the cheapest ones, as they are."""
    assert command.main(["--only", "k01,k02,p02", "--out", str(tmp_path)]) == 0
