"""What becomes of a group whose certificates are lost, renewed by hand, or have ended."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from typing import Any

import pytest

from e2e.cluster import Cluster, CommandFailed
from e2e.cluster.image import Image
from e2e.harness.group_secrets import (
    AUTHORITY,
    KINDS,
    PEERS,
    POLL_S,
    GroupSecrets,
    expire,
    list_authorities,
    list_leaves,
    list_trusted,
)
from e2e.harness.pod_watch import is_ready
from e2e.harness.runbook import OPERATOR_PAGE, find_inline
from e2e.harness.world import (
    BrokerGroup,
    Namespace,
    Workload,
    eventually,
    group_manifest,
    scale_operator,
)
from e2e.stories.traffic import SDK, begin, check_whole, end

pytestmark = pytest.mark.long

WHOLE_S = 300.0
"""What docs/operator.md promises, whatever is left of the four Secrets."""
KUBELET_S = 420.0
"""Then pods have their files at last: a kubelet syncs every 90 s, and waits up to two minutes
before it tries once more to mount what was not there."""
SETTLES_S = 900.0
"""For each phase of a new authority: ten minutes, and what Secrets and kubelets take."""
SLOW = ("--threads", "1")
"""Half an hour of writes has to fit into the volumes, and two writers into a small machine."""

Spoil = Callable[[GroupSecrets, GroupSecrets], None]


def _delete_authority_and_peers(own: GroupSecrets, _: GroupSecrets) -> None:
    own.delete(AUTHORITY, PEERS)


def _delete_all(own: GroupSecrets, _: GroupSecrets) -> None:
    own.delete(*KINDS)


def _damage_peers(own: GroupSecrets, _: GroupSecrets) -> None:
    own.damage(PEERS)


def _exchange_authority(own: GroupSecrets, another: GroupSecrets) -> None:
    own.write(AUTHORITY, another.read()[AUTHORITY])


def _members(group: BrokerGroup) -> dict[str, str]:
    """Return the node id of each member: another one is another disk."""
    return {row["name"]: row["id"] for row in group.status()["members"]}


def _is_running(pod: dict[str, Any]) -> bool:
    return bool(pod["status"].get("phase") == "Running")


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(_delete_authority_and_peers, id="authority and peers deleted"),
        pytest.param(_delete_all, id="all deleted"),
        pytest.param(_damage_peers, id="peers damaged"),
        pytest.param(_exchange_authority, id="foreign authority"),
    ],
)
def test_spoiled_secrets_are_whole_in_five_minutes(
    namespace: Namespace, workload_image: Image, figures: dict[str, float], spoil: Spoil
) -> None:
    """Found: S2. One of three and one of one, under writes, of which a pod starts anew.

    Of three that is so at once, and it waits for its certificate; no other pod is restarted.
    """
    names = {"orders": 3, "one": 1, "another": 1}
    namespace.apply(*(group_manifest(name, replicas=size) for name, size in names.items()))
    groups = {name: namespace.group(name) for name in names}
    for group in groups.values():
        group.wait_available(180)
    another = GroupSecrets(groups.pop("another"))
    writers = [begin(namespace, workload_image, *SLOW, group=name) for name in groups]
    three, one = groups.values()
    uids, members = three.uids() | one.uids(), [_members(group) for group in groups.values()]
    restarted = next(name for name in three.pods() if name != three.leader())

    began_s = time.monotonic()
    for group in groups.values():
        spoil(GroupSecrets(group), another)
    namespace.kubectl("delete", "pod", restarted, "--wait=false")
    for group in groups.values():
        GroupSecrets(group).wait_whole(began_s + WHOLE_S - time.monotonic())
    figures["seconds until the Secrets were whole"] = time.monotonic() - began_s
    namespace.kubectl("delete", "pod", "one-0", "--wait=false")
    three.wait_others({restarted: uids[restarted]}, is_ready, KUBELET_S)
    one.wait_others({"one-0": uids["one-0"]}, is_ready, KUBELET_S)
    for group in groups.values():
        group.wait_settled(0, KUBELET_S)
    figures["seconds until all pods were sound"] = time.monotonic() - began_s
    for traffic in writers:
        end(traffic)

    after = three.uids()
    assert [_members(group) for group in groups.values()] == members
    assert {name for name in after if after[name] != uids[name]} == {restarted}


def _run(namespace: Namespace, command: str) -> None:
    """Do what a document says, in this namespace."""
    program, *words = shlex.split(command)
    assert program == "kubectl", command
    namespace.kubectl(*words)


def test_certificates_are_renewed_by_hand_with_the_same_authority(
    namespace: Namespace, workload_image: Image, figures: dict[str, float]
) -> None:
    """As docs/operator.md has it; nodes take the new ones without a restart."""
    renew, _ = find_inline("Renewing by hand", OPERATOR_PAGE)
    group = namespace.run_group()
    secrets, uids = GroupSecrets(group), group.uids()
    traffic = begin(namespace, workload_image, *SLOW)
    before = secrets.read()

    began_s = time.monotonic()
    _run(namespace, renew)
    secrets.wait_whole(WHOLE_S)
    secrets.wait_shown(KUBELET_S)
    figures["seconds until all nodes showed new certificates"] = time.monotonic() - began_s
    group.wait_settled(0, KUBELET_S)
    summary = end(traffic)

    after = secrets.read()
    figures["longest silence of a client, ms"] = summary["gapMs"]
    assert not set(list_leaves(before)) & set(list_leaves(after))
    assert list_authorities(after[AUTHORITY]) == list_authorities(before[AUTHORITY])
    assert group.uids() == uids


def test_a_new_authority_takes_over_in_two_phases_and_the_old_one_goes(
    namespace: Namespace, workload_image: Image, figures: dict[str, float]
) -> None:
    """As docs/operator.md has it, to the end: nobody trusts the authority that was seen."""
    _, renew = find_inline("Renewing by hand", OPERATOR_PAGE)
    group = namespace.run_group(storage={"size": "2Gi"})
    secrets, uids = GroupSecrets(group), group.uids()
    traffic = begin(namespace, workload_image, *SLOW)
    before = secrets.read()
    (old,) = list_authorities(before[AUTHORITY])

    began_s = time.monotonic()
    _run(namespace, renew)
    secrets.wait_whole(WHOLE_S)
    (new,) = list_authorities(secrets.read()[AUTHORITY])
    assert old in list_trusted(secrets.read()[PEERS]), "running nodes are left behind"
    eventually(
        "the new authority has signed",
        lambda: not set(list_leaves(before)) & set(list_leaves(secrets.read())),
        SETTLES_S,
        POLL_S,
    )
    eventually(
        "the old authority is trusted no more",
        lambda: all(list_trusted(secrets.read()[kind]) == [new] for kind in KINDS[1:]),
        SETTLES_S,
        POLL_S,
    )
    figures["seconds until the old authority was gone"] = time.monotonic() - began_s
    secrets.wait_shown(KUBELET_S)
    group.wait_settled(0, KUBELET_S)
    summary = end(traffic)

    figures["longest silence of a client, ms"] = summary["gapMs"]
    assert group.told("CertificatesRotated")
    assert secrets.find_faults() == []
    assert group.uids() == uids


@pytest.mark.parametrize("with_authority", [False, True], ids=["certificates", "authority, too"])
def test_ended_certificates_need_only_the_operator(
    namespace: Namespace,
    workload_image: Image,
    cluster: Cluster,
    figures: dict[str, float],
    with_authority: bool,
) -> None:
    """It was away meanwhile: nodes refuse each other until it is back, and nothing is lost."""
    if cluster.kind == "current":
        pytest.skip("stops the operator, which others may need")
    group = namespace.run_group()
    secrets = GroupSecrets(group)
    writes = ("--messages", "1500", "--consumer", "none", "--print-acks")
    first = Workload(namespace, workload_image, "before", *SDK, *writes)
    first.start()
    assert first.summary()["acked"] >= 1500
    scale_operator(cluster, 0)
    try:
        for kind, files in expire(secrets.read(), with_authority=with_authority).items():
            secrets.write(kind, files)
        before = group.uids()
        for pod in before:
            group.kill_pod(pod)
        group.wait_others(before, _is_running, 120)
        secrets.wait_shown(60)
        for pod in group.pods():
            with pytest.raises(CommandFailed):
                namespace.kubectl("exec", pod, "--", "dledger", "status")
        assert not any(map(is_ready, group.nodes().values()))
        uids, began_s = group.uids(), time.monotonic()
    finally:
        scale_operator(cluster, 1)
    secrets.wait_whole(WHOLE_S)
    group.wait_others(before, is_ready, KUBELET_S)
    group.wait_settled(0, KUBELET_S)
    figures["seconds until the group was sound"] = time.monotonic() - began_s
    again = Workload(
        namespace, workload_image, "after", *SDK, "--messages", "500", "--expect",
        "/workload/acks", files={"acks": "\n".join(first.acks())},
    )  # fmt: skip
    again.start()

    assert check_whole(again.summary())["acked"] >= 500
    assert group.uids() == uids
