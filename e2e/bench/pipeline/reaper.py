"""Runs a command and tells what it took of a processor, everything that it started included.

Whatever the command leaves behind becomes a child of this process and is waited for: the JVM of a
Spark job ends behind the job. Prints one JSON line on stdout; the command's own output is
discarded but for what it says when it fails. Used by `measuring`.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from typing import Final

_PR_SET_CHILD_SUBREAPER: Final = 36


def main() -> int:
    """Run the command line that follows; return its exit code."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    began_s = time.monotonic()
    ran = subprocess.run(sys.argv[1:], capture_output=True, check=False)
    wall_s = time.monotonic() - began_s
    _wait_for_all()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ran.returncode:
        sys.stderr.buffer.write(ran.stderr)
    print(json.dumps({"cpuS": used.ru_utime + used.ru_stime, "wallS": wall_s}))
    return ran.returncode


def _wait_for_all() -> None:
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


if __name__ == "__main__":
    sys.exit(main())
