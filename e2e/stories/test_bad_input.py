"""What a user is told when a BrokerGroup cannot be as asked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.cluster import CommandFailed
from e2e.harness.world import Namespace, eventually, group_manifest


def refusal(namespace: Namespace, manifest: dict[str, Any]) -> str:
    """Apply a manifest that the API server must refuse; return what it said."""
    with pytest.raises(CommandFailed) as caught:
        namespace.kubectl("apply", "-f", "-", input=json.dumps(manifest))
    return str(caught.value)


def test_an_even_number_of_replicas_is_refused(namespace: Namespace) -> None:
    """Two replicas survive no more than one does."""
    assert "odd" in refusal(namespace, group_manifest("orders", replicas=2))


def test_an_unknown_field_is_refused(namespace: Namespace) -> None:
    """A typing error is not silently dropped."""
    assert 'unknown field "spec.replcas"' in refusal(namespace, group_manifest("orders", replcas=3))


def test_another_class_of_volumes_is_refused(namespace: Namespace) -> None:
    """A volume has its class for life; its size is compared by the operator with what it has."""
    namespace.apply(group_manifest("orders", paused=True))
    other = {"storageClassName": "other"}

    said = refusal(namespace, group_manifest("orders", paused=True, storage=other))

    assert "immutable" in said


def test_a_field_that_nothing_acts_on_yet_is_named(namespace: Namespace) -> None:
    """What is not built yet is refused with a clear condition, never ignored."""
    namespace.apply(group_manifest("orders", tls={"enabled": True}))
    group = namespace.group("orders")

    condition = eventually(
        "SpecValid says so",
        lambda: c if (c := group.condition("SpecValid")).get("status") == "False" else None,
        60,
    )

    assert condition["reason"] == "NotImplementedYet"
    assert "tls.enabled" in condition["message"]
    assert group.pods() == []
