"""What ``dledger``, ``dledger-operator`` and ``dledger-pipeline`` start: the three programs.

All of them are installed with the package, their dependencies by its extras only. Each program is
imported here when it is started, so that a missing extra is one sentence and not a traceback.
"""

from __future__ import annotations

import importlib
import sys
from typing import Final

_EXIT_NOT_INSTALLED: Final = 2
"""As for other faults of how a program is used."""
_EXIT_INTERRUPTED: Final = 130
_OURS: Final = ("dledger", "dledger_operator", "dledger_pipeline")


def dledger() -> int:
    """Run ``dledger``."""
    return _run("dledger.cli.main", "dledger", extra="node")


def dledger_operator() -> int:
    """Run ``dledger-operator``."""
    return _run("dledger_operator.__main__", "dledger-operator", extra="operator")


def dledger_pipeline() -> int:
    """Run ``dledger-pipeline``."""
    return _run("dledger_pipeline.__main__", "dledger-pipeline", extra="pipeline")


def _run(module: str, program: str, *, extra: str) -> int:
    try:
        code: int = importlib.import_module(module).main()
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in _OURS:
            raise  # a fault of ours
        sentence = f"{error.name} is not installed: pip install 'dledger[{extra}]'"
        print(f"{program}: {sentence}", file=sys.stderr)
        return _EXIT_NOT_INSTALLED
    return code
