"""``make demo``: a cluster, the operator, a group of three, traffic, a killed leader, the proof.

Prints a timeline and writes ``build/demo.json``. Leaves everything running to be looked at;
``make demo-down`` removes it.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from e2e.cluster import Cluster
from e2e.cluster.image import WORKLOAD, Image
from e2e.demo.demos import (
    Timeline,
    apply_group,
    bring_up,
    conclude,
    fresh_namespace,
    install,
    load_image,
    play,
)
from e2e.harness.world import ROOT, BrokerGroup, Workload

NAMESPACE: Final = "dledger-demo"
GROUP: Final = "orders"
_DEMO: Final = "failover"
_KILL_AT: Final = 0.4
_KEYS: Final = ("acked", "lost", "duplicates", "outOfOrder", "gapMs", "leaderBefore", "leaderAfter")


def main() -> int:
    """Run the demo; 0 only if nothing was lost, doubled or out of order."""
    diagnostics = ROOT / "build" / "demo-diagnostics"
    return play(__doc__, messages=20_000, diagnostics=diagnostics, run=run, report=report)


def run(cluster: Cluster, timeline: Timeline, messages: int) -> dict[str, Any]:
    """Play the story and return its figures."""
    bring_up(cluster, timeline, _DEMO)
    install(cluster, timeline, load_image(cluster, timeline))
    image = load_image(cluster, timeline, WORKLOAD)
    group = apply_group(fresh_namespace(cluster, NAMESPACE, _DEMO), timeline, GROUP)
    return traffic(group, image, timeline, messages)


def traffic(group: BrokerGroup, image: Image, timeline: Timeline, messages: int) -> dict[str, Any]:
    """Produce and consume, kill the leader in the middle, and compare."""
    arguments = (
        *("--endpoint", f"{GROUP}:8081", "--topic", "demo", "--messages", str(messages)),
        *("--threads", "32", "--consumer", "simple"),
    )
    workload = Workload(group.namespace, image, "traffic", *arguments)
    workload.start()
    try:
        return failover(group, workload, timeline, messages)
    except BaseException:
        timeline.say("the client is ended")
        workload.end()
        raise


def failover(
    group: BrokerGroup, workload: Workload, timeline: Timeline, messages: int
) -> dict[str, Any]:
    """Kill the leader while the client is at work; return what the client says at its end."""
    timeline.say(f"RocketMQ Python SDK produces and consumes {messages} messages")
    workload.wait_acked(int(messages * _KILL_AT))
    before = group.leader()
    acked = workload.acked()
    group.kill_pod(before)
    timeline.say(f"killed the leader's pod {before} after {acked} acks")
    after = group.other_leader(before)
    workload.wait_acked(acked + messages // 40)
    timeline.say(f"writes go on; leader is {after}, acks {workload.acked()}")
    summary = watch(workload, timeline)
    failover = group.status().get("lastFailover") or {}
    timeline.say(f"operator saw the failover: {json.dumps(failover)}")
    return {
        **summary,
        "messages": messages,
        "leaderBefore": before,
        "leaderAfter": after,
        "lastFailover": failover,
    }


def watch(workload: Workload, timeline: Timeline) -> dict[str, Any]:
    """Say how far the client is, every few seconds, until its summary."""
    said_s = 0.0
    newest: dict[str, Any] = {}
    for newest in workload.progress():
        if timeline.seconds - said_s > 5 and "progress" in newest:
            said_s = timeline.seconds
            told = {key: value for key, value in newest.items() if key not in ("progress", "atMs")}
            timeline.say(f"{newest['progress']}: {json.dumps(told)}")
    return newest


def report(result: dict[str, Any], timeline: Timeline) -> int:
    """Write the figures and print them; a client that ended before all were sent shows nothing."""
    correct = result["lost"] == result["duplicates"] == result["outOfOrder"] == 0
    is_whole = result["acked"] >= result["messages"] > 0
    return conclude(
        ROOT / "build" / "demo.json",
        {key: result[key] for key in _KEYS},
        timeline,
        passed=correct and is_whole,
        verdict="every acknowledged message was read back exactly once",
        details={"client": result},
    )


if __name__ == "__main__":
    sys.exit(main())
