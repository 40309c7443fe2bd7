"""The entry points of ``dledger``, ``dledger-operator`` and ``dledger-pipeline``.

The package installs all three, but their dependencies only with its extras. So a program is
imported when it starts, and a missing extra gives a one-line error instead of a traceback.
"""

from __future__ import annotations

import importlib
import sys
from typing import Final

_EXIT_NOT_INSTALLED: Final = 2
"""The same as for other usage errors."""
_EXIT_INTERRUPTED: Final = 130
_OURS: Final = ("dledger", "dledger_operator", "dledger_pipeline")


def dledger() -> int:
    """Run ``dledger``; the spool's parent without what the other commands import."""
    module = "spool_command" if sys.argv[1:2] == ["spool"] else "main"
    return _run(f"dledger.cli.{module}", "dledger", extra="node")


def dledger_operator() -> int:
    """Run ``dledger-operator``."""
    return _run("dledger_operator.__main__", "dledger-operator", extra="operator")


def dledger_pipeline() -> int:
    """Run ``dledger-pipeline``."""
    return _run("dledger_pipeline.cli.main", "dledger-pipeline", extra="pipeline")


def _run(module: str, program: str, *, extra: str) -> int:
    try:
        code: int = importlib.import_module(module).main()
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in _OURS:
            raise  # our own bug
        package = error.name.partition(".")[0]
        sentence = f"{package} is not installed: pip install 'dledger[{extra}]'"
        print(f"{program}: {sentence}", file=sys.stderr)
        return _EXIT_NOT_INSTALLED
    return code
