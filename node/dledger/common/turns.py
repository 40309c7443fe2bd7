"""How the threads of a process that has an event loop take turns.

Used by nodes and by the sidecar.
"""

from __future__ import annotations

import sys
from typing import Final

_SWITCH_INTERVAL_S: Final = 0.0005
"""A sync acquires the GIL several times; at the default 5 ms a busy loop delays each. And a thread
that decodes what it has read delays each turn of the loop."""


def take_short_turns() -> None:
    """Have a thread that waits for the GIL get it after half a millisecond."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
