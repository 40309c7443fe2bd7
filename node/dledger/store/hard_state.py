r"""The durable (term, vote) of a node: a small file, kept twice (`two_copies`).

Raft 5.2 allows one vote per term, so the vote must be durable before it is sent: in both copies, or
a damaged byte could bring back the time before it. Called from the hard-state writer's thread.
Layout of each, little endian::

    0    8    magic "DLGRHST\0"
    8    4    format version (u32)
    12   2    length of the vote in bytes (u16); 0 is no vote
    14   2    zeros
    16   8    term (u64), below 2^62
    24   n    vote: the node id, UTF-8
    24+n 4    CRC32C of bytes [0, 24+n)
"""

from __future__ import annotations

import struct
from pathlib import Path

from crc32c import crc32c

from dledger.errors import CorruptFile, DiskFull, NewerFormat, OlderFormat, StorageError
from dledger.files.files import Files
from dledger.store.two_copies import OnMended, TwoCopies
from dledger.types import MAX_NUMBER, HardState, NodeId

NAME = "hard_state"
FORMAT_VERSION = 2
_MAGIC = b"DLGRHST\0"
_FIELDS = struct.Struct("<8sIH2xQ")
_U32 = struct.Struct("<I")


def encode_hard_state(state: HardState) -> bytes:
    """Return the file's contents."""
    vote = (state.vote or "").encode()
    data = _FIELDS.pack(_MAGIC, FORMAT_VERSION, len(vote), state.term) + vote
    return data + _U32.pack(crc32c(data))


def decode_hard_state(data: bytes) -> HardState:
    """Parse the file's contents.

    Raises:
        ValueError: The contents are damaged, or not a hard state.
        NewerFormat, OlderFormat: Another version wrote them.
    """
    if len(data) < _FIELDS.size + 4:
        raise ValueError(f"{len(data)} bytes are too few")
    (found,) = _U32.unpack(data[-4:])
    expected = crc32c(data[:-4])
    if found != expected:
        raise ValueError(f"CRC32C is {found:#010x}, expected {expected:#010x}")
    magic, version, length, term = _FIELDS.unpack_from(data)
    if magic == _MAGIC and version > FORMAT_VERSION:
        raise NewerFormat.number("the hard state", found=version, known=FORMAT_VERSION)
    if magic == _MAGIC and version == FORMAT_VERSION - 1:
        raise OlderFormat("the hard state", found=version, known=FORMAT_VERSION)
    if magic != _MAGIC or version != FORMAT_VERSION:
        raise ValueError(f"magic {magic!r} version {version}, this node reads {FORMAT_VERSION}")
    vote = data[_FIELDS.size : -4]
    if len(vote) != length:
        raise ValueError(f"vote has {len(vote)} bytes, the header says {length}")
    if term >= MAX_NUMBER:
        raise ValueError(f"term {term} is one that no group comes to")
    return HardState(term=term, vote=NodeId(vote.decode()) if vote else None)


def newer(state: HardState) -> tuple[int, bool]:
    """Return what is higher for the later one of two hard states of a node: votes stay (5.2)."""
    return state.term, state.vote is not None


class HardStateFile:
    """The hard state of the data directory *directory*. Calls must not overlap."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._path = directory / NAME
        self._copies = TwoCopies(
            files, self._path, encode=encode_hard_state, decode=_decoded, rank=newer
        )
        self._failure: StorageError | None = None

    def exists(self) -> bool:
        """Return whether there is a file of it."""
        return self._copies.exists()

    def load(self, on_mended: OnMended = lambda _: None) -> HardState:
        """Return the newest saved state; a copy that was damaged or older is written again.

        Raises:
            CorruptFile: Both copies are damaged or missing (formatting creates them): the node
                must not vote.
            NewerFormat: A newer version wrote it.
            StorageError: The disk failed.
        """
        state = self._copies.load(on_mended)
        if state is None:
            raise CorruptFile(str(self._path), "missing; formatting the disk created it")
        return state

    def save(self, state: HardState) -> None:
        """Make *state* durable, twice.

        Raises:
            DiskFull: The disk is full; a later save may succeed, and nothing may rest on *state*
                before one does.
            StorageError: A write, sync or rename failed, now or earlier: what the disk holds
                is unknown, so the node must stop.
        """
        if self._failure:
            raise StorageError(
                f"cannot save the hard state: an earlier write failed: {self._failure}"
            ) from self._failure
        try:
            self._copies.save(state)
        except DiskFull:
            raise
        except StorageError as error:
            self._failure = error
            raise


def _decoded(data: bytes, path: Path) -> HardState:
    try:
        return decode_hard_state(data)
    except ValueError as error:
        raise CorruptFile(str(path), str(error)) from error
