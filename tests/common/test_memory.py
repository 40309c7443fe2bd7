"""What a process pays for large blocks, and what it keeps of them afterwards."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

BUSY = """
import sys
from pathlib import Path
from dledger.common.memory import give_back, keep_blocks

def rss_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

keep_blocks()
before = rss_mib()
blocks, keepers = [], []
for _ in range(64):
    blocks.append(bytes(range(256)) * 2048)
    keepers.append(bytes(2000))
del blocks
if sys.argv[1] == "given back":
    give_back()
print(rss_mib() - before)
"""
"""Prints by how many MiB it is larger after 32 MiB came and went among small blocks."""

AGAIN = """
import resource, sys
from dledger.common.memory import keep_blocks

if sys.argv[1] == "kept":
    keep_blocks()
frame = bytes(range(256)) * 4096
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    held = [frame[1:], frame[2:], frame[3:]]
    del held
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
"""Prints how many page faults 150 copies of a mebibyte take."""

glibc_only = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's settings")


def printed(program: str, how: str) -> int:
    """Run a program and return the number it prints."""
    ran = subprocess.run(
        [sys.executable, "-c", program, how], capture_output=True, text=True, check=True
    )
    return int(ran.stdout)


@glibc_only
def test_blocks_between_small_ones_go_back_to_the_system() -> None:
    """A node's memory after a burst is what it was before, not what the burst took."""
    assert printed(BUSY, "given back") <= 4 < printed(BUSY, "kept")


@glibc_only
def test_a_freed_block_is_used_again_without_page_faults() -> None:
    """By default each copy of a megabyte is written to memory that is mapped for it."""
    assert printed(AGAIN, "kept") < 150 * 256 / 10 < printed(AGAIN, "by default")
