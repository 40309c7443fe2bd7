"""What the bench writes down: values that go to JSON and come back equal.

A run is the facts of the machine and its rows. A row's figures are medians over the rounds in
which it was measured; ``samples`` keeps the headline figure of each round.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

FORMAT: Final = 1
OURS: Final = "dledger"


class MalformedRun(Exception):
    """A file of results that this version cannot read; the message names the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement.

    Attributes:
        kind: What was measured, such as ``append``; rows of a kind may be compared.
        system: Whose it is: `OURS` or a peer.
        name: What sets it apart from others of its kind, in words.
        size_bytes: Bytes of a message's body; 0 where there is none.
        batch: Messages of a request.
        window: Requests under way at once.
        figures: By name; the unit is the last word of the name (``_s``, ``_ms``, ``_mb``).
        samples: The headline figure of each round, or each trial's outcome.
        notes: What a reader has to know to compare it.
    """

    kind: str
    system: str
    name: str
    size_bytes: int = 0
    batch: int = 1
    window: int = 1
    figures: Mapping[str, float] = field(default_factory=dict)
    samples: Sequence[float] = ()
    notes: Sequence[str] = ()

    @property
    def identity(self) -> tuple[str, str, str, int, int, int]:
        """What two rounds of the same measurement have in common."""
        return (self.kind, self.system, self.name, self.size_bytes, self.batch, self.window)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of the bench.

    Attributes:
        at: When it began, UTC, such as ``2026-11-21T19:55:28Z``.
        commit: What was measured; ``+`` behind it when there were changes.
        machine: Facts that bound the figures.
        rows: In the order in which they were first measured.
    """

    at: str
    commit: str
    machine: Mapping[str, Any]
    rows: Sequence[Row]


def merged(rounds: Sequence[Row]) -> Row:
    """Return one row for several rounds of a measurement: the median of each figure."""
    first = rounds[0]
    assert all(row.identity == first.identity for row in rounds)
    figures = {
        name: median(row.figures[name] for row in rounds if name in row.figures)
        for name in dict.fromkeys(name for row in rounds for name in row.figures)
    }
    return Row(
        **_identity_fields(first),
        figures=figures,
        samples=tuple(sample for row in rounds for sample in row.samples),
        notes=tuple(dict.fromkeys(note for row in rounds for note in row.notes)),
    )


def by_identity(rows: Sequence[Row]) -> list[Row]:
    """Return one merged row for each measurement, in the order of first appearance."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(row.identity, []).append(row)
    return [merged(rounds) for rounds in found.values()]


def _identity_fields(row: Row) -> dict[str, Any]:
    names = ("kind", "system", "name", "size_bytes", "batch", "window")
    return dict(zip(names, row.identity, strict=True))


def to_json(run: Run) -> str:
    """Return the file's text: a line for each row, so that a diff can be read."""
    head = json.dumps({"format": FORMAT, "at": run.at, "commit": run.commit})[:-1]
    machine = json.dumps(run.machine)
    rows = ",\n".join("  " + json.dumps(_compact(row)) for row in run.rows)
    return f'{head},\n "machine": {machine},\n "rows": [\n{rows}\n]}}\n'


def _compact(row: Row) -> dict[str, Any]:
    fields = asdict(row)
    fields["figures"] = {name: round(value, 3) for name, value in row.figures.items()}
    fields["samples"] = [round(value, 3) for value in row.samples]
    return fields


def from_json(text: str, name: str) -> Run:
    """Return the run in the file *name*. Raises MalformedRun."""
    try:
        fields = json.loads(text)
        if fields["format"] != FORMAT:
            raise MalformedRun(f"{name}: format {fields['format']}, not {FORMAT}")
        return Run(
            at=fields["at"],
            commit=fields["commit"],
            machine=fields["machine"],
            rows=tuple(_row(row) for row in fields["rows"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedRun(f"{name}: {error}") from error


def _row(fields: dict[str, Any]) -> Row:
    several = {name: tuple(fields[name]) for name in ("samples", "notes")}
    return Row(**fields | several)


def history(directory: Path) -> list[Run]:
    """Return all runs kept in *directory*, the oldest first. Raises MalformedRun."""
    runs = [from_json(path.read_text("utf-8"), path.name) for path in directory.glob("*.json")]
    return sorted(runs, key=lambda run: run.at)
