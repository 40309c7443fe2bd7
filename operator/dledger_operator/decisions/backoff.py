"""Requests that the API server or a node refused, so that they are not repeated every second.

One for each BrokerGroup and BrokerBackup; the reconcilers fill it, plans and statuses see it as
`Observed.refusals`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dledger_operator.observed.observed import Ref

RETRY_S: Final = 15.0
"""What was refused is tried again after this long, or when the spec changes. The causes are
fixed by people, in minutes, and each attempt is an error in the API server's audit log."""


class Backoff:
    """Errors of requests that failed, each until its request is due again."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._now_s = monotonic_s
        self._errors: dict[Ref, tuple[str, int, float]] = {}

    def add(self, ref: Ref, error: str, *, generation: int) -> None:
        """Note the error of a request that came from this generation of the spec."""
        self._errors[ref] = (error, generation, self._now_s() + RETRY_S)

    def active(self, generation: int) -> dict[Ref, str]:
        """Return the errors of what is not to be asked for again yet."""
        now_s = self._now_s()
        self._errors = {
            ref: (error, of, until_s)
            for ref, (error, of, until_s) in self._errors.items()
            if of == generation and until_s > now_s
        }
        return {ref: error for ref, (error, _, _) in self._errors.items()}
