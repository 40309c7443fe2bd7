"""What somebody does who has lost a namespace, or has a damaged disk, and the runbooks."""

from __future__ import annotations

import re

import pytest

from e2e.cluster import Cluster
from e2e.cluster.image import Image
from e2e.harness.runbook import Reader, blocks
from e2e.harness.world import PYTHON, Namespace, Workload, eventually, group_manifest
from e2e.stories.traffic import SDK, check_whole

pytestmark = pytest.mark.long

SIZE = "512Mi"
WRITES = (*SDK, "--messages", "1500", "--consumer", "none", "--print-acks")
_ROTS = """
import pathlib
body = b"." * 100
for path in pathlib.Path("/var/lib/dledger/log").glob("*.seg"):
    text = path.read_bytes()
    first, last = text.find(body), text.rfind(body)
    if first >= 0:
        with path.open("r+b") as file:
            file.seek(text.find(body, (first + last) // 2))
            file.write(b",")
"""
"""Has one byte of a segment rot, in a message of the workload's: the newest are behind it."""


def _write(namespace: Namespace, image: Image) -> str:
    """Write to a group; return the keys of what was acknowledged, as a workload expects them."""
    first = Workload(namespace, image, "before", *WRITES)
    first.start()
    assert first.summary()["acked"] >= 1500
    return "\n".join(first.acks())


def _go_on(namespace: Namespace, image: Image, acks: str = "") -> None:
    """Write more, and see that it is all there, and what was acknowledged before as well."""
    more = ("--expect", "/workload/acks") if acks else ()
    files = {"acks": acks} if acks else None
    again = Workload(namespace, image, "after", *SDK, "--messages", "500", *more, files=files)
    again.start()
    assert check_whole(again.summary())["acked"] >= 500


def test_a_deleted_namespace_is_brought_back_with_its_volumes(
    namespace: Namespace, workload_image: Image, cluster: Cluster, reader: Reader
) -> None:
    """The group is adopted with its id, and has every message; nothing is founded anew."""
    group = namespace.run_group(storage={"size": SIZE})
    acks, group_id = _write(namespace, workload_image), group.status()["groupId"]
    (look, free), (make_namespace, make_claim), bound, (available, adopted) = blocks(
        "A namespace was deleted"
    )
    _skip_unless_kept(namespace)
    # Not `Namespace.delete`, which empties the volumes for the next story.
    cluster.kubectl("delete", "namespace", namespace.name, "--timeout=120s", timeout_s=130)

    rows = [line.split() for line in reader.follow([look]).splitlines()]
    for volume, *_ in rows:
        reader.follow([free], VOLUME=volume)
    reader.follow([make_namespace])
    namespace.create()  # its labels, which the page asks for
    for volume, of_class, _, claim in rows:
        pod = claim.removeprefix("data-")
        reader.follow([make_claim], POD=pod, VOLUME=volume, CLASS=of_class, SIZE=SIZE)
    reader.follow(bound)
    namespace.apply(group_manifest("orders", storage={"size": SIZE}))
    reader.follow([available])
    told = reader.follow([adopted])
    status = group.wait_available()
    _go_on(namespace, workload_image, acks)

    assert len(rows) == 3
    assert status["groupId"] == group_id
    assert group_id in told


def _skip_unless_kept(namespace: Namespace) -> None:
    """Skip where volumes go with their claims: then there is a backup, or nothing."""
    policies = "jsonpath={.items[*].spec.persistentVolumeReclaimPolicy}"
    if {*namespace.kubectl("get", "pv", "-o", policies).split()} != {"Retain"}:
        pytest.skip("volumes of this cluster go with their claims")


def test_a_lone_node_gives_up_what_rotted_on_its_disk(
    namespace: Namespace, workload_image: Image, reader: Reader
) -> None:
    """By a pod that has the disk meanwhile; what is lost is shown first, and typed."""
    group = namespace.run_group(replicas=1)
    _write(namespace, workload_image)
    group_id = group.status()["groupId"]
    mount, (look, give_up), back = blocks("A node's disk without its node")

    reader.follow(mount)
    namespace.kubectl("exec", "orders-disk", "--", PYTHON, "-c", _ROTS)
    shown = reader.follow([look], may_fail=True)
    asked = re.search(r"--group-id (\S+) --last (\d+)", shown)
    assert asked is not None, shown
    said = reader.follow([give_up], ID=asked[1], INDEX=asked[2])
    reader.follow(back)
    eventually("its node is back", lambda: group.pods() == ["orders-0"], 60)
    status = group.wait_available()
    _go_on(namespace, workload_image)

    assert "given up; the node leads its group again" in said
    assert status["groupId"] == asked[1] == group_id
    assert "StatefulSet" in " ".join(group.told("ChildRepaired"))
