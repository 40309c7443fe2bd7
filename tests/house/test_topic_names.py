"""One rule of what a topic may be called: the schema of a BrokerGroup's is the broker's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dledger.checks.names import KEPT_PREFIXES, MAX_NAME_LENGTH, check_may_be_made
from dledger.errors import InvalidArgument

CRD = Path(__file__).parents[2] / "crds/brokergroup.yaml"


def _schema() -> dict[str, Any]:
    document = yaml.safe_load(CRD.read_text("utf-8"))
    spec = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    found: dict[str, Any] = spec["properties"]["topics"]["items"]["properties"]["name"]
    return found


NAME = _schema()


def of_schema(name: str) -> bool:
    """Whether the API server takes a name."""
    low, high = NAME["minLength"], NAME["maxLength"]
    assert isinstance(low, int)
    assert isinstance(high, int)
    if not low <= len(name) <= high:
        return False
    for each in NAME["x-kubernetes-validations"]:
        rule = re.fullmatch(r"(!?)self\.matches\('(.+)'\)", each["rule"])
        assert rule, each
        pattern = rule[2].replace("$", r"\Z")  # RE2's $ is the end alone
        if bool(re.search(pattern, name)) is bool(rule[1]):
            return False
    return True


def of_broker(name: str) -> bool:
    """Whether a client may make a topic of that name."""
    try:
        check_may_be_made(name)
    except InvalidArgument:
        return False
    return True


@pytest.mark.found
def test_schema_and_broker_take_the_same_characters() -> None:
    """found: bugs 4. The schema allowed '|', which no node takes, and said so."""
    characters = [chr(number) for number in range(0x250)] + ["ä", "漢", "\u2028", "\U0001f600"]

    for character in characters:
        for name in (character, f"a{character}", f"{character}b", f"a{character}b"):
            assert of_schema(name) is of_broker(name), repr(name)
    assert {c for c in characters if of_broker(c)} == set(
        "%-_0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    )


@pytest.mark.parametrize(
    "name",
    [
        *("", "a" * MAX_NAME_LENGTH, "a" * (MAX_NAME_LENGTH + 1)),
        *(prefix + rest for prefix in KEPT_PREFIXES for rest in ("", "g")),
        *("%DLQ", "a%DLQ%g", "%dlq%g", "%RETRY", "%%RETRY%g", "DLQ%g"),
    ],
)
def test_schema_and_broker_take_the_same_names(name: str) -> None:
    """As long as may be, and those that dead letters will want."""
    assert of_schema(name) is of_broker(name)
    assert of_broker(name) is (
        0 < len(name) <= MAX_NAME_LENGTH and not name.startswith(KEPT_PREFIXES)
    )
