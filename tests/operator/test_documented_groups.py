"""Groups that the documents show are accepted as they stand, by an operator of the chart's kind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dledger_operator.api.reasons import Reason
from dledger_operator.decisions.checks import problems, verdict
from dledger_operator.observed.observed import Observed
from dledger_operator.resources import Platform
from tests.house.sources import ROOT, documents

_BLOCK = re.compile(r"^ *```\w*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_HERE = re.compile(r"<<'?EOF'?\n(.*?)^EOF", re.DOTALL | re.MULTILINE)
REGISTRY = Platform(
    image="registry.example.com/dledger:0.1.0",
    namespace="dledger-system",
    spark_image="registry.example.com/dledger-spark:0.1.0",
)


def groups(document: Path) -> Iterator[dict[str, Any]]:
    """Yield the BrokerGroups of a page's blocks, those that a command reads too."""
    for block in _BLOCK.findall(document.read_text("utf-8")):
        if "kind: BrokerGroup" in block:
            text = "---\n".join(_HERE.findall(block)) or block
            yield from (each for each in yaml.safe_load_all(text) if each["kind"] == "BrokerGroup")


SHOWN = [
    pytest.param(shown, id=f"{page.relative_to(ROOT)}-{number}")
    for page in documents()
    for number, shown in enumerate(groups(page))
]


@pytest.mark.parametrize("shown", SHOWN)
def test_a_group_that_a_page_shows_is_accepted(shown: dict[str, Any]) -> None:
    """No unknown field, none that nothing acts on, no image that the chart does not allow."""
    metadata = {"namespace": "shop", "uid": "uid-1", "generation": 1, **shown["metadata"]}

    found = verdict(problems(REGISTRY.group({**shown, "metadata": metadata}), Observed()))

    assert found.reason is Reason.ACCEPTED, found.message


def test_pages_show_groups() -> None:
    """Else the test above would look at nothing."""
    assert len(SHOWN) >= 3
