"""Every decoder of outside bytes bears hostile input: a short run of ``make fuzz``, and its past.

The long one is `make fuzz MINUTES=20`; what it found once is in `corpus.json`, with the sentence
that it said.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import ClassVar

import pytest

from tests.fuzz import __main__ as command
from tests.fuzz.running import Finding, Tally, run
from tests.fuzz.sharing import slices
from tests.fuzz.target import Broken, Target, judge
from tests.fuzz.targets import TARGETS

SECONDS = 0.5
"""Of each target: twenty seconds in all."""
CORPUS = json.loads((Path(__file__).parent / "corpus.json").read_text("utf-8"))


@contextmanager
def _target(name: str) -> Iterator[Target]:
    target = TARGETS[name]()
    try:
        yield target
    finally:
        target.close()


@pytest.mark.parametrize("name", TARGETS)
def test_a_decoder_of_outside_bytes_bears_half_a_second(name: str) -> None:
    """Nothing is raised that it does not name, nothing accepted that another part cannot use."""
    with _target(name) as target:
        tally = run(target, seed="make test", seconds=SECONDS)

    assert [finding.found for finding in tally.findings] == []
    assert tally.inputs > 0


@pytest.mark.found
@pytest.mark.parametrize("name", CORPUS)
def test_what_was_found_once_stays_cured(name: str) -> None:
    """Each input that a decoder did not bear."""
    with _target(name) as target:
        found = {
            sentence: judge(target, base64.b64decode(encoded)).found
            for sentence, encoded in CORPUS[name].items()
        }

    assert {sentence: said for sentence, said in found.items() if said} == {}


class Fragile(Target):
    """Raises for one byte, accepts what it should not for another, and refuses a third by name."""

    name: ClassVar[str] = "fragile"
    refuses: ClassVar = (KeyError,)

    def draw(self, rng: Random) -> bytes:
        return rng.randbytes(8)

    def feed(self, data: bytes) -> Hashable:
        if b"\1" in data:
            raise IndexError("not named")
        if b"\2" in data:
            raise Broken("nobody can read it")
        if b"\3" in data:
            raise KeyError("named")
        return len(data) > 4


def test_what_is_not_named_and_what_breaks_others_is_found() -> None:
    """With the smallest input that shows it; what is named is not."""
    tally = run(Fragile(), seed="1", inputs=2_000)

    assert sorted(finding.data for finding in tally.findings) == [b"\1", b"\2"]
    assert ["IndexError" in finding.found for finding in tally.findings].count(True) == 1


def test_a_seed_draws_the_same_inputs() -> None:
    """A run is repeated by its seed, and an input by itself."""
    tallies = [run(Fragile(), seed=seed, inputs=50) for seed in ("1", "1", "2")]

    assert [each.accepted for each in tallies[:2]] == [tallies[0].accepted] * 2
    assert judge(Fragile(), b"\1").found
    assert not judge(Fragile(), b"\3").found


def test_the_exit_code_tells_findings_and_what_was_not_tried() -> None:
    """1 for a finding, 2 where a target accepted nothing, 0 only where all was tried."""
    good = Tally("good", inputs=5, accepted=2)
    idle = Tally("idle", inputs=5)
    bad = Tally("bad", inputs=5, accepted=1, findings=[Finding("bad", "said", b"x")])

    assert command.exit_code([good]) == 0
    assert command.exit_code([good, idle]) == 2
    assert command.exit_code([good, idle, bad]) == 1
    assert command.exit_code([]) == 2


def test_inputs_and_minutes_are_shared_by_all_targets() -> None:
    """As many as were asked for, in parts that several processes can take."""
    counted = list(slices(["a", "b"], seed="s", jobs=2, minutes=1, inputs=100))
    timed = list(slices(["a", "b"], seed="s", jobs=2, minutes=4, inputs=None))

    assert sum(part.inputs or 0 for part in counted) >= 100
    assert sum(part.seconds or 0 for part in timed) == pytest.approx(4 * 60 * 2)
    assert len({part.seed for part in counted if part.target == "a"}) == 2


def test_a_finding_names_the_command_that_shows_it(tmp_path: Path) -> None:
    """Short inputs stand in it, long ones in a file."""
    short = command.reproducer(Finding("frames", "said", b"\1"), tmp_path)
    long = command.reproducer(Finding("frames", "said", bytes(1_000)), tmp_path)

    assert short == "python -m tests.fuzz --target frames --input AQ=="
    assert Path(long.partition("@")[2]).read_bytes() == bytes(1_000)
