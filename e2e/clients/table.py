"""What a run found, as a table and as lines that are kept or not. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from e2e.clients.judging import Figures, Spooled
from e2e.harness import checks
from e2e.harness.checks import Check, columns

_EMPTY = ""


class CaseVerdict(Enum):
    """What came of a case."""

    PASSED = "+"
    FAILED = "F"
    GAP = "-"
    NO_LONGER_A_GAP = "no longer a gap"
    NOT_MEASURED = "?"


_CHECKED: Final = {
    CaseVerdict.PASSED: checks.Verdict.KEPT,
    CaseVerdict.FAILED: checks.Verdict.BROKEN,
    CaseVerdict.NO_LONGER_A_GAP: checks.Verdict.BROKEN,
    CaseVerdict.NOT_MEASURED: checks.Verdict.UNMEASURED,
}
"""What a case counts as; a gap shows nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One case in one language through one kind of port.

    Attributes:
        remark: Why it failed, is a gap, or was not measured.
    """

    case: str
    language: str
    tls: bool
    verdict: CaseVerdict
    remark: str = ""
    seconds: float = 0.0

    @property
    def port(self) -> str:
        """Which kind of port."""
        return "TLS" if self.tls else "plain"

    def __str__(self) -> str:
        remark = f": {self.remark}" if self.remark else ""
        return (
            f"{self.verdict.value:2} {self.language} {self.case} ({self.port}, "
            f"{self.seconds:.0f} s){remark}"
        )


def verdict(gap: str, error: str, chance: str = "") -> tuple[CaseVerdict, str]:
    """Return what a case came to, with a remark.

    Args:
        gap: Why the client cannot pass it, as declared; "" if it can.
        error: What went wrong; "" if nothing.
        chance: Why the client passes it or not, as declared; "" if it always does.
    """
    if gap:
        return (
            (CaseVerdict.GAP, gap) if error else (CaseVerdict.NO_LONGER_A_GAP, f"declared: {gap}")
        )
    if chance and error:
        return CaseVerdict.GAP, f"{chance}: {error}"
    return (CaseVerdict.FAILED, error) if error else (CaseVerdict.PASSED, "")


def table(results: Sequence[Result], languages: Iterable[str]) -> str:
    """Return a row a case, and a column a language: plain port, then TLS where it ran."""
    names = list(languages)
    cells: dict[str, dict[str, list[str]]] = {}
    for each in sorted(results, key=lambda result: result.tls):
        row = cells.setdefault(each.case, {})
        row.setdefault(each.language, []).append(each.verdict.value)
    rows = [
        [case, *("/".join(cells[case].get(name, [_EMPTY])) for name in names)]
        for case in dict.fromkeys(each.case for each in results)
    ]
    return columns([["case (plain/TLS)", *names], *rows])


def failover_table(found: Mapping[str, tuple[Figures, int]]) -> str:
    """Return a row for each load, by its name."""
    rows = [
        [
            "leader killed", "kills", "acked", "lost", "stored twice", "redelivered",
            "errors to the caller", "longest gap", "late", "latest", "no leader",
        ]
    ]  # fmt: skip
    for name, (seen, kills) in found.items():
        counts = (kills, seen.acked, len(seen.lost), len(seen.stored_twice), seen.redelivered)
        seconds = (seen.longest_gap_s, seen.latest_s, seen.leaderless_s)
        gap, latest, leaderless = (f"{value:.1f} s" for value in seconds)
        ends = (str(seen.errors), gap, str(seen.late), latest, leaderless)
        rows.append([name, *map(str, counts), *ends])
    return columns(rows)


def spool_table(found: Mapping[tuple[str, str], Spooled]) -> str:
    """Return a row an outage and language."""
    rows = [
        [
            "group away, through a sidecar", "language", "sent", "answered OK", "errors", "lost",
            "stored twice", "out of order", "most on the disk", "child killed", "longest send",
        ]
    ]  # fmt: skip
    for (case, language), seen in found.items():
        wrong = seen.errors, seen.lost, seen.stored_twice, seen.out_of_order
        counts = seen.sent, seen.answered, *wrong, seen.spooled, seen.kills
        rows.append([case, language, *map(str, counts), f"{seen.longest_s:.1f} s"])
    return columns(rows)


def exit_code(results: Sequence[Result], found: Sequence[Check]) -> int:
    """Return 0 if all is as it has to be, 1 if not, 2 if only something was not measured."""
    cases = [_CHECKED[each.verdict] for each in results if each.verdict in _CHECKED]
    return checks.exit_code([*cases, *(each.verdict for each in found)])
