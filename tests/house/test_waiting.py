"""Tests wait for what they need, not for time, and judge no speed: what else makes them flake.

Read with CONTRIBUTING.md, "Tests that do not flake". What cannot do without is listed here, with
its reason. The lists only get shorter: lower the number when you take one out.
"""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import eventually, eventually_async, eventually_blocking

ROOT = Path(__file__).parents[2]

SLEEP_S = 0.1
"""The longest fixed wait. A longer one is either hope that something is done by then, or idle."""
POLL_S = 0.5
"""The longest pause between two looks for a condition."""

SLEEPS = {
    "tests/replica/test_damaged_leader.py"
    "::test_two_damaged_ends_do_not_keep_a_group_from_a_leader": (
        "nobody may win in the meantime; too short a look finds less, and fails nothing"
    ),
    "tests/operator/test_api_server.py::quiet": "nothing is written in that time; asked again",
    "tests/operator/test_api_server.py::test_a_size_spelled_otherwise_is_no_change": (
        "no condition may change in the meantime"
    ),
    "tests/operator/test_backup_api_server.py::quiet": "as in test_api_server.py",
    "tests/rocketmq/sdk_session.py::push": "no message may come twice in the meantime",
    "tests/peers/test_peer_links.py::slowly": "it plays a peer that is slow to accept",
    "tests/peers/test_replication.py::test_a_port_that_is_shut_is_told_once": (
        "no second warning may come in the meantime"
    ),
    "tests/spool/test_spooling_client.py::test_another_service_cannot_refuse_a_message": (
        "nothing may be rejected in the meantime"
    ),
    "e2e/stories/test_failover.py::test_writes_go_on_without_operator_and_api_server": (
        "the story is what happens in an outage of that length"
    ),
}
SPEEDS = {
    "tests/rocketmq/test_sdk.py::test_a_push_consumer_gets_each_message_once": (
        "the SDK's own patience with a broker that sends no Settings is longer"
    ),
    "e2e/stories/test_failover.py::test_writes_go_on_without_operator_and_api_server": (
        "promise P3 is about a time; five times what it says"
    ),
}
AT_MOST = (9, 2)
"""How many are in `SLEEPS` and `SPEEDS`."""

_CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns"}
_TIMES = re.compile(r"(_s|_ms|Ms|_ns|elapsed|took)$")


def _functions(folders: tuple[str, ...]) -> Iterator[tuple[str, ast.AST]]:
    """Yield each function of the tests as ``path::name``."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{path.relative_to(ROOT)}::{node.name}", node


def _own_nodes(node: ast.AST, *, looping: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Yield what is in a function but not in one inside it, and whether a loop is around it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        inside = looping or isinstance(child, ast.While | ast.For | ast.AsyncFor)
        yield child, inside
        yield from _own_nodes(child, looping=inside)


def _called(node: ast.AST | None) -> str:
    """Return the last part of the name that is called; "" for what is no call."""
    if not isinstance(node, ast.Call):
        return ""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def sleeps_too_long(function: ast.AST) -> bool:
    """Tell whether a function waits for a fixed time beyond the bounds."""
    return any(
        isinstance(seconds, int | float) and seconds > (POLL_S if looping else SLEEP_S)
        for node, looping in _own_nodes(function)
        if _called(node) == "sleep" and isinstance(node, ast.Call) and node.args
        for seconds in [getattr(node.args[0], "value", None)]
    )


def only_asks_again(function: ast.AST) -> bool:
    """Tell whether a function has a loop that does nothing but sleep until something is so."""
    return any(
        isinstance(node, ast.While) and len(node.body) == 1 and _is_a_sleep(node.body[0])
        for node, _ in _own_nodes(function)
    )


def _is_a_sleep(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return _called(value.value if isinstance(value, ast.Await) else value) == "sleep"


def judges_speed(function: ast.AST) -> bool:
    """Tell whether a function asserts that something took less than a number of seconds."""
    nodes = [node for node, _ in _own_nodes(function)]
    elapsed = {
        target.id
        for node in nodes
        if isinstance(node, ast.Assign) and _is_elapsed(node.value, set())
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return any(
        _bounded_above(compare, elapsed)
        for node in nodes
        if isinstance(node, ast.Assert)
        for compare in ast.walk(node.test)
        if isinstance(compare, ast.Compare)
    )


def _bounded_above(compare: ast.Compare, elapsed: set[str]) -> bool:
    """Tell whether an elapsed time has a literal above it: ``t < 2``, ``1 < t < 2``, ``2 > t``."""
    sides = [compare.left, *compare.comparators]
    for left, operator, right in zip(sides, compare.ops, sides[1:], strict=False):
        small, large = (left, right) if isinstance(operator, ast.Lt | ast.LtE) else (right, left)
        ordered = isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE)
        if ordered and isinstance(large, ast.Constant) and _is_elapsed(small, elapsed):
            return True
    return False


def _is_elapsed(value: ast.AST, elapsed: set[str]) -> bool:
    """Tell whether an expression is a time that passed: a clock's difference, or named as one."""
    if isinstance(value, ast.Name):
        return value.id in elapsed
    if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant):
        return bool(_TIMES.search(str(value.slice.value)))
    return (
        isinstance(value, ast.BinOp)
        and isinstance(value.op, ast.Sub)
        and any(_called(side) in _CLOCKS for side in ast.walk(value))
    )


def test_no_test_waits_for_a_fixed_time() -> None:
    """What must be there is waited for by asking; what must not come is looked for briefly."""
    found = {name for name, node in _functions(("tests", "e2e/stories")) if sleeps_too_long(node)}

    assert found == set(SLEEPS)


def test_no_test_fails_on_a_slow_machine() -> None:
    """Speed is shown by `make bench`; a deadline is for what never comes."""
    found = {name for name, node in _functions(("tests", "e2e/stories")) if judges_speed(node)}

    assert found == set(SPEEDS)


def test_no_test_has_a_way_of_its_own_to_ask_again() -> None:
    """`tests/waiting.py` says what was asked and what the last answer was; a bare loop hangs."""
    found = {name for name, node in _functions(("tests",)) if only_asks_again(node)}

    assert found == set()


def test_the_lists_only_get_shorter() -> None:
    """Each exception has a reason."""
    assert (len(SLEEPS), len(SPEEDS)) == AT_MOST
    assert all({**SLEEPS, **SPEEDS}.values())


async def test_who_gives_up_says_what_it_knows() -> None:
    """What was waited for, what the last answer was, and how far things had got."""
    with pytest.raises(AssertionError, match=r"^a leader: .* last answer was 0; 3 of 5 joined$"):
        await eventually(lambda: 0, "a leader", 0.0, progress=lambda: "3 of 5 joined")
    with pytest.raises(AssertionError, match=r"^test_waiting\.py:\d+: .*; asked 1 times"):
        eventually_blocking(lambda: None, deadline_s=0.0)
    with pytest.raises(AssertionError, match=r"^never: not within 0\.01 s"):
        await eventually_async(asyncio.Event().wait, "never", 0.01)


def _function(body: str) -> ast.AST:
    (function,) = ast.parse(f"def test():\n  {body}").body
    return function


def test_the_rules_see_what_they_are_about() -> None:
    """A rule that finds nothing would pass."""
    waits = ["time.sleep(1)", "sleep(0.2)", "while True: time.sleep(2)"]
    speeds = [
        "assert time.monotonic() - began < 2",
        "took = perf_counter() - began; assert 0 < took <= 2.5",
        "assert 5 > time.time() - began",
        "assert summary['gapMs'] < 2000",
    ]
    harmless = [
        "time.sleep(0.05)",
        "while not done(): time.sleep(0.5)",
        "assert time.monotonic() - began >= 2",
        "assert time.monotonic() < end_s",
        "assert before_ms <= stored_at_ms",
    ]

    assert all(sleeps_too_long(_function(body)) for body in waits)
    assert all(judges_speed(_function(body)) for body in speeds)
    assert not any(
        sleeps_too_long(_function(body)) or judges_speed(_function(body)) for body in harmless
    )
