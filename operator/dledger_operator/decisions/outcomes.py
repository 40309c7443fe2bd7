"""Where an operation stands: frozen values that `operations` and `forcing` answer. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger_operator.api.reasons import Reason
from dledger_operator.api.spec import Json


@dataclass(frozen=True, slots=True)
class Waits:
    """It has not begun; *record* is shown meanwhile."""

    reason: Reason
    message: str
    record: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Begun:
    """It begins, once what it rests on (*record*) is in the status."""

    record: Json


@dataclass(frozen=True, slots=True)
class Going:
    """It runs; *message* says where it is."""

    message: str


@dataclass(frozen=True, slots=True)
class Done:
    """It is done; *record* is what it did."""

    message: str
    record: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rejected:
    """It failed, for good; *record* is added to what is shown."""

    reason: Reason
    message: str
    record: Json = field(default_factory=dict)


Outcome = Waits | Begun | Going | Done | Rejected
