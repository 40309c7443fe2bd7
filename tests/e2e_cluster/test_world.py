"""What stories read of a cluster: Events in their order, and pods that are others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from e2e.cluster.current import CurrentCluster
from e2e.harness.group_secrets import AUTHORITY, PEERS, GroupSecrets
from e2e.harness.pod_watch import is_ready
from e2e.harness.waiting import HarnessError
from e2e.harness.world import BrokerGroup, Namespace


class Canned(CurrentCluster):
    """A cluster whose kubectl says one thing whatever it is asked."""

    def __init__(self, said: Mapping[str, Any] | None) -> None:
        self._said = "" if said is None else json.dumps(said)

    def kubectl(self, *_: str, **__: Any) -> str:
        return self._said


def _group(cluster: Canned) -> BrokerGroup:
    return Namespace(cluster, "shop").group("orders")


def _event(message: str, at: str, version: str) -> dict[str, Any]:
    return {"message": message, "firstTimestamp": at, "metadata": {"resourceVersion": version}}


def test_events_of_one_second_are_told_as_they_came() -> None:
    """Their times have whole seconds; two members may leave within one."""
    items = [_event("c", "10:01", "3"), _event("b", "10:00", "12"), _event("a", "10:00", "9")]

    assert _group(Canned({"items": items})).told("MemberRemoved") == ["a", "b", "c"]


def _pod(name: str, uid: str, ready: str) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": ready}]
    return {"metadata": {"name": name, "uid": uid}, "status": {"conditions": conditions}}


@pytest.mark.parametrize(
    ("pods", "are_others"),
    [
        ([_pod("a", "2", "True"), _pod("b", "1", "False")], True),
        ([_pod("a", "1", "True")], False),
        ([_pod("a", "2", "False")], False),
        ([_pod("b", "2", "True")], False),
    ],
    ids=["another, ready", "the same", "not ready", "gone"],
)
def test_a_pod_that_is_to_be_another_is_waited_for(
    pods: list[dict[str, Any]], are_others: bool
) -> None:
    """By its uid; of those that are not asked about nothing is wanted."""
    group = _group(Canned({"items": pods}))

    if are_others:
        group.wait_others({"a": "1"}, is_ready, 0)
    else:
        with pytest.raises(HarnessError, match="others in the place of a"):
            group.wait_others({"a": "1"}, is_ready, 0)


def test_secrets_that_are_there_are_read_by_their_kind() -> None:
    """All at once; kubectl says nothing at all where there is none."""
    items = [
        {"metadata": {"name": "orders-ca"}, "data": {"x": "eQ=="}},
        {"metadata": {"name": "orders-peer-tls"}},
    ]

    assert GroupSecrets(_group(Canned({"items": items}))).read() == {
        AUTHORITY: {"x": b"y"},
        PEERS: {},
    }
    assert GroupSecrets(_group(Canned(None))).read() == {}
