"""``make demo``: a cluster, the operator, a group of three, traffic, a killed leader, the proof.

Prints a timeline and writes ``build/demo.json``. Leaves everything running to be looked at;
``make demo-down`` removes it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

from e2e.cluster import Cluster, ClusterError, open_cluster
from e2e.cluster.image import Image, build
from e2e.world import (
    OPERATOR_NAMESPACE,
    ROOT,
    Group,
    Namespace,
    StoryError,
    Workload,
    eventually,
    group_manifest,
    install_operator,
)

NAMESPACE: Final = "dledger-demo"
GROUP: Final = "orders"
DEMO_LABEL: Final = "dledger.io/demo"
_DEMO: Final = "failover"
_KILL_AT: Final = 0.4
_RESULT: Final = ROOT / "build" / "demo.json"
_KEYS: Final = ("acked", "lost", "duplicates", "outOfOrder", "gapMs", "leaderBefore", "leaderAfter")


class Timeline:
    """Says what happens, with seconds since the start."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self.events: list[dict[str, Any]] = []

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started_s

    def say(self, text: str) -> None:
        """Print and remember one event."""
        self.events.append({"atSeconds": round(self.seconds, 1), "event": text})
        print(f"[{self.seconds:7.1f} s] {text}", flush=True)


def main() -> int:
    """Run the demo; 0 only if nothing was lost, doubled or out of order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", default="auto", choices=("auto", "local", "kind", "current"))
    parser.add_argument("--messages", type=int, default=20_000)
    args = parser.parse_args()
    timeline = Timeline()
    cluster = open_cluster(args.cluster)
    try:
        result = run(cluster, timeline, args.messages)
    except (ClusterError, StoryError) as error:
        timeline.say(f"failed: {error}")
        diagnostics = ROOT / "build" / "demo-diagnostics"
        cluster.diagnostics(diagnostics)
        print(f"what the cluster says is in {diagnostics}", file=sys.stderr)
        return 1
    return report(result, timeline)


def run(cluster: Cluster, timeline: Timeline, messages: int) -> dict[str, Any]:
    """Play the story and return its figures."""
    cluster.up()
    timeline.say(f"cluster is up ({cluster.kind}); kubectl --kubeconfig {cluster.kubeconfig}")
    forget_earlier(cluster)
    image = build()
    cluster.load_image(image.archive, image.name)
    timeline.say(f"image {image.name} is on every node")
    install_operator(cluster, image)
    timeline.say(f"operator installed by Helm in namespace {OPERATOR_NAMESPACE}")
    group = apply_group(cluster, timeline)
    return traffic(group, image, timeline, messages)


def forget_earlier(cluster: Cluster, demo: str = _DEMO) -> None:
    """Delete what earlier runs of a demo left, in the background; take back released volumes."""
    cluster.kubectl(
        "delete", "namespace", "--selector", f"{DEMO_LABEL}={demo}", "--wait=false",
        "--ignore-not-found",
    )  # fmt: skip
    cluster.recycle_volumes()


def apply_group(cluster: Cluster, timeline: Timeline) -> Group:
    """Apply a fresh group and wait for its leader."""
    namespace = Namespace(cluster, f"{NAMESPACE}-{int(time.time()):x}")
    namespace.create(**{DEMO_LABEL: _DEMO})
    namespace.apply(group_manifest(GROUP))
    timeline.say(f"BrokerGroup {GROUP} applied in namespace {namespace.name}")
    group = namespace.group(GROUP)
    status = group.wait_available()
    timeline.say(
        f"group {status['groupId']} takes writes; leader {status['leader']}, term {status['term']}"
    )
    return group


def traffic(group: Group, image: Image, timeline: Timeline, messages: int) -> dict[str, Any]:
    """Produce and consume, kill the leader in the middle, and compare."""
    arguments = (
        *("--endpoint", f"{GROUP}:8081", "--topic", "demo", "--messages", str(messages)),
        *("--threads", "32", "--consumer", "simple"),
    )
    workload = Workload(group.namespace, image, "traffic", *arguments)
    workload.start()
    timeline.say(f"RocketMQ Python SDK produces and consumes {messages} messages")
    workload.wait_acked(int(messages * _KILL_AT), deadline_s=240)
    before = group.leader()
    acked = workload.acked()
    group.kill_pod(before)
    timeline.say(f"killed the leader's pod {before} after {acked} acks")
    after = group.other_leader(before)
    eventually("writes go on", lambda: workload.acked() > acked + messages // 40, 60)
    timeline.say(f"writes go on; leader is {after}, acks {workload.acked()}")
    summary = watch(workload, timeline)
    failover = group.status().get("lastFailover") or {}
    timeline.say(f"operator saw the failover: {json.dumps(failover)}")
    return {**summary, "leaderBefore": before, "leaderAfter": after, "lastFailover": failover}


def watch(workload: Workload, timeline: Timeline) -> dict[str, Any]:
    """Say how far the client is, every few seconds, until its summary."""
    said_s = 0.0
    newest: dict[str, Any] = {}
    for newest in workload.progress(deadline_s=420):
        if timeline.seconds - said_s > 5 and "progress" in newest:
            said_s = timeline.seconds
            told = {key: value for key, value in newest.items() if key not in ("progress", "atMs")}
            timeline.say(f"{newest['progress']}: {json.dumps(told)}")
    return newest


def report(result: dict[str, Any], timeline: Timeline) -> int:
    """Write the figures and print them."""
    correct = result["lost"] == result["duplicates"] == result["outOfOrder"] == 0
    passed = correct and result["acked"] > 0
    figures = {key: result[key] for key in _KEYS} | {
        "passed": passed,
        "seconds": round(timeline.seconds, 1),
        "client": result,
        "timeline": timeline.events,
    }
    _RESULT.parent.mkdir(exist_ok=True)
    _RESULT.write_text(json.dumps(figures, indent=2) + "\n", "utf-8")
    print()
    for key in _KEYS:
        print(f"  {key:14} {result[key]}")
    print(f"  {'seconds':14} {figures['seconds']}")
    verdict = "every acknowledged message was read back exactly once" if passed else "FAILED"
    print(f"\n{verdict}; figures in {_relative(_RESULT)}; `make demo-down` removes everything")
    return 0 if passed else 1


def _relative(path: Path) -> Path:
    return path.relative_to(ROOT)


if __name__ == "__main__":
    sys.exit(main())
