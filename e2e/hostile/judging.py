"""Whether the promise to a tenant beside a hostile one was kept. Pure: figures in, lines out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from e2e.harness.checks import Check, at_most, none_of
from e2e.harness.sequence import lost, stored_twice

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


def lines(name: str, seen: Seen) -> list[Check]:
    """Return each figure, and whether it was kept."""
    grown = [one for one in seen.growth_mib if one is not None]
    most = max(grown) if len(grown) == len(seen.growth_mib) and grown else None
    return [
        _enough(f"{name}: acknowledged", len(seen.acknowledged)),
        none_of(f"{name}: acknowledged and lost", len(lost(seen.acknowledged, seen.stored))),
        none_of(f"{name}: stored twice", len(stored_twice(seen.stored))),
        none_of(f"{name}: not delivered", len(lost(seen.acknowledged, seen.received))),
        none_of(f"{name}: restarts", seen.restarts),
        at_most(f"{name}: growth of a node", most, GROWTH_MIB, "MiB"),
        _share(name, seen.calm_rate, seen.attacked_rate),
        _refused(name, seen.refusals),
        _served(name, seen.new_client),
    ]


def _enough(what: str, count: int) -> Check:
    return Check(what=what, value=str(count), asked="some", kept=count > 0)


def _share(name: str, calm: float, attacked: float) -> Check:
    value = f"{attacked:.1f} of {calm:.1f} a second"
    kept = calm > 0 and attacked >= SHARE * calm
    return Check(what=f"{name}: sends answered", value=value, asked="half or better", kept=kept)


def _refused(name: str, refusals: Sequence[str]) -> Check:
    value = f"{len(refusals)}: {refusals[0]}" if refusals else "0"
    what = f"{name}: refused {RECOVERY_S:.0f} s after it"
    return Check(what=what, value=value, asked="none", kept=not refusals)


def _served(name: str, said: str) -> Check:
    return Check(
        what=f"{name}: a new client", value=said or "served", asked="served", kept=not said
    )


def held(what: str, value: object, asked: str, kept: bool) -> Check:
    """Return a line of an attack's own."""
    return Check(what=what, value=str(value)[:120], asked=asked, kept=kept)
