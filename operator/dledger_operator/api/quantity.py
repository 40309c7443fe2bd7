"""Kubernetes quantities (``10Gi``, ``500m``, ``1e3``) as exact numbers. Pure."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

_FORM: Final = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|([KMGTPE]i|[numkMGTPE]))?")
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final[dict[str, int]] = {
    f"{prefix}i": 1024 ** (n + 1) for n, prefix in enumerate("KMGTPE")
}


def parse(text: str) -> Decimal:
    """Return the number a quantity stands for.

    Raises:
        ValueError: It is not a quantity.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity such as 10Gi")
    number, exponent, suffix = match.groups()
    if exponent:
        return Decimal(number + exponent)
    if suffix in _BINARY:
        return Decimal(number) * _BINARY[suffix]
    return Decimal(number).scaleb(_DECIMAL.get(suffix or "", 0))


def same(left: object, right: object) -> bool:
    """Whether two values are the same quantity, however spelled: ``1`` and ``1000m``."""
    try:
        return parse(str(left)) == parse(str(right))
    except ValueError:
        return False
