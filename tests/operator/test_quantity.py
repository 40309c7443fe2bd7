"""Quantities are exact."""

from __future__ import annotations

from decimal import Decimal

import pytest

from dledger_operator.api import quantity


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("10Gi", 10 * 1024**3),
        ("1.5Ki", 1536),
        ("500m", Decimal("0.5")),
        ("1e3", 1000),
        ("2E", 2 * 10**18),
        ("7", 7),
        (".5", Decimal("0.5")),
    ],
)
def test_a_quantity_stands_for_a_number(text: str, number: Decimal) -> None:
    """Binary and decimal suffixes and exponents are all read."""
    assert quantity.parse(text) == number


@pytest.mark.parametrize("text", ["", "ten", "10 Gi", "10Gib", "-", "1e"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    """The message shows what was given."""
    with pytest.raises(ValueError, match="is not a quantity"):
        quantity.parse(text)


def test_spelling_does_not_matter_for_sameness() -> None:
    """The API server rewrites 1000m as 1."""
    assert quantity.same("1000m", 1)
    assert not quantity.same("1000m", "1001m")
    assert not quantity.same("sync", "sync2")
