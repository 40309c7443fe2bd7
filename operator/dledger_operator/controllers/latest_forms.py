"""Objects as the watch has them, or as they were written, where the watch has not caught up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar


class _Versioned(Protocol):
    """An object of the API: its resourceVersion grows with each write of it."""

    @property
    def uid(self) -> str: ...

    @property
    def version(self) -> str: ...


_T = TypeVar("_T", bound=_Versioned)


class LatestForms(Generic[_T]):
    """Remembers what was written; what is lost of it the watch tells a moment later."""

    def __init__(self) -> None:
        self._written: dict[str, _T] = {}

    def note(self, written: _T) -> None:
        """Take an object as the API server returned it."""
        self._written[written.uid] = written

    def of(self, watched: Iterable[_T]) -> list[_T]:
        """Return each of these objects in its later form; others are forgotten."""
        found = {one.uid: one for one in watched}
        for uid in self._written.keys() - found.keys():
            del self._written[uid]
        return [_newer(one, self._written.get(uid)) for uid, one in found.items()]


def _newer(watched: _T, written: _T | None) -> _T:
    if written is None or not (watched.version.isdigit() and written.version.isdigit()):
        return watched
    return written if int(written.version) > int(watched.version) else watched
