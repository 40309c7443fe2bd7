"""Damage to the files of a node's data directory, as Jepsen does it to other systems (2025).

Its node may run meanwhile: what it has in memory and what is on the disk then differ.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Final

CHUNK_BYTES: Final = 4096


class Part(Enum):
    """A kind of file in a data directory."""

    SEGMENT = "segment"
    INDEX = "index"
    SNAPSHOT = "snapshot"
    WATERMARK = "watermark"
    HARD_STATE = "hard-state"
    IDENTITY = "identity"


_PATTERNS: Final[Mapping[Part, str]] = {
    Part.SEGMENT: "log/*.seg",
    Part.INDEX: "log/*.idx",
    Part.SNAPSHOT: "snapshots/*.snap",
    Part.WATERMARK: "log/watermark",
    Part.HARD_STATE: "hard_state*",
    Part.IDENTITY: "identity*",
}
REPLACEABLE: Final = (Part.SEGMENT, Part.INDEX, Part.SNAPSHOT)
"""What a node fetches again, or makes again, when it is gone."""
_BACK_IN_TIME: Final = (Part.SEGMENT, Part.WATERMARK, Part.HARD_STATE)


def files_of(data: Path, part: Part) -> list[Path]:
    """Return a node's files of one kind that hold something, oldest first."""
    found = sorted(data.glob(_PATTERNS[part]))
    return [path for path in found if path.suffix != ".new" and path.stat().st_size]


def flip(data: Path, part: Part, rng: random.Random) -> bool:
    """Flip two bits of one file, where it holds something; whether there was one."""
    for path in _one(files_of(data, part), rng):
        used = path.read_bytes().rstrip(b"\0")
        for _ in range(2 if used else 0):
            flip_bit(path, rng.randrange(len(used)))
        return bool(used)
    return False


def truncate(data: Path, part: Part, rng: random.Random) -> bool:
    """Cut the end off one file: mostly little of it, at times all; whether there was one."""
    for path in _one(files_of(data, part), rng):
        size_bytes = path.stat().st_size
        lost_bytes = min(size_bytes, int(rng.paretovariate(0.3)))
        with path.open("r+b") as file:
            file.truncate(size_bytes - lost_bytes)
        return True
    return False


def chunks_now(data: Path) -> dict[Path, bytes]:
    """Return what the files hold that `back_in_time` puts back a part of."""
    newest = [found[-1] for part in _BACK_IN_TIME if (found := files_of(data, part))]
    return {path: path.read_bytes() for path in newest}


def back_in_time(before: Mapping[Path, bytes], rng: random.Random) -> int:
    """Put half of the chunks of each file back to what they were; returns how many differed."""
    changed = 0
    for path, old in before.items():
        if not path.exists():
            continue
        with path.open("r+b") as file:
            now = file.read()
            for start in range(0, min(len(old), len(now)), CHUNK_BYTES):
                chunk = old[start : start + CHUNK_BYTES]
                if rng.random() < 1 / 2 and now[start : start + len(chunk)] != chunk:
                    file.seek(start)
                    file.write(chunk)
                    changed += 1
    return changed


def put_back(data: Path, image: Path) -> None:
    """Give a directory the contents of its *image*; its node must have ended."""
    clear(data)
    shutil.copytree(image, data, dirs_exist_ok=True)


def clear(data: Path) -> None:
    """Remove everything in a directory. One that is a mount stays."""
    for child in data.iterdir():
        if child.is_dir():
            shutil.rmtree(child)
        else:
            child.unlink()


def flip_bit(path: Path, offset: int) -> None:
    """Flip the lowest bit of one byte of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def _one(paths: Sequence[Path], rng: random.Random) -> Sequence[Path]:
    return [rng.choice(paths)] if paths else []
