"""What a process that was busy keeps afterwards."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

BUSY = """
import sys
from pathlib import Path
from dledger.memory import give_back

def rss_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

if sys.argv[1] == "fixed":
    give_back()
bytearray(1 << 20)  # once freed, glibc would keep blocks of this size from now on
before = rss_mib()
blocks, keepers = [], []
for _ in range(64):
    blocks.append(bytes(range(256)) * 2048)
    keepers.append(bytes(2000))
del blocks
print(rss_mib() - before)
"""


def kept_mib(how: str) -> int:
    """Return by how much a process is larger after 32 MiB came and went among small blocks."""
    ran = subprocess.run(
        [sys.executable, "-c", BUSY, how], capture_output=True, text=True, check=True
    )
    return int(ran.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's settings")
def test_blocks_between_small_ones_go_back_to_the_system() -> None:
    """A node's memory after a burst is what it was before, not what the burst took."""
    assert kept_mib("fixed") <= 4 < kept_mib("as it comes")
