"""What the kubelet does to the kernel does not outlive the cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cluster import kernel
from e2e.cluster.layout import Layout


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """Directories of a cluster that is not there."""
    return Layout(state=tmp_path / "state", run=tmp_path / "run", cache=tmp_path / "cache")


@pytest.fixture
def sysctls(tmp_path: Path) -> Path:
    """A machine's settings; it does not have all of them."""
    sysctls = tmp_path / "sys"
    for name, value in (("kernel/panic", "1"), ("vm/overcommit_memory", "0")):
        (sysctls / name).parent.mkdir(parents=True)
        (sysctls / name).write_text(f"{value}\n")
    return sysctls


def test_settings_are_put_back_when_the_cluster_goes(layout: Layout, sysctls: Path) -> None:
    """As they were before the first kubelet, once."""
    kernel.remember(layout, sysctls)
    (sysctls / "kernel/panic").write_text("10\n")

    kernel.restore(layout, sysctls)

    assert (sysctls / "kernel/panic").read_text().strip() == "1"
    assert (sysctls / "vm/overcommit_memory").read_text() == "0\n"
    (sysctls / "kernel/panic").write_text("5\n")
    kernel.restore(layout, sysctls)
    assert (sysctls / "kernel/panic").read_text() == "5\n"


def test_a_cluster_that_was_not_taken_down_leaves_its_record(layout: Layout, sysctls: Path) -> None:
    """The next one would take the kubelet's values for the machine's."""
    kernel.remember(layout, sysctls)
    (sysctls / "kernel/panic").write_text("10\n")

    kernel.remember(layout, sysctls)
    kernel.restore(layout, sysctls)

    assert (sysctls / "kernel/panic").read_text().strip() == "1"
