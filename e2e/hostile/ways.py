"""How an attack comes: in plain text or by TLS, at nodes with or without doors, from where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Way:
    """One way.

    Attributes:
        tls: Whether the attack and the honest clients go to the TLS port.
        settings: What nodes are told for it.
        sources: Addresses of the stranger; honest clients have 127.0.0.1.
    """

    tls: bool = False
    settings: tuple[str, ...] = ()
    sources: tuple[str, ...] = ("127.0.0.2",)


_DOORS: Final = ("door_processes=1",)
_MANY: Final = tuple(f"127.0.0.{number}" for number in range(2, 34))
PLAIN: Final = "plain"
WAYS: Final[dict[str, Way]] = {
    PLAIN: Way(),
    "tls": Way(tls=True),
    "doors": Way(settings=_DOORS),
    "doors-tls": Way(tls=True, settings=_DOORS),
    "many": Way(sources=_MANY),
    "many-tls": Way(tls=True, sources=_MANY),
    "same": Way(sources=("127.0.0.1",)),
}
"""Every way by its name; `same` is a stranger behind the honest clients' own address."""
ONE: Final = ("plain", "tls", "doors", "doors-tls")
"""Of an attack that one address makes as well as many."""
ALL: Final = tuple(WAYS)
TLS: Final = tuple(name for name, way in WAYS.items() if way.tls)
"""Of one that is about TLS alone."""
