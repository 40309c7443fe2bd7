"""The register checker: compare-and-set with a new value every time must give one chain.

Where every value is written at most once, each has one operation that made it. Followed back from
all that was seen, these operations must form one path from the initial value: a fork is a lost
update. Along the path real time must not run backwards. Linear in the history, so it can take
registers that are too long for the search in `linearizability`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from e2e.chaos.history import NEVER, Kind, Operation, Outcome

INITIAL: Final = 0


class RegisterFault(Enum):
    """What can be wrong with a compare-and-set register."""

    PHANTOM = "phantom"
    """A value was seen that nobody wrote, or whose writer was refused."""
    FORK = "fork"
    """Two compare-and-sets replaced the same value: one update is lost."""
    CYCLE = "cycle"
    """A value comes from itself."""
    STALE = "stale"
    """An operation saw an older value than one that had ended before it began."""
    REFUSAL = "refusal"
    """A compare-and-set was refused although the register held what it expected all the time."""
    REUSE = "reuse"
    """The history writes a value twice: this checker cannot judge it."""


@dataclass(frozen=True, slots=True)
class RegisterFinding:
    """One thing that is wrong with one register."""

    fault: RegisterFault
    key: str
    text: str


def check_registers(operations: Iterable[Operation]) -> list[RegisterFinding]:
    """Check every register of a history that has reads and compare-and-sets only."""
    keys: dict[str, list[Operation]] = {}
    for operation in operations:
        keys.setdefault(operation.key, []).append(operation)
    return [finding for key, history in keys.items() for finding in _check(key, history)]


def _check(key: str, history: Sequence[Operation]) -> Iterator[RegisterFinding]:
    makers, findings = _makers(key, history)
    chain = [] if findings else _chain(key, history, makers, findings)
    yield from findings
    if not findings:
        yield from _Timeline(key, chain).check(history)


def _makers(
    key: str, history: Sequence[Operation]
) -> tuple[dict[int, Operation], list[RegisterFinding]]:
    """Return for each value the operation that may have written it."""
    makers: dict[int, Operation] = {}
    findings: list[RegisterFinding] = []
    for operation in history:
        if operation.kind is Kind.READ or operation.value is None:
            continue
        if operation.kind is Kind.WRITE or operation.value in (*makers, INITIAL):
            text = f"{operation.kind.value} of {operation.value}: values must be new, and by cas"
            findings.append(RegisterFinding(RegisterFault.REUSE, key, text))
        makers[operation.value] = operation
    return makers, findings


def _chain(
    key: str,
    history: Sequence[Operation],
    makers: Mapping[int, Operation],
    findings: list[RegisterFinding],
) -> list[Operation]:
    """Return the compare-and-sets that took effect, in their order; notes what contradicts one."""
    successors: dict[int, Operation] = {}
    known = {INITIAL}
    for observed in _observed(history):
        value, path = observed, [observed]
        while value not in known:
            known.add(value)
            maker = makers.get(value)
            if maker is None or maker.outcome is Outcome.REFUSED or maker.expected is None:
                why = "nobody wrote it" if maker is None else "its compare-and-set was refused"
                text = f"{value} was seen, but {why}"
                findings.append(RegisterFinding(RegisterFault.PHANTOM, key, text))
                break
            other = successors.setdefault(maker.expected, maker)
            if other is not maker:
                text = f"{other.value} and {maker.value} both replaced {maker.expected}"
                findings.append(RegisterFinding(RegisterFault.FORK, key, text))
            value = maker.expected
            if value in path:
                text = f"{value} comes from itself"
                findings.append(RegisterFinding(RegisterFault.CYCLE, key, text))
            path.append(value)
    return list(_followed(successors))


def _followed(successors: Mapping[int, Operation]) -> Iterator[Operation]:
    value: int | None = INITIAL
    seen = set()
    while value is not None and value in successors and value not in seen:
        seen.add(value)
        yield successors[value]
        value = successors[value].value


def _observed(history: Sequence[Operation]) -> Iterator[int]:
    """Yield every value that the register must have held."""
    for operation in history:
        if operation.outcome is Outcome.OK:
            for value in (operation.expected, operation.value):
                if value is not None:
                    yield value


class _Timeline:
    """The chain with real time: position *p* is the register after *p* compare-and-sets."""

    def __init__(self, key: str, chain: Sequence[Operation]) -> None:
        self._key = key
        self._chain = chain
        self._positions = {INITIAL: 0} | {
            operation.value: position
            for position, operation in enumerate(chain, 1)
            if operation.value is not None
        }

    def check(self, history: Sequence[Operation]) -> Iterator[RegisterFinding]:
        """Yield what contradicts real time."""
        spans = [span for operation in history if (span := self._span(operation)) is not None]
        yield from self._stale(spans)
        yield from self._refusals(history, spans)

    def _span(self, operation: Operation) -> tuple[Operation, int, int] | None:
        """Return the positions before and after an operation that took effect."""
        if operation.kind is Kind.READ and operation.outcome is Outcome.OK:
            position = self._positions[INITIAL if operation.value is None else operation.value]
            return operation, position, position
        if operation.kind is Kind.CAS and operation.value in self._positions:
            position = self._positions[operation.value]
            return operation, position - 1, position
        return None

    def _stale(self, spans: Sequence[tuple[Operation, int, int]]) -> Iterator[RegisterFinding]:
        ended = sorted((s for s in spans if s[0].ended_s < NEVER), key=lambda s: s[0].ended_s)
        newest: tuple[Operation, int] | None = None
        next_ended = 0
        for operation, before, _ in sorted(spans, key=lambda s: s[0].invoked_s):
            while next_ended < len(ended) and ended[next_ended][0].ended_s < operation.invoked_s:
                done, _, position = ended[next_ended]
                if newest is None or position > newest[1]:
                    newest = (done, position)
                next_ended += 1
            if newest is not None and newest[1] > before:
                text = f"{operation} came after {newest[0]} and saw an older value"
                yield RegisterFinding(RegisterFault.STALE, self._key, text)

    def _refusals(
        self, history: Sequence[Operation], spans: Sequence[tuple[Operation, int, int]]
    ) -> Iterator[RegisterFinding]:
        reached_s = self._reached_s(spans)
        for operation in history:
            if operation.kind is not Kind.CAS or operation.outcome is not Outcome.REFUSED:
                continue
            position = self._positions.get(operation.expected or INITIAL)
            if position is None or reached_s[position] >= operation.invoked_s:
                continue
            replaced_s = self._chain[position].invoked_s if position < len(self._chain) else NEVER
            if operation.ended_s < replaced_s:
                text = f"{operation} was refused while the register held {operation.expected}"
                yield RegisterFinding(RegisterFault.REFUSAL, self._key, text)

    def _reached_s(self, spans: Sequence[tuple[Operation, int, int]]) -> list[float]:
        """Return for each position the latest time by which the register had come there."""
        reached_s = [NEVER] * (len(self._chain) + 1)
        reached_s[0] = -NEVER
        for operation, _, position in spans:
            reached_s[position] = min(reached_s[position], operation.ended_s)
        for position in range(len(self._chain) - 1, 0, -1):
            reached_s[position] = min(reached_s[position], reached_s[position + 1])
        return reached_s
