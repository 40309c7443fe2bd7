"""Why a spec is not acted on: a reason, and a sentence that names the field. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from dledger_operator.api.reasons import Reason
from dledger_operator.api.texts import Shape


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a spec is not acted on, in a sentence that names the field."""

    reason: Reason
    message: str


def invalid(message: str) -> Problem:
    """Return that the spec contradicts itself, its group, or what there is."""
    return Problem(Reason.INVALID_SPEC, message)


def misshapen(path: str, text: str, shape: Shape) -> Problem:
    """Return that the text at *path* has not the shape it needs."""
    return invalid(f"{path} {shape.words}, not {text!r}")
