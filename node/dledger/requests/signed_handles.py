"""What a group gives its clients to name something by: opaque to them, signed by the group.

::

    0   u8 version, then fixed numbers, by the kind of handle
    n   16 bytes of keyed BLAKE2b over kind or consumer group, topic, generation, and all else
        the tail: any bytes
    -- in URL-safe base64 without padding

The key is the group's secret (`BrokerState.secret`). It is stored in the log, and leaves a node
only to peers and backups. So a handle cannot be guessed, any node reads it, and it is not valid for
another topic, a topic that was made anew under the same name, or another consumer group.
"""

from __future__ import annotations

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from hashlib import blake2b
from hmac import compare_digest
from typing import ClassVar, Final

_MAC_BYTES: Final = 16


class MalformedHandle(ValueError):
    """It is no handle of this kind at all."""


class ForeignHandle(ValueError):
    """The group did not give it for what it is shown for."""


class SignedHandles:
    """The handles of one kind for one topic; a subclass says which numbers they have.

    Args:
        secret: The group's secret; empty while it has none, and so has given no handle.
        topic: The topic's name.
        generation: The generation of the topic with that name; 0 if there is none.
        group: The consumer group, if they are given to one.
    """

    KIND: ClassVar[str] = ""
    """What tells them from those of another kind and version, if they are of no consumer group."""
    VERSION: ClassVar[int]
    FIELDS: ClassVar[struct.Struct]
    """The version, and the numbers."""

    def __init__(self, secret: bytes, *, topic: str, generation: int, group: str = "") -> None:
        self._topic, self._group = topic, group
        about = f"{group or self.KIND}\0{topic}\0{generation}\0".encode()
        self._keyed = blake2b(about, key=secret, digest_size=_MAC_BYTES) if secret else None

    def _sign(self, *numbers: int, tail: bytes = b"") -> str:
        """Return the handle with these *numbers*, after the version, and *tail*."""
        if self._keyed is None:
            raise AssertionError("a handle without a secret")
        fields = self.FIELDS.pack(self.VERSION, *numbers)
        mac = self._keyed.copy()
        mac.update(fields + tail)
        return urlsafe_b64encode(fields + mac.digest() + tail).rstrip(b"=").decode()

    def _verify(self, handle: str) -> tuple[Sequence[int], bytes]:
        """Return the numbers and the tail of *handle*.

        Raises:
            MalformedHandle: See there.
            ForeignHandle: See there.
        """
        size = self.FIELDS.size
        try:
            raw = urlsafe_b64decode(handle + "=" * (-len(handle) % 4))
            version, *numbers = self.FIELDS.unpack_from(raw)
        except (ValueError, struct.error):
            raise MalformedHandle from None
        tail = raw[size + _MAC_BYTES :]
        if version != self.VERSION or self._keyed is None:
            raise ForeignHandle
        mac = self._keyed.copy()
        mac.update(raw[:size] + tail)
        if not compare_digest(raw[size : size + _MAC_BYTES], mac.digest()):
            raise ForeignHandle
        return numbers, tail
