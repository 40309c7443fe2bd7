"""Which reasons docs/catalogue.yaml has for which status; the documents are written from it."""

from __future__ import annotations

from typing import Final

from dledger_operator.api.reasons import Reason
from scripts.catalogue import Shown, load

_SHOWN: Final = {reason.name: reason.shown for reason in load().reasons}


def is_documented(status: str, reason: Reason) -> bool:
    """Whether *status*, such as ``Ready=True``, may have a reason by the catalogue."""
    return Shown.parse(status) in _SHOWN[reason]
