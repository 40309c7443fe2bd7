"""The disk's identity: formatting the disk once, and refusing to start as any other node.

A data directory holds ``identity.json``, ``hard_state``, ``lock`` and ``log/``. The identity is
written last when a disk is formatted, so that an interrupted format is simply repeated; it and the
hard state are kept twice (`two_copies`).
Called by the node's start-up and by Bootstrap, before anything else in `store`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dledger.errors import CorruptFile, DirectoryLocked, WrongIdentity
from dledger.files import checked_json
from dledger.files.files import File, Files
from dledger.files.full import telling_full_disk
from dledger.store.hard_state import HardStateFile
from dledger.store.two_copies import OnMended, TwoCopies
from dledger.store.watermark import format_log
from dledger.types import HardState, NodeId

FORMAT_VERSION = 2
NAME = "identity.json"
LOCK_NAME = "lock"
LOG_DIRECTORY = "log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The node and group that a disk belongs to.

    Attributes:
        node_id: The UUID written when the disk was formatted.
        group_id: The group it joined; "" before it has joined one.
        name: The stable name, such as ``orders-0``.
        recovered_from: The group whose log was restored to this disk; "" if none was.
        recovered_to: The last index of that log; 0 if none was restored.
    """

    node_id: NodeId
    group_id: str
    name: str
    recovered_from: str = ""
    recovered_to: int = 0

    def owns(self, *, group_id: str, node_id: str, first_index: int) -> bool:
        """Whether a segment with this header belongs to the disk's log."""
        restored = group_id == self.recovered_from and first_index <= self.recovered_to
        return node_id == self.node_id and (group_id == self.group_id or restored)

    def group_of(self, first_index: int) -> str:
        """Return the group id in the header of a segment that begins with *first_index*.

        A restored log keeps the headers of the group it was backed up from.
        """
        return self.recovered_from if first_index <= self.recovered_to else self.group_id


def lock_directory(files: Files, directory: Path) -> File:
    """Lock the data directory for this process until the returned file is closed.

    Raises:
        DirectoryLocked: Another process uses it.
        DiskFull: There is no room for the lock of a new directory.
    """
    try:
        with telling_full_disk(f"lock {directory}"):
            files.make_dirs(directory)
            return files.lock(directory / LOCK_NAME)
    except BlockingIOError as error:
        raise DirectoryLocked(str(directory)) from error


def load_or_format(
    files: Files,
    directory: Path,
    name: str,
    *,
    new_id: Callable[[], object] = uuid.uuid4,
    on_mended: OnMended = lambda _: None,
) -> Identity:
    """Return the disk's identity; an empty disk is formatted with a fresh id from *new_id* first.

    A copy of it that is damaged, missing or older is written again.

    Raises:
        WrongIdentity: The disk was formatted for a node of another name.
        NewerFormat: A newer version of the node formatted it.
        CorruptFile: Both copies are damaged, or missing from a directory that is not empty.
        StorageError: The disk failed.
    """
    identity = _copies(files, directory).load(on_mended)
    if identity is None:
        fresh = Identity(node_id=NodeId(str(new_id())), group_id="", name=name)
        return _format(files, directory, fresh)
    if identity.name != name:
        raise WrongIdentity("name", expected=name, found=identity.name)
    return identity


def load_identity(files: Files, directory: Path) -> Identity | None:
    """Return the identity of a data directory; None if it is not formatted. Nothing is written.

    Raises:
        CorruptFile: Both copies are damaged.
        NewerFormat: A newer version of the node formatted it.
    """
    return _copies(files, directory).read()


def join(files: Files, directory: Path, identity: Identity, group_id: str) -> Identity:
    """Record durably that the node belongs to *group_id*; repeating it is harmless.

    Raises:
        WrongIdentity: It already belongs to another group.
        DiskFull: The disk is full; it may be recorded once, which a later call or start makes
            whole.
        StorageError: The disk failed.
    """
    if identity.group_id == group_id:
        return identity
    if identity.group_id:
        raise WrongIdentity("group", expected=group_id, found=identity.group_id)
    joined = replace(identity, group_id=group_id)
    _copies(files, directory).save(joined)
    return joined


def begin_restore(
    files: Files,
    directory: Path,
    name: str,
    *,
    group_id: str,
    new_id: Callable[[], object] = uuid.uuid4,
) -> Identity:
    """Prepare an empty directory for the log of group *group_id*; return the log's identity.

    The identity file is missing until `finish_restore`, so no node starts from half a log.

    Raises:
        CorruptFile: The directory is not empty.
        DiskFull: The disk is full.
        StorageError: The disk failed.
    """
    identity = Identity(node_id=NodeId(str(new_id())), group_id=group_id, name=name)
    if load_identity(files, directory) is not None:
        raise CorruptFile(str(directory / NAME), "exists; restore into an empty directory")
    _format_unnamed(files, directory)
    return identity


def finish_restore(files: Files, directory: Path, identity: Identity, last_index: int) -> Identity:
    """Turn the directory, whose log was written as *identity* and synced, into a node's.

    The node has no group until a new group is bootstrapped from the log, because the log's history
    belongs to the group that was backed up.

    Raises:
        DiskFull: The disk is full; begin anew in an empty directory.
        StorageError: The disk failed.
    """
    restored = replace(
        identity, group_id="", recovered_from=identity.group_id, recovered_to=last_index
    )
    _copies(files, directory).save(restored)
    return restored


def _format(files: Files, directory: Path, identity: Identity) -> Identity:
    _format_unnamed(files, directory)
    _copies(files, directory).save(identity)
    return identity


def _format_unnamed(files: Files, directory: Path) -> None:
    path = directory / NAME
    remains = [n for n in files.list(directory / LOG_DIRECTORY) if n.endswith(".seg")]
    if remains:
        raise CorruptFile(str(path), f"missing, but {LOG_DIRECTORY}/{remains[0]} exists")
    with telling_full_disk(f"format {directory}"):
        files.make_dirs(directory)
    hard_state = HardStateFile(files, directory)
    if hard_state.exists() and hard_state.load() != HardState():
        raise CorruptFile(str(path), "missing, but a hard state exists")
    format_log(files, directory / LOG_DIRECTORY)
    hard_state.save(HardState())


def _copies(files: Files, directory: Path) -> TwoCopies[Identity]:
    return TwoCopies(files, directory / NAME, encode=_encode, decode=_decode, rank=_rank)


def _rank(identity: Identity) -> bool:
    """A disk joins a group once: of two copies, the later one has it."""
    return bool(identity.group_id)


def _encode(identity: Identity) -> bytes:
    return checked_json.encode(FORMAT_VERSION, asdict(identity))


def _decode(data: bytes, path: Path) -> Identity:
    fields = checked_json.decode_own(FORMAT_VERSION, data, path)
    try:
        return Identity(
            node_id=NodeId(checked_json.text(fields, "node_id")),
            group_id=checked_json.text(fields, "group_id"),
            name=checked_json.text(fields, "name"),
            recovered_from=checked_json.text(fields, "recovered_from"),
            recovered_to=checked_json.number(fields, "recovered_to"),
        )
    except (KeyError, TypeError) as error:
        raise CorruptFile(str(path), repr(error)) from error
