"""``make growth`` judges what it saw: what was not measured is not kept, and so is what failed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.growth import __main__ as command
from e2e.growth import state
from e2e.growth.cases import CASES
from e2e.growth.measures import longest_turn_s
from e2e.growth.setting import Setting
from e2e.harness.checks import at_most, failed, none_of, refused, table
from e2e.harness.command import Outcome


def test_a_figure_is_kept_up_to_its_bound() -> None:
    """The bound itself is; without a figure nothing is."""
    assert [at_most("x", value, 100, "ms").kept for value in (99.9, 100, 100.1, None)] == [
        *(True, True, False, False),
    ]
    assert [none_of("deaths", count).kept for count in (0, 1, None)] == [True, False, False]


def test_a_bound_is_kept_if_the_refusal_names_it() -> None:
    """What is taken beyond it, or refused for another reason, is not."""
    assert refused("one more", "there are 10000 groups already", "groups").kept
    assert not refused("one more", "", "groups").kept
    assert not refused("one more", "no answer in time", "groups").kept
    assert not failed("storm", RuntimeError("the load came to nothing")).kept


def test_the_longest_turn_is_the_highest_bucket_that_grew() -> None:
    """Cumulative buckets, as a scrape gives them; a process that was started anew counts, too."""
    before = {0.1: 5.0, 0.2: 9.0, 0.5: 9.0, float("inf"): 9.0}
    after = {0.1: 6.0, 0.2: 12.0, 0.5: 12.0, float("inf"): 12.0}

    assert longest_turn_s(before, after) == 0.2
    assert longest_turn_s({}, after) == 0.2
    assert longest_turn_s(before, before) is None
    assert longest_turn_s(before, {}) is None
    assert longest_turn_s(after, {0.1: 0.0, 0.2: 0.0, 0.5: 1.0, float("inf"): 1.0}) == 0.5


@pytest.mark.parametrize("dimension", state.DIMENSIONS)
def test_a_state_is_built_and_measured(dimension: str) -> None:
    """Each dimension at a small size: the drivers go with the broker."""
    size = 1 if dimension == "busy-groups" else 64  # each makes 1,024 receives

    found = state.DIMENSIONS[dimension](state.Feed(), size)

    assert float(found["freeze_ms"]) >= 0
    assert float(found["snapshot_mb"]) >= 0


@pytest.mark.parametrize(("kept", "code"), [(True, 0), (False, 1)])
def test_the_exit_code_is_the_lines(
    kept: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And they are in the file, with the figures."""

    async def case(setting: Setting) -> Outcome:
        """A case."""
        outcome = Outcome(figures={"scale": setting.scale})
        outcome.lines.append(at_most("a turn", 50 if kept else 150, 100, "ms"))
        return outcome

    monkeypatch.setitem(CASES, "polls", case)

    assert command.main(["--only", "polls", "--out", str(tmp_path)]) == code

    (line,) = json.loads((tmp_path / "growth.json").read_text("utf-8"))["lines"]
    assert line["kept"] == kept


def test_a_case_that_fails_is_a_line_that_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are run all the same."""

    async def broken(_: Setting) -> Outcome:
        """Fails."""
        raise RuntimeError("no group")

    async def whole(_: Setting) -> Outcome:
        """Holds."""
        return Outcome(lines=[none_of("deaths", 0)])

    monkeypatch.setitem(CASES, "polls", broken)
    monkeypatch.setitem(CASES, "storm", whole)

    assert command.main(["--only", "polls,storm", "--out", str(tmp_path)]) == 1

    lines = json.loads((tmp_path / "growth.json").read_text("utf-8"))["lines"]
    assert [line["kept"] for line in lines] == [False, True]


def test_the_table_counts_what_is_kept() -> None:
    """Its last line is what one looks at."""
    assert table([none_of("a", 0), none_of("b", 2)]).endswith("1 of 2 lines kept")
