"""Known misses that are not worked on: each with its figure and its cause. Pure.

These lines stay as they are asked, and who measures them still says that they are not kept. What
follows from standing here: a run that misses nothing else may go into the history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from e2e.bench import soak
from e2e.bench.markdown import paragraph, table, with_unit
from e2e.bench.rows import Run
from e2e.bench.targets import P99_MEANWHILE, TARGETS, Target
from e2e.harness.checks import Bound, Verdict

_ABOUT: Final = (
    "Lines that are not kept on this machine, and are not worked on: how far they are missed is "
    "measured, and why is known. What is asked is not lowered for that: `make soak` ends "
    "with an exit code that says so.\n"
)
_CATCH_UP: Final = (
    "three nodes and their client share two cores and one disk: the leader's event loop sends a "
    "tick's share of the backlog in one turn, and its syncs wait behind the follower's writes "
    "(what was tried: [adr 29](adr/0029-a-catch-up-is-paced.md))"
)
_GROWTH: Final = (
    "a leader takes some 10 MB more than a follower, so a process that comes to lead in its few "
    "minutes has grown ([how it is measured](internals/benchmarks.md))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One line that is left out.

    Attributes:
        line: As it is asked.
        most: What it may be.
        here: What it is, in the newest run that measured it; None where none is kept.
        unit: Of both; "" where the line says it.
        cause: What bounds it.
    """

    line: str
    most: float
    here: float | None
    unit: str
    cause: str


def section(bench: Run | None, runs: Sequence[Run]) -> str:
    """Return the page's part about them; see `limits`."""
    found = limits(bench, runs)
    figures = table(
        ["line", "at most", "here"],
        [
            [
                limit.line,
                with_unit(limit.most, limit.unit),
                with_unit(limit.here, limit.unit) or Verdict.UNMEASURED.value,
            ]
            for limit in found
        ],
    )
    causes = "".join(
        paragraph(f"- {' / '.join(each.line for each in found if each.cause == cause)}: {cause}.")
        for cause in dict.fromkeys(limit.cause for limit in found)
    )
    about = f"### Left out on purpose\n\n{paragraph(_ABOUT)}"
    return f"\n{about}\n{figures}\nWhat bounds them:\n\n{causes}"


def limits(bench: Run | None, runs: Sequence[Run]) -> list[Limit]:
    """Return all of them.

    Args:
        bench: The newest run of the bench, completed by a catch-up.
        runs: All that are kept, the newest last.
    """
    catch_up = [target for target in TARGETS if target.line.startswith(P99_MEANWHILE)]
    return [
        *(_of_goal(target, bench) for target in catch_up),
        *(
            Limit(line=line.what, most=line.most, here=line.value, unit="", cause=_GROWTH)
            for line in _of_soak(runs)
            if line.what in soak.LEFT_OUT
        ),
    ]


def _of_goal(target: Target, bench: Run | None) -> Limit:
    return Limit(
        line=target.line,
        most=target.least,
        here=None if bench is None else target.value(bench),
        unit=target.unit,
        cause=_CATCH_UP,
    )


def _of_soak(runs: Sequence[Run]) -> list[Bound]:
    """Return the lines of the newest soak that is kept; none without one."""
    found = [[row for row in run.rows if row.kind == soak.SOAK] for run in runs]
    rows = next((rows for rows in reversed(found) if rows), [])
    return [line for row in rows for line in soak.verdict(row.figures)]
