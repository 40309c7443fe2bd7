"""What can go wrong, by whose fault: the machine lacks something, or a step failed."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable

FAILED = 1
USAGE = 2


class ClusterError(Exception):
    """A step failed; the message carries the values and the end of the log that explain it."""


class MissingPrerequisite(ClusterError):
    """The machine lacks something; the message says what to do about it."""


class CommandFailed(ClusterError):
    """A program we ran answered with an error.

    Attributes:
        code: its exit code, or None when it was stopped because it took too long.
        output: what it printed, standard error last.
    """

    def __init__(self, argv: tuple[str, ...], code: int | None, output: str) -> None:
        self.code = code
        self.output = output
        ended = "did not finish in time" if code is None else f"exit code {code}"
        super().__init__(f"{' '.join(argv)}: {ended}\n{output.rstrip()}".rstrip())


class TimedOut(ClusterError):
    """A condition did not come true by its deadline."""

    def __init__(self, what: str, timeout_s: float, detail: str = "") -> None:
        super().__init__(f"{what}: not within {timeout_s:g} s" + (f"\n{detail}" if detail else ""))


def exit_code(command: Callable[[], int]) -> int:
    """Run a command; return its exit code, or print its error and return that one's."""
    try:
        return command()
    except MissingPrerequisite as missing:
        print(f"missing: {missing}", file=sys.stderr)
        return USAGE
    except ClusterError as failed:
        print(f"failed: {failed}", file=sys.stderr)
        return FAILED
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        hint = "make some; `python -m e2e.cluster doctor` says how much is needed"
        print(f"missing: room on a disk ({error}): {hint}", file=sys.stderr)
        return USAGE
