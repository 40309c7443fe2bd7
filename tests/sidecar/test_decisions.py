"""What an answer means, how long a try takes, what is taken: the sidecar's pure decisions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.rpc.error_table import TABLE
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.rpc.status import Code
from dledger.sidecar.decisions import (
    ALL_TRIES_S,
    ANSWERED_HERE,
    MARGIN_S,
    TRY_S,
    Verdict,
    budget_s,
    refusal_of,
    try_s,
    verdict_of_code,
    verdict_of_send,
)

CODES = st.sampled_from(sorted(set(Code.values())))


def answer(code: int, *entries: int) -> bytes:
    """Return the answer to a SendMessage with these codes."""
    response = service.SendMessageResponse(
        status=definition.Status(code=Code.ValueType(code), message="why"),
        entries=[
            service.SendResultEntry(status=definition.Status(code=Code.ValueType(each)))
            for each in entries
        ],
    )
    return bytes(response.SerializeToString())


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (Code.OK, Verdict.ANSWER),
        (Code.MULTIPLE_RESULTS, Verdict.ANSWER),
        (Code.TOPIC_NOT_FOUND, Verdict.FAULT),
        (Code.MESSAGE_BODY_TOO_LARGE, Verdict.FAULT),
        (Code.NOT_IMPLEMENTED, Verdict.FAULT),
        (Code.TOO_MANY_REQUESTS, Verdict.AWAY),
        (Code.HA_NOT_AVAILABLE, Verdict.AWAY),
        (Code.INTERNAL_SERVER_ERROR, Verdict.AWAY),
        (Code.INTERNAL_ERROR, Verdict.AWAY),
        (Code.VERSION_UNSUPPORTED, Verdict.AWAY),
        (Code.CODE_UNSPECIFIED, Verdict.AWAY),
    ],
)
def test_what_a_code_means_for_a_message(code: int, verdict: Verdict) -> None:
    """0.11: a node without a majority answers OK to gRPC, with 50002 in the body."""
    assert verdict_of_code(code) is verdict
    assert verdict_of_send(answer(code))[:2] == (verdict, code)


def test_every_error_of_a_node_has_a_verdict_that_fits_its_grpc_code() -> None:
    """What a node calls unavailable or exhausted is spooled, and what it calls an argument not."""
    for row in TABLE.values():
        verdict = verdict_of_code(dict(Code.items())[row.rocketmq])
        name = row.grpc.name
        if name in {"UNAVAILABLE", "RESOURCE_EXHAUSTED", "INTERNAL"}:
            assert verdict is Verdict.AWAY, row
        if name in {"INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "UNIMPLEMENTED"}:
            assert verdict is Verdict.FAULT, row


@given(whole=CODES, entries=st.lists(CODES, max_size=4))
def test_the_worst_of_an_answer_counts(whole: int, entries: list[int]) -> None:
    """AWAY before FAULT before ANSWER: what is sent again is known by its ids."""
    ranks = [Verdict.ANSWER, Verdict.FAULT, Verdict.AWAY]
    worst = max(ranks.index(verdict_of_code(code)) for code in [whole, *entries])

    verdict, code, _ = verdict_of_send(answer(whole, *entries))

    assert verdict is ranks[worst]
    assert verdict_of_code(code) is verdict


@given(data=st.binary(max_size=60))
def test_any_bytes_have_a_verdict(data: bytes) -> None:
    """An answer of whoever else listens there is no answer of the group's."""
    assert verdict_of_send(data)[0] in Verdict


@given(left_s=st.none() | st.floats(-10, 100))
def test_a_send_is_answered_before_its_caller_gives_up(left_s: float | None) -> None:
    """Within min(2 s, the call's - 0.7 s); of a short call within half of it."""
    budget = budget_s(left_s)

    assert 0 <= budget <= ALL_TRIES_S
    if left_s is not None and left_s > 2 * MARGIN_S:
        assert budget == min(ALL_TRIES_S, left_s - MARGIN_S)
    elif left_s is not None:
        assert budget == max(0.0, left_s / 2)


@given(left_s=st.floats(0, 2))
def test_one_try_leaves_time_for_another(left_s: float) -> None:
    """1.2 s of 2."""
    assert try_s(left_s) == min(TRY_S, left_s)
    assert ALL_TRIES_S - try_s(ALL_TRIES_S) > TRY_S / 2


@pytest.mark.parametrize(
    "method",
    ["ReceiveMessage", "AckMessage", "RecallMessage", "EndTransaction", "QueryOffset"],
)
def test_what_is_not_taken_is_refused_by_name(method: str) -> None:
    """With a reason for each."""
    assert method not in ANSWERED_HERE
    assert f"the group is away, and {method} waits for nobody: " in refusal_of(method)
