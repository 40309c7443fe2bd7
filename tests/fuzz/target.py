"""What a decoder of outside bytes is held to: its named errors, or input that all others can use.

A target draws inputs that look like what it decodes, and feeds one to it. `judge` says what came of
it. Each input stands by itself, so that a finding comes again from its bytes alone.
"""

from __future__ import annotations

import re
import signal
import threading
import traceback
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType
from typing import ClassVar, NoReturn

from tests.fuzz.mutation import mutated

CPU_S = 5.0
"""What one input may take of this process; a decoder of outside bytes takes microseconds."""
HUNG = "hung"
_ROOTS = ("node/dledger", "operator/dledger_operator", "pipeline/dledger_pipeline")


class Broken(AssertionError):
    """An input was accepted that another part cannot use; the sentence says which and why."""


class Hung(BaseException):
    """An input took more than `CPU_S`. No decoder catches it."""


class Target:
    """One decoder of outside bytes.

    Attributes:
        name: What ``--target`` calls it.
        refuses: The errors that it names: refused is not found.
    """

    name: ClassVar[str]
    refuses: ClassVar[tuple[type[Exception], ...]] = ()

    def draw(self, rng: Random) -> bytes:
        """Return an input made from what is valid."""
        raise NotImplementedError

    def mutate(self, rng: Random, data: bytes) -> bytes:
        """Return an input made from one that was worth keeping."""
        return mutated(rng, data)

    def feed(self, data: bytes) -> Hashable:
        """Give the input to the decoder, and what it accepts to all that read it.

        Returns:
            What kind of input it was, if it was accepted.

        Raises:
            Broken: It was accepted, and one of them cannot use it.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Give back what it holds."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one input.

    Attributes:
        kind: Accepted as what, or refused where; inputs of a kind that was never seen are kept.
        accepted: Whether the decoder took it.
        found: What is wrong, in a sentence; "" if nothing is.
    """

    kind: Hashable
    accepted: bool = False
    found: str = ""


def judge(target: Target, data: bytes) -> Verdict:
    """Feed one input, and tell what came of it."""
    try:
        with _bounded():
            kind = target.feed(data)
    except Broken as error:
        return Verdict(("broken", _gist(str(error))), found=f"accepted, but {error!s:.200}")
    except target.refuses as error:
        return Verdict((type(error).__name__, _place(error)))
    except Hung:
        return Verdict(HUNG, found=f"took over {CPU_S:.0f} s of CPU")
    except Exception as error:  # noqa: BLE001 - what it is, is what is looked for
        place = _place(error)
        sentence = f"{type(error).__name__} at {place}: {str(error)[:160]!r}"
        return Verdict((type(error).__name__, place), found=sentence)
    return Verdict(("accepted", kind), accepted=True)


@contextmanager
def _bounded() -> Iterator[None]:
    """Raise Hung once the process has computed for `CPU_S`; signals are for the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGVTALRM, _hung)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _hung(signum: int, frame: FrameType | None) -> NoReturn:
    del signum, frame
    raise Hung


def _place(error: BaseException) -> str:
    """Return the line of ours that raised, or that called what raised: the branch that was taken.

    It is what guides the search; counting every line that runs would cost ten times as much.
    """
    found = "?"
    for frame, line in traceback.walk_tb(error.__traceback__):
        path = frame.f_code.co_filename
        if any(root in path for root in _ROOTS):
            found = f"{Path(path).parent.name}/{Path(path).name}:{line}"
    return found


def _gist(sentence: str) -> str:
    """Return a sentence without the values in it: one finding, however many inputs show it."""
    return re.split(r"[:(\d'{\[]", sentence)[0]
