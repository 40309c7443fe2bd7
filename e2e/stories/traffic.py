"""The writes of an unmodified SDK that stories run under, and what must have become of them."""

from __future__ import annotations

from typing import Any, Final

from e2e.cluster.image import Image
from e2e.harness.world import Namespace, Workload

SDK: Final = ("--endpoint", "orders:8081", "--topic", "demo")
WHOLE: Final = {"lost": 0, "duplicates": 0, "outOfOrder": 0}


def begin(namespace: Namespace, image: Image, *more: str, group: str = "orders") -> Workload:
    """Have an SDK write to a group, with *more* arguments, until it is ended; return it."""
    name = "traffic" if group == "orders" else f"traffic-{group}"
    where = ("--endpoint", f"{group}:8081", "--topic", "demo", "--seconds", "3000")
    traffic = Workload(namespace, image, name, *where, *more)
    traffic.start()
    traffic.wait_acked(300)
    return traffic


def check_whole(summary: dict[str, Any], **also: int) -> dict[str, Any]:
    """Return a summary of which every acknowledged message was read once, in order; fail else.

    What *also* names has to be so, too.
    """
    expected = WHOLE | also
    assert {key: summary[key] for key in expected} == expected, summary
    return summary


def end(traffic: Workload, **also: int) -> dict[str, Any]:
    """End the writes, and check their summary as `check_whole` does."""
    traffic.stop()
    return check_whole(traffic.summary(), **also)
