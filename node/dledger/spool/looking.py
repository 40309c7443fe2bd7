"""Looks at a spool's directory without its lock, beside the process that writes it: reads alone.

What is replayed meanwhile is not taken for damage: a file may go between two looks at the
directory, and the state then says that it had to. Called by the sidecar's `status`, `showing` and
`draining`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dledger.errors import CorruptFile, CorruptSpool, StorageError, Unsupported
from dledger.files.checked_json import VersionError
from dledger.files.files import Files
from dledger.spool.format import FILE_HEADER_BYTES, Gap, scan
from dledger.spool.identity import SpoolIdentity, load_identity
from dledger.spool.payload import decode_message
from dledger.spool.reader import Spooled
from dledger.spool.rejected import (
    Rejected,
    damage_of_rejected,
    read_rejected,
    sequences_aside,
)
from dledger.spool.spool_files import QUARANTINE, file_name, first_sequences, read_file
from dledger.spool.spool_scan import SpoolScan, SpoolScanner
from dledger.spool.state import read_state


@dataclass(frozen=True, slots=True)
class Survey:
    """What a directory has; counted are messages that waited when it was begun.

    Attributes:
        found: What the spool files have; its damage is what has not been passed yet.
        rejected: What is set aside.
    """

    found: SpoolScan
    rejected: tuple[Rejected, ...]


class Look:
    """A look at one directory.

    Raises:
        CorruptFile: It is no spool, or its identity or state is damaged.
        Unsupported: A later version wrote it.
        StorageError: The disk failed.
    """

    def __init__(self, files: Files, directory: Path) -> None:
        self._files, self._directory = files, directory
        with self._telling():
            self._identity = self._load()

    def _load(self) -> SpoolIdentity:
        identity = load_identity(self._files, self._directory)
        if identity is None:
            raise CorruptFile(str(self._directory), "it is no spool: there is no spool.json")
        return identity

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except VersionError as error:
            raise Unsupported(f"spool {self._directory}: {error}") from error
        except OSError as error:
            raise StorageError(f"cannot read spool {self._directory}: {error}") from error

    def backlog(self) -> int:
        """Return how many messages wait at most, by the state file alone; raises as above."""
        with self._telling():
            state = read_state(self._files, self._directory)
        return max(0, state.accepted - state.replayed)

    def survey(self) -> Survey:
        """Return what is there, all of which is read; raises as above."""
        with self._telling():
            state = read_state(self._files, self._directory)
            scanner = SpoolScanner(
                self._files,
                self._directory,
                self._identity,
                rejected=sequences_aside(self._files, self._directory, self._identity),
                certain=True,
            )
            found = scanner.survey(replayed=state.replayed, accepted=state.accepted)
            if found.damage:
                passed = read_state(self._files, self._directory).replayed
                found.damage = [one for one in found.damage if _is_left(one, passed)]
        return Survey(found, tuple(self.refusals()))

    def refusals(self) -> Iterator[Rejected]:
        """Yield what is set aside; raises as above."""
        with self._telling():
            yield from read_rejected(self._files, self._directory, self._identity)

    def waiting(self) -> Iterator[Spooled]:
        """Yield the messages that wait, file by file; raises as above."""
        with self._telling():
            replayed = read_state(self._files, self._directory).replayed
            aside = sequences_aside(self._files, self._directory, self._identity)
            firsts = first_sequences(self._files, self._directory)
            for first, behind in zip(firsts, [*firsts[1:], None], strict=False):
                if behind is None or behind > replayed + 1:
                    yield from self._messages(first, behind, replayed, aside)

    def _messages(
        self, first: int, behind: int | None, replayed: int, aside: set[int]
    ) -> Iterator[Spooled]:
        try:
            data = read_file(self._files, self._directory / file_name(first))
        except FileNotFoundError:  # replayed meanwhile
            return
        stamp = self._identity.stamp
        found = scan(data, stamp=stamp, first=first, limit=behind, start=FILE_HEADER_BYTES)
        for record in found.records:
            if record.sequence <= replayed or record.sequence in aside:
                continue
            try:
                message = decode_message(record.payload, record.version)
            except ValueError:  # the survey's damage has it once the replay comes to it
                continue
            size_bytes = record.end - record.offset
            yield Spooled(sequence=record.sequence, message=message, size_bytes=size_bytes)

    def damage(self) -> Iterator[CorruptSpool]:
        """Yield what is lost: of the spool, of ``rejected/`` and of files in quarantine."""
        yield from self.survey().found.damage
        with self._telling():
            for path, gap in damage_of_rejected(self._files, self._directory, self._identity):
                yield _loss_of(path, gap)
            quarantine = self._directory / QUARANTINE
            for name in self._files.list(quarantine):
                yield from self._damage_of(quarantine / name)

    def _damage_of(self, path: Path) -> Iterator[CorruptSpool]:
        data = read_file(self._files, path)
        digits = path.name.partition(".")[0]
        if not digits.isdecimal():
            yield _loss_of(path, Gap(0, len(data), 1, 0, "set aside: it could not be read"))
            return
        found = scan(data, stamp=self._identity.stamp, first=int(digits), start=FILE_HEADER_BYTES)
        for gap in found.gaps:
            yield _loss_of(path, gap)
        if found.fault or not found.gaps:
            why = found.fault or "its header is damaged, or messages at its end are missing"
            yield _loss_of(path, Gap(found.end, len(data), 1, 0, why))


def _is_left(damage: CorruptSpool, passed: int) -> bool:
    """Whether damage concerns messages that have not been passed since it was seen."""
    return damage.last > passed or damage.last < damage.first


def _loss_of(path: Path, gap: Gap) -> CorruptSpool:
    return CorruptSpool(
        str(path),
        offset=gap.offset,
        size_bytes=gap.end - gap.offset,
        first=gap.first,
        last=gap.last,
        reason=gap.reason,
    )
