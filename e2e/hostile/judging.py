"""Whether the promise to a tenant beside a hostile one was kept. Pure: figures in, lines out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from e2e.harness.checks import Check, at_most, none_of
from e2e.harness.sequence import lost, stored_twice

GROWTH_MIB: Final = 64.0
A_TLS_CONNECTION_MIB: Final = 100 / 1024
"""What each of the stranger's may cost beside it: OpenSSL's own state is a third of this."""
LEFT_MIB: Final = 32.0
LEFT_S: Final = 60.0
LIMIT_MIB: Final = 1024
"""What a process of a node may have."""
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
        allowed_mib: What that may be.
        is_crowd: Whether nobody attacks: then what a crowd leaves of the rate is told, not judged.
        left_mib: The same, a minute later at the latest.
        calm_deliveries: Messages that the consumer was given before, a second.
        attacked_deliveries: The same meanwhile.
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
    calm_deliveries: float
    attacked_deliveries: float
    left_mib: Sequence[float | None]
    allowed_mib: float = GROWTH_MIB
    is_crowd: bool = False


def lines(name: str, seen: Seen) -> list[Check]:
    """Return each figure, and whether it was kept."""
    acked, calm, attacked, refusals = (
        len(seen.acknowledged), seen.calm_rate, seen.attacked_rate, seen.refusals,
    )  # fmt: skip
    refused = f"{len(refusals)}: {refusals[0]}" if refusals else "0"
    client = seen.new_client
    return [
        held(f"{name}: acknowledged", acked, "some", acked > 0),
        none_of(f"{name}: acknowledged and lost", len(lost(seen.acknowledged, seen.stored))),
        none_of(f"{name}: stored twice", len(stored_twice(seen.stored))),
        none_of(f"{name}: not delivered", len(lost(seen.acknowledged, seen.received))),
        none_of(f"{name}: restarts", seen.restarts),
        at_most(f"{name}: growth of a node", _most(seen.growth_mib), seen.allowed_mib, "MiB"),
        at_most(
            f"{name}: growth left {LEFT_S:.0f} s after it", _most(seen.left_mib), LEFT_MIB, "MiB"
        ),
        _half(f"{name}: sends answered", attacked, calm, seen.is_crowd),
        _half(f"{name}: deliveries", seen.attacked_deliveries, seen.calm_deliveries, seen.is_crowd),
        held(f"{name}: refused {RECOVERY_S:.0f} s after it", refused, "none", not refusals),
        held(f"{name}: a new client", client or "served", "served", not client),
    ]


def _most(grown: Sequence[float | None]) -> float | None:
    """Return the most; None if a node was not seen."""
    known = [one for one in grown if one is not None]
    return max(known) if known and len(known) == len(grown) else None


def _half(what: str, attacked: float, calm: float, is_crowd: bool) -> Check:
    value = f"{attacked:.1f} of {calm:.1f} a second"
    if is_crowd:
        return held(what, value, "some", attacked > 0)
    return held(what, value, "half or better", calm > 0 and attacked >= SHARE * calm)


def held(what: str, value: object, asked: str, kept: bool) -> Check:
    """Return a line of an attack's own."""
    return Check(what=what, value=str(value)[:120], asked=asked, kept=kept)
