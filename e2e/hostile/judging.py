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
    acked, calm, attacked, refusals = (
        len(seen.acknowledged), seen.calm_rate, seen.attacked_rate, seen.refusals,
    )  # fmt: skip
    rate = f"{attacked:.1f} of {calm:.1f} a second"
    answered = calm > 0 and attacked >= SHARE * calm
    refused = f"{len(refusals)}: {refusals[0]}" if refusals else "0"
    client = seen.new_client
    return [
        held(f"{name}: acknowledged", acked, "some", acked > 0),
        none_of(f"{name}: acknowledged and lost", len(lost(seen.acknowledged, seen.stored))),
        none_of(f"{name}: stored twice", len(stored_twice(seen.stored))),
        none_of(f"{name}: not delivered", len(lost(seen.acknowledged, seen.received))),
        none_of(f"{name}: restarts", seen.restarts),
        at_most(f"{name}: growth of a node", most, GROWTH_MIB, "MiB"),
        held(f"{name}: sends answered", rate, "half or better", answered),
        held(f"{name}: refused {RECOVERY_S:.0f} s after it", refused, "none", not refusals),
        held(f"{name}: a new client", client or "served", "served", not client),
    ]


def held(what: str, value: object, asked: str, kept: bool) -> Check:
    """Return a line of an attack's own."""
    return Check(what=what, value=str(value)[:120], asked=asked, kept=kept)
