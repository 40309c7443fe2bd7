"""What the node tells a door about itself, beside calls."""

from __future__ import annotations

import struct
from typing import Final

GRACE: Final = struct.Struct("<d")
"""Of a DRAIN frame: seconds."""
CHAIN_BYTES: Final = struct.Struct("<I")
"""At the start of a CERTIFICATE frame: size of the chain, which follows; the rest is the key."""
