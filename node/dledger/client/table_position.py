"""How far a reader of a table has come: what it keeps to go on there after a restart.

Pure. The bytes are JSON with a CRC32C, as of a node's small files (`files.checked_json`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final, Self

from dledger.errors import InvalidArgument
from dledger.files.checked_json import VersionError, decode, encode, number, text

_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePosition:
    """Where to go on with a compacted topic.

    Attributes:
        topic: Its name.
        generation: Which topic of that name it is; 0: nothing of it was read.
        offsets: Of each queue, the next queue offset to read.
        as_of_ms: Up to when everything that was stored has been read, Unix milliseconds: what was
            deleted later is still told, as long as the topic keeps tombstones.
    """

    topic: str
    generation: int
    offsets: tuple[int, ...]
    as_of_ms: int

    def encode(self) -> bytes:
        """Return it as bytes to keep; equal positions give equal bytes."""
        return encode(_VERSION, {**asdict(self), "offsets": list(self.offsets)})

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the position that `encode` made these bytes of.

        Raises:
            InvalidArgument: They are damaged, or another version of the client made them.
        """
        try:
            fields = decode(_VERSION, data)
            offsets = [number({"offset": each}, "offset") for each in fields["offsets"]]
            numbers = {name: number(fields, name) for name in ("generation", "as_of_ms")}
            if min(*offsets, *numbers.values()) < 0:
                raise ValueError("it has a number below 0")
            return cls(topic=text(fields, "topic"), offsets=tuple(offsets), **numbers)
        except VersionError as error:
            raise InvalidArgument(f"a table's position is of another version: {error}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgument(
                f"a table's position is damaged ({error!r:.80}): read the topic from its start"
            ) from error
