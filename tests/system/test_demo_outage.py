"""``make demo-outage`` at work, with the client that every machine has."""

from __future__ import annotations

import json

import pytest

from e2e.clients import demo_outage
from e2e.harness.world import ROOT


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.long
def test_the_demo_loses_nothing_and_tells_what_happened() -> None:
    """Short, and with one language: others are asked by `make clients`."""
    code = demo_outage.main(["--languages", "python", "--outage-s", "6"])

    told = json.loads((ROOT / "build" / "demo-outage.json").read_text("utf-8"))
    events = " ".join(each["event"] for each in told["timeline"])
    assert (code, told["errors"], told["lost"], told["doubled"], told["outOfOrder"]) == (0,) * 5
    for said in ("SIGKILLed", "first message is spooled", "nodes are back", "nothing waits"):
        assert said in events
