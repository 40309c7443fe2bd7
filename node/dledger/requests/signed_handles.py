"""What a group gives its clients to name something by: opaque to them, signed by the group.

::

    0   u8 version, then fixed numbers, by the kind of handle
    n   16 bytes of keyed BLAKE2b over what the handle is about, the numbers, and the tail
        the tail: any bytes
    -- in URL-safe base64 without padding

The key is the group's secret (`BrokerState.secret`). It is stored in the log, and leaves a node
only to peers and backups. So a handle cannot be guessed, any node reads it, and it is not valid for
another topic, a topic that was made anew under the same name, or whatever else it is about.
"""

from __future__ import annotations

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from hmac import compare_digest
from typing import Final

_MAC_BYTES: Final = 16


class MalformedHandle(ValueError):
    """It is no handle of this kind at all."""


class ForeignHandle(ValueError):
    """The group did not give it for what it is shown for."""


class SignedHandles:
    """The handles of one kind, about one thing.

    Args:
        secret: The group's secret; empty while it has none, and so has given no handle.
        fields: The numbers, of which the first is the version.
        version: Of this kind of handle.
        about: What they are given for, none of which has a zero byte in it.
    """

    def __init__(
        self, secret: bytes, fields: struct.Struct, version: int, *about: str | int
    ) -> None:
        self._fields, self._version = fields, version
        said = "".join(f"{each}\0" for each in about).encode()
        self._keyed = blake2b(said, key=secret, digest_size=_MAC_BYTES) if secret else None

    def encode(self, *numbers: int, tail: bytes = b"") -> str:
        """Return the handle with these *numbers*, after the version, and *tail*."""
        if self._keyed is None:
            raise AssertionError("a handle without a secret")
        fields = self._fields.pack(self._version, *numbers)
        mac = self._keyed.copy()
        mac.update(fields + tail)
        return urlsafe_b64encode(fields + mac.digest() + tail).rstrip(b"=").decode()

    def decode(self, handle: str) -> tuple[tuple[int, ...], bytes]:
        """Return the numbers and the tail of *handle*.

        Raises:
            MalformedHandle: See there.
            ForeignHandle: See there.
        """
        size = self._fields.size
        try:
            raw = urlsafe_b64decode(handle + "=" * (-len(handle) % 4))
            version, *numbers = self._fields.unpack_from(raw)
        except (ValueError, struct.error):
            raise MalformedHandle from None
        tail = raw[size + _MAC_BYTES :]
        if version != self._version or self._keyed is None:
            raise ForeignHandle
        mac = self._keyed.copy()
        mac.update(raw[:size] + tail)
        if not compare_digest(raw[size : size + _MAC_BYTES], mac.digest()):
            raise ForeignHandle
        return tuple(numbers), tail
