"""What holds of every frame that has parts: it is read as it was packed, and damage is noticed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from dledger.link.frames import HEADER, Inbox, MalformedFrame


@dataclass(frozen=True)
class Form:
    """Values of one kind of frame, and both directions."""

    values: st.SearchStrategy[Any]
    pack: Callable[..., bytes]
    read: Callable[[bytes], Any]

    def check_reads_again(self, data: st.DataObject, number: int) -> None:
        value = data.draw(self.values)

        ((_, told, payload),) = Inbox(1 << 20).feed(self.pack(number, value))

        assert told == number
        assert self.read(payload) == value

    def check_damaged(self, data: st.DataObject, seed: int) -> None:
        payload = bytearray(self.pack(1, data.draw(self.values))[HEADER.size :])
        rng = random.Random(seed)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(payload))
            match rng.randrange(3):
                case 0:
                    payload[at] = rng.randrange(256)
                case 1:
                    del payload[at:]
                case _:
                    payload[at:at] = rng.randbytes(5)
            if not payload:
                break

        try:
            self.read(bytes(payload))
        except MalformedFrame:
            return
