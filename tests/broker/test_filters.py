"""Tag filter expressions."""

from __future__ import annotations

import pytest

from dledger.broker.filters import NO_TAG, parse_tags, tag_code
from dledger.errors import InvalidArgument


@pytest.mark.parametrize("expression", ["*", "", " * ", "a || *"])
def test_a_star_takes_everything(expression: str) -> None:
    """So does an empty expression, which is the SDKs' default."""
    assert parse_tags(expression) is None


def test_tags_are_joined_by_double_bars() -> None:
    """Spaces around them do not count, repetitions neither."""
    assert parse_tags("b ||a|| b") == ("a", "b")


@pytest.mark.parametrize("expression", ["a ||", "|| a", "a | b", "||".join(map(str, range(300)))])
def test_other_expressions_are_refused(expression: str) -> None:
    """An empty tag, a single bar, too many tags."""
    with pytest.raises(InvalidArgument):
        parse_tags(expression)


def test_tag_codes_never_change() -> None:
    """They are part of the replicated state: a new version must compute the same."""
    assert tag_code(b"") == NO_TAG
    assert tag_code(b"orders") == 5584380421345094869
