"""Kernel settings that kubelets change at their start: remembered before, put back after."""

from __future__ import annotations

import json
from pathlib import Path

from e2e.cluster.layout import Layout

# As the kubelet sets them (pkg/kubelet/cm, setupKernelTunables): an oops would panic the machine.
SETTINGS = (
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
)
SYSCTLS = Path("/proc/sys")


def remember(layout: Layout, sysctls: Path = SYSCTLS) -> None:
    """Write down what the settings are, unless an earlier cluster was not taken down in order."""
    if layout.kernel_settings.exists():
        return
    present = [name for name in SETTINGS if (sysctls / name).exists()]
    values = {name: (sysctls / name).read_text().strip() for name in present}
    layout.cache.mkdir(parents=True, exist_ok=True)
    layout.kernel_settings.write_text(json.dumps(values, indent=1) + "\n")


def restore(layout: Layout, sysctls: Path = SYSCTLS) -> None:
    """Put back what was written down, if anything was; forget it then."""
    if not layout.kernel_settings.exists():
        return
    for name, value in json.loads(layout.kernel_settings.read_text()).items():
        setting = sysctls / name
        if setting.read_text().strip() != value:
            setting.write_text(value)
    layout.kernel_settings.unlink()
