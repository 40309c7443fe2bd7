"""SQL92 expressions: what matches, as RocketMQ's grammar has it, and what is refused."""

from __future__ import annotations

import sys
import time

import pytest

from dledger.broker.commands import MAX_EXPRESSION_BYTES
from dledger.errors import InvalidArgument
from dledger.rocketmq.expressions import MAX_CONDITIONS, MAX_NESTING, expression

_SEEN = {
    "n": "5", "d": "5.5", "t": "x", "quote": "it's", "yes": "TRUE", "no": "false", "empty": "",
    "minus": "-3", "order": "first", "TAGS": "red", "long": "9223372036854775807",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n = 5", True),
        ("n = 5l", True),
        ("n <> 5", False),
        ("n > 4 AND n >= 5 AND n < 6 AND n <= 5", True),
        ("n BETWEEN 5 AND 6", True),
        ("n BETWEEN 6 AND 7", False),
        ("n NOT BETWEEN 6 AND 7", True),
        ("n between 4 and 6 and t = 'x'", True),
        ("minus = -3 AND minus < +1", True),
        ("n = 5.0", True),
        ("d > 5.0 AND d < 55e-1 OR d = 5.5", True),
        ("long = 9223372036854775807", True),
        ("5 < n", False),
        ("5 = n", True),
        ("t = 'x'", True),
        ("t <> 'y'", True),
        ("quote = 'it''s'", True),
        ("empty = ''", True),
        ("t IN ('a', 'x')", True),
        ("t NOT IN ('a', 'x')", False),
        ("t not in ('a')", True),
        ("n in ('5')", True),
        ("gone IS NULL", True),
        ("gone IS NOT NULL", False),
        ("t IS NULL", False),
        ("t IS NOT NULL", True),
        ("quote CONTAINS 't''s'", True),
        ("quote NOT CONTAINS 'z'", True),
        ("quote STARTSWITH 'it'", True),
        ("quote NOT STARTSWITH 'it'", False),
        ("quote ENDSWITH '''s'", True),
        ("quote NOT ENDSWITH 's'", False),
        ("TAGS = 'red'", True),
        ("yes = TRUE", True),
        ("no = FALSE", True),
        ("t = TRUE", False),
        ("TRUE", True),
        ("FALSE OR n = 5", True),
        ("order = 'first'", True),  # begins like OR
        ("n = 5 OR n = 6 AND t = 'y'", True),
        ("(n = 5 OR n = 6) AND t = 'y'", False),
        ("NOT n = 6", True),
        ("NOT (n = 5 AND t = 'x')", False),
        ("not not n = 5", True),
        ("n = 5 -- the rest is a comment", True),
        ("n /* what */ = /**/ 5", True),
        ("n\n=\t5", True),
        ("n < d", True),
        ("n = minus", False),
    ],
)
def test_an_expression_matches(text: str, expected: bool) -> None:
    """As users of RocketMQ write them."""
    assert expression(text).matches(_SEEN) is expected


@pytest.mark.parametrize(
    "text",
    [
        "gone = 1", "gone <> 1", "NOT gone = 1", "NOT (gone = 1)", "gone > 1", "gone IN ('a')",
        "gone NOT IN ('a')", "gone CONTAINS 'a'", "gone NOT CONTAINS 'a'", "gone BETWEEN 1 AND 2",
        "gone NOT BETWEEN 1 AND 2", "gone = gone", "gone = 1 AND n = 5", "NOT (gone = 1 AND n = 5)",
        "gone = 1 OR n = 6", "NOT (gone = 1 OR n = 6)",
    ],
)  # fmt: skip
def test_what_is_unknown_is_no_match(text: str) -> None:
    """Also where it is denied."""
    assert not expression(text).matches(_SEEN)


@pytest.mark.parametrize("text", ["gone = 1 OR n = 5", "NOT (gone = 1 AND n = 6)"])
def test_what_is_unknown_does_not_decide(text: str) -> None:
    """If the rest does."""
    assert expression(text).matches(_SEEN)


@pytest.mark.parametrize(
    "text",
    [
        "d = 5",
        "d > 5",
        "t > 5",
        "NOT t > 5",
        "t > 5 OR n = 5",
        "empty = 0",
        "t < d",
        "long < d AND 1=2",
    ],
)
def test_a_property_that_is_no_such_number_is_no_match(text: str) -> None:
    """Text is read as the kind of number that it is compared with, as in RocketMQ."""
    assert not expression(text).matches(_SEEN)


def test_a_huge_number_is_none() -> None:
    """A property is the producer's, up to 16 KiB; reading it must not take long."""
    matches = expression("n > 1 OR n > 1.0").matches

    assert not matches({"n": "9" * 10_000})
    assert not matches({"n": "9223372036854775808"})
    assert not matches({"n": "\u0665"})  # a digit of another script
    assert not expression("n > 1.0").matches({"n": "nan"})


@pytest.mark.parametrize(
    "text",
    [
        "", "  ", "a", "a =", "= 1", "a == 1", "a = 1 b", "a = 1 AND", "(a = 1",
        "a = 1)", "a = b = 1",
        "a > 'x'", "a > TRUE",
        "'x' < a", "a IN ()", "a IN (1)", "a IN 'x'", "5 IN ('a')",
        "5 IS NULL", "a IS 5",
        "a BETWEEN 'a' AND 'b'", "a BETWEEN 2 AND 1", "a BETWEEN 1", "a = 0x1F", "a = 010",
        "a = 1x", "a = 1.2.3", "a = 9223372036854775808", "a = 1e999", "-a = 1", "a LIKE 'x%'",
        "a = 'x", 'a = "x"', "a-b = 1", "a = NULL", "a CONTAINS ''", "a CONTAINS 5", "a CONTAINS b",
        "NOT", "a = 1; b = 2", "a + 1 = 2", "\u00e9 = 1", "/* a = 1", "a = " + "1" * 65,
    ],
)  # fmt: skip
def test_what_is_no_expression_is_refused(text: str) -> None:
    """By a sentence, never by another error."""
    with pytest.raises(InvalidArgument, match="SQL92 filter"):
        expression(text)


def _nested(depth: int) -> str:
    return "(" * depth + "a = 1" + ")" * depth


def test_an_expression_has_bounds() -> None:
    """Of bytes, of what is in another, and of comparisons; up to them it is taken."""
    assert expression(_nested(MAX_NESTING)).matches({"a": "1"})
    assert expression(" OR ".join(["a = 1"] * MAX_CONDITIONS)).matches({"a": "1"})
    for text in (
        _nested(MAX_NESTING + 1),
        "NOT " * (MAX_NESTING + 1) + "a = 1",
        "(NOT " * 20 + "a = 1" + ")" * 20,
        " OR ".join(["a = 1"] * (MAX_CONDITIONS + 1)),
        "(" + ") AND (".join([" OR ".join(["a=1"] * 64)] * 5) + ")",
        "a = '" + "x" * MAX_EXPRESSION_BYTES + "'",
        "a = '" + "\u00e9" * (MAX_EXPRESSION_BYTES // 2) + "'",
    ):
        with pytest.raises(InvalidArgument, match="at most"):
            expression(text)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 2_000 + "a = 1" + ")" * 2_000, "NOT " * 1_000 + "a = 1", "a = 1 OR " * 450 + "a = 1",
        "/*" * 2_000, "/*" + "*a" * 2_000, "-" * 4_000, "'" * 4_095, "1" * 4_096, "1e" * 2_000,
        "a IN ('a'" + ", 'a'" * 800 + ")", "(')" * 1_300, ". " * 2_000,
    ],
)  # fmt: skip
def test_whatever_it_is_it_is_read_in_little_time_and_stack(text: str) -> None:
    """A client's expression is read on the event loop."""
    expression("a = 1")  # the parser is made once
    limit = sys.getrecursionlimit()
    began_s = time.process_time()

    try:
        sys.setrecursionlimit(300)
        expression(text).matches({"a": "1"})
    except InvalidArgument:
        pass
    finally:
        sys.setrecursionlimit(limit)

    assert time.process_time() - began_s < 0.5
