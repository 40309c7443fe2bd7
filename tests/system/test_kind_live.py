"""The demo and three stories on kind, whose Docker and nodes are made here, from packages alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.house.sources import ROOT

pytestmark = [
    pytest.mark.alone,
    pytest.mark.long,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("apt-get") is None, reason="root, on Debian"
    ),
]
KIND_IMAGE = (sys.executable, "-m", "e2e.cluster.kind_image")
STORIES = (
    "e2e/stories/test_failover.py::test_every_acknowledged_message_survives_the_leaders_pod",
    "e2e/stories/test_changes.py::test_a_new_image_rolls_out_and_the_leader_comes_last",
    "e2e/stories/test_losses.py::test_a_machine_that_is_gone_for_good_is_made_up_for",
)


@pytest.fixture
def kind() -> Iterator[None]:
    """Leave no Docker behind; what was built stays cached."""
    yield
    subprocess.run([*KIND_IMAGE, "down"], cwd=ROOT, check=True)


@pytest.mark.usefixtures("kind")
def test_the_demo_and_three_stories_pass_on_kind() -> None:
    """A failover, a rollout and a lost machine, as whoever has Docker and kind sees them."""
    demo = (sys.executable, "-m", "e2e.demo", "--cluster", "kind")
    stories = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *STORIES)

    for command in (demo, stories):
        ran = subprocess.run(
            [*KIND_IMAGE, "run", *command],
            cwd=ROOT,
            env={**os.environ, "E2E_CLUSTER": "kind"},
            check=False,
        )
        assert ran.returncode == 0, " ".join(command)
