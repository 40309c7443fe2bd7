r"""The durable (term, vote) of a node: one small file, replaced atomically.

Raft 5.2 allows one vote per term, so the vote must be durable before it is sent. Called from the
hard-state writer's thread. Layout, little endian::

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

from dledger.errors import CorruptFile, DiskFull, NewerFormat, StorageError
from dledger.files.atomic import load_file, replace_file
from dledger.files.files import Files
from dledger.types import MAX_NUMBER, HardState, NodeId

NAME = "hard_state"
FORMAT_VERSION = 1
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
        NewerFormat: A newer version wrote them.
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
    if magic != _MAGIC or version != FORMAT_VERSION:
        raise ValueError(f"magic {magic!r} version {version}, this node reads {FORMAT_VERSION}")
    vote = data[_FIELDS.size : -4]
    if len(vote) != length:
        raise ValueError(f"vote has {len(vote)} bytes, the header says {length}")
    if term >= MAX_NUMBER:
        raise ValueError(f"term {term} is one that no group comes to")
    return HardState(term=term, vote=NodeId(vote.decode()) if vote else None)


class HardStateFile:
    """The hard state of the data directory *directory*. Calls must not overlap."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._path = directory / NAME
        self._failure: StorageError | None = None

    def exists(self) -> bool:
        """Return whether the file is there."""
        return NAME in self._files.list(self._path.parent)

    def load(self) -> HardState:
        """Return the newest saved state.

        Raises:
            CorruptFile: It is damaged or missing (formatting creates it): the node must not vote.
            NewerFormat: A newer version wrote it.
        """
        data = load_file(self._files, self._path)
        if data is None:
            raise CorruptFile(str(self._path), "missing; formatting the disk created it")
        try:
            return decode_hard_state(data)
        except ValueError as error:
            raise CorruptFile(str(self._path), str(error)) from error

    def save(self, state: HardState) -> None:
        """Make *state* durable.

        Raises:
            DiskFull: The disk is full; the old state stays and a later save may succeed.
            StorageError: A write, sync or rename failed, now or earlier: what the disk holds
                is unknown, so the node must stop.
        """
        if self._failure:
            raise StorageError(
                f"cannot save the hard state: an earlier write failed: {self._failure}"
            ) from self._failure
        try:
            replace_file(self._files, self._path, encode_hard_state(state))
        except DiskFull:
            raise
        except StorageError as error:
            self._failure = error
            raise
