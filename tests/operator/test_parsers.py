"""What the Events of a StatefulSet say of its pods."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dledger_operator.observed.parsers import uncreated_pods, with_shared_texts

REFUSED = "create Pod orders-0 in StatefulSet orders failed error: pods is forbidden: no quota"
CREATED = "create Pod orders-0 in StatefulSet orders successful"


def _event(second: int, message: str, **changes: Any) -> dict[str, Any]:
    failed = "failed" in message
    return {
        "reason": "FailedCreate" if failed else "SuccessfulCreate",
        "message": message,
        "lastTimestamp": f"2031-05-06T07:08:{second:02}Z",
        **changes,
    }


@pytest.mark.parametrize(
    ("events", "found"),
    [
        ([], ""),
        ([_event(1, REFUSED)], "pods is forbidden: no quota"),
        ([_event(2, REFUSED), _event(1, CREATED)], "pods is forbidden: no quota"),
        ([_event(2, CREATED), _event(1, REFUSED)], ""),
        ([_event(1, CREATED), _event(1, REFUSED)], ""),
        ([_event(1, REFUSED.replace("orders-0", "orders-01"))], ""),
        ([_event(1, f"(combined from similar events): {REFUSED}")], "pods is forbidden: no quota"),
        (
            [
                _event(1, CREATED),
                _event(0, REFUSED, series={"lastObservedTime": "2031-05-06T07:09:00.1Z"}),
            ],
            "pods is forbidden: no quota",
        ),
        ([{"reason": "FailedCreate"}], ""),
    ],
)
def test_a_pod_was_refused_if_the_last_try_failed(events: list[dict[str, Any]], found: str) -> None:
    """A pod that was created since and is gone again was not refused."""
    assert uncreated_pods(events, ["orders-0"]) == ({"orders-0": found} if found else {})


def test_words_of_any_length_are_cut() -> None:
    """They end up in conditions."""
    told = uncreated_pods([_event(1, REFUSED + "x" * 9999)], ["orders-0"])

    assert len(told["orders-0"]) == 300


def test_manifests_that_are_kept_have_their_texts_in_common() -> None:
    """And are equal to what they were made from, which may be frozen."""
    text = '{"kind": "Service", "spec": {"ports": [{"name": "client", "port": 8081, "on": true}]}}'
    one, two = (with_shared_texts(json.loads(text)) for _ in range(2))

    assert one == two == json.loads(text)
    assert one["spec"]["ports"][0]["name"] is two["spec"]["ports"][0]["name"]
    assert next(iter(one["spec"])) is next(iter(two["spec"]))
    assert one["spec"]["ports"] is not two["spec"]["ports"]
