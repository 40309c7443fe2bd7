"""What a running node carries beside the project itself."""

from __future__ import annotations

import tomllib

from e2e.cluster import wheels
from e2e.harness.world import PYTHON, Namespace

PACKAGES = """
import re
from importlib.metadata import distributions

print(*(re.sub(r"[-_.]+", "-", each.name).lower() for each in distributions()))
"""


def test_a_node_carries_the_packages_that_its_programs_import(namespace: Namespace) -> None:
    """Those of the lock that NOTICE lists for it; no installer, and nothing of a client's."""
    leader = namespace.run_group(replicas=1).status()["leader"]

    carried = namespace.kubectl("exec", leader, "--", PYTHON, "-c", PACKAGES).split()

    lock = tomllib.loads((wheels.ROOT / "uv.lock").read_text())
    assert sorted(carried) == sorted({*wheels.needed_by(wheels.NODE_EXTRAS, lock), "dledger"})
