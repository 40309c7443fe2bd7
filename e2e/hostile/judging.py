"""Whether the promise to a tenant beside a hostile one was kept. Pure: figures in, lines out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from e2e.harness.checks import Line, at_most, none_of

GROWTH_MIB: Final = 64.0
SHARE: Final = 0.5
"""Of the calm rate."""
RECOVERY_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen of the nodes and of the victim around one attack.

    Attributes:
        calm_rate: The victim's acknowledged messages a second before.
        attacked_rate: The same meanwhile.
        acknowledged: Their ids.
        stored: How often each of its ids is in the log.
        received: Which of them the consumer was given.
        restarts: Nodes that ended, but for those that the attack itself was told to kill.
        growth_mib: Of the resident memory, at its highest, of each node; None: not seen.
        refusals: What the victim was refused after `RECOVERY_S`.
        new_client: What a client that comes then is told; "" if it is served.
    """

    calm_rate: float
    attacked_rate: float
    acknowledged: frozenset[str]
    stored: Counter[str]
    received: frozenset[str]
    restarts: int
    growth_mib: Sequence[float | None]
    refusals: Sequence[str]
    new_client: str


def lines(name: str, seen: Seen) -> list[Line]:
    """Return each figure, and whether it was kept."""
    lost = sum(one not in seen.stored for one in seen.acknowledged)
    twice = sum(count > 1 for count in seen.stored.values())
    undelivered = len(seen.acknowledged - seen.received)
    grown = [one for one in seen.growth_mib if one is not None]
    most = max(grown) if len(grown) == len(seen.growth_mib) and grown else None
    return [
        _enough(f"{name}: acknowledged", len(seen.acknowledged)),
        none_of(f"{name}: acknowledged and lost", lost),
        none_of(f"{name}: stored twice", twice),
        none_of(f"{name}: not delivered", undelivered),
        none_of(f"{name}: restarts", seen.restarts),
        at_most(f"{name}: growth of a node", most, GROWTH_MIB, "MiB"),
        _share(name, seen.calm_rate, seen.attacked_rate),
        _refused(name, seen.refusals),
        _served(name, seen.new_client),
    ]


def _enough(what: str, count: int) -> Line:
    return Line(what=what, value=str(count), asked="some", kept=count > 0)


def _share(name: str, calm: float, attacked: float) -> Line:
    value = f"{attacked:.1f} of {calm:.1f} a second"
    kept = calm > 0 and attacked >= SHARE * calm
    return Line(what=f"{name}: sends answered", value=value, asked="half or better", kept=kept)


def _refused(name: str, refusals: Sequence[str]) -> Line:
    value = f"{len(refusals)}: {refusals[0]}" if refusals else "0"
    what = f"{name}: refused {RECOVERY_S:.0f} s after it"
    return Line(what=what, value=value, asked="none", kept=not refusals)


def _served(name: str, said: str) -> Line:
    return Line(what=f"{name}: a new client", value=said or "served", asked="served", kept=not said)


def held(what: str, value: object, asked: str, kept: bool) -> Line:
    """Return a line of an attack's own."""
    return Line(what=what, value=str(value)[:120], asked=asked, kept=kept)


def exit_code(found: Sequence[Line], unmeasured: Sequence[str]) -> int:
    """Return 1 if a line is not kept, 2 if all are and something was not measured."""
    if any(not line.kept for line in found):
        return 1
    return 2 if unmeasured or not found else 0
