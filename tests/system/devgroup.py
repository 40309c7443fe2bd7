"""The group of `e2e.devgroup`, under the name that tests of this folder know."""

from __future__ import annotations

from e2e.devgroup import DevGroup, eventually, free_port_range

__all__ = ["DevGroup", "eventually", "free_port_range"]
