"""What the demos share: a timeline, a group that takes writes, the figures at the end."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from e2e.cluster import Cluster, ClusterError, open_cluster
from e2e.cluster.errors import USAGE, MissingPrerequisite
from e2e.cluster.image import NODE, Image, Recipe, build
from e2e.harness.waiting import HarnessError
from e2e.harness.world import (
    OPERATOR_NAMESPACE,
    ROOT,
    BrokerGroup,
    Namespace,
    group_manifest,
    install_operator,
)

_LABEL: Final = "dledger.io/demo"


class Timeline:
    """Says what happens, with seconds since the start; and on which kind of cluster."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self.events: list[dict[str, Any]] = []
        self.cluster = "auto"

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started_s

    def say(self, text: str) -> None:
        """Print and remember one event."""
        self.events.append({"atSeconds": round(self.seconds, 1), "event": text})
        print(f"[{self.seconds:7.1f} s] {text}", flush=True)


def play(
    description: str | None,
    *,
    messages: int,
    diagnostics: Path,
    run: Callable[[Cluster, Timeline, int], dict[str, Any]],
    report: Callable[[dict[str, Any], Timeline], int],
) -> int:
    """Run a demo from its command line to its report; return the exit code.

    Args:
        description: For ``--help``.
        messages: How many, unless told otherwise.
        diagnostics: Where to put what the cluster says if the demo fails.
        run: Plays the story and returns its figures.
        report: Writes and judges them.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--cluster", default="auto", choices=("auto", "local", "kind", "current"))
    parser.add_argument("--messages", type=int, default=messages)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # as an interrupt
    timeline = Timeline()
    cluster = open_cluster(args.cluster)
    try:
        result = run(cluster, timeline, args.messages)
    except MissingPrerequisite as missing:  # of no use to look at the cluster, if there is one
        timeline.say(f"missing: {missing}")
        return USAGE
    except (ClusterError, HarnessError) as error:
        timeline.say(f"failed: {error}")
        cluster.diagnostics(diagnostics)
        print(f"what the cluster says is in {diagnostics}", file=sys.stderr)
        return 1
    return report(result, timeline)


def bring_up(cluster: Cluster, timeline: Timeline, demo: str) -> None:
    """Start the cluster; let what earlier runs of *demo* left go, and take back its volumes."""
    timeline.cluster = cluster.kind
    cluster.up()
    timeline.say(f"cluster is up ({cluster.kind}); kubectl --kubeconfig {cluster.kubeconfig}")
    cluster.kubectl(
        "delete", "namespace", "--selector", f"{_LABEL}={demo}", "--wait=false",
        "--ignore-not-found",
    )  # fmt: skip
    cluster.recycle_volumes()


def load_image(cluster: Cluster, timeline: Timeline, recipe: Recipe = NODE) -> Image:
    """Build an image, the nodes' unless told otherwise, and put it on every node."""
    image = build(recipe)
    cluster.load_image(image.archive, image.name)
    timeline.say(f"image {image.name} is on every node")
    return image


def install(cluster: Cluster, timeline: Timeline, image: Image) -> None:
    """Install the operator."""
    install_operator(cluster, image)
    timeline.say(f"operator installed by Helm in namespace {OPERATOR_NAMESPACE}")


def fresh_namespace(cluster: Cluster, name: str, demo: str) -> Namespace:
    """Create a namespace for this run of *demo*."""
    namespace = Namespace(cluster, f"{name}-{int(time.time()):x}")
    namespace.create(**{_LABEL: demo})
    return namespace


def apply_group(
    namespace: Namespace,
    timeline: Timeline,
    name: str,
    *,
    deadline_s: float = 120,
    **spec: Any,
) -> BrokerGroup:
    """Apply a group with these parts of a spec, and wait until it takes writes and is whole."""
    namespace.apply(group_manifest(name, **spec))
    timeline.say(f"BrokerGroup {name} applied in namespace {namespace.name}")
    group = namespace.group(name)
    status = group.wait_available(deadline_s)
    timeline.say(
        f"group {status['groupId']} takes writes; leader {status['leader']}, term {status['term']}"
    )
    return group


def conclude(
    path: Path,
    figures: Mapping[str, Any],
    timeline: Timeline,
    *,
    passed: bool,
    verdict: str,
    details: Mapping[str, Any],
    down: str | None = None,
) -> int:
    """Write the figures to *path*, print them and the verdict; return the exit code.

    Args:
        path: A JSON file below the repository's root.
        figures: What is printed, in this order.
        timeline: Goes into the file; its seconds are the last figure.
        passed: Whether the demo shows what it is to show.
        verdict: The sentence if it does.
        details: What else goes into the file.
        down: What removes what it left running; "": it left nothing. None: it left a cluster.
    """
    told = {**figures, "seconds": round(timeline.seconds, 1)}
    document = {**told, "passed": passed, **details, "timeline": timeline.events}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    print()
    for key, value in told.items():
        print(f"  {key:14} {value}")
    where = path.relative_to(ROOT)
    said = verdict if passed else "FAILED"
    if down is None:
        down = f"make demo-down CLUSTER={timeline.cluster}"
    removes = f"; `{down}` removes everything" if down else ""
    print(f"\n{said}; figures in {where}{removes}")
    return 0 if passed else 1
