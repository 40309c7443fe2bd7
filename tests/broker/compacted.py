"""Compacted topics for tests of what happens to their messages, not of how these come in."""

from __future__ import annotations

from typing import Any

import pytest

from dledger.broker import topic_store
from dledger.broker.topics import Compaction, Topic, checked_topic


def compact_topics(patch: pytest.MonkeyPatch) -> None:
    """Have every topic made compacted but one called `plain`, and take messages without a key."""

    def made(**settings: Any) -> Topic:
        if settings["name"] != "plain":
            settings["compaction"] = Compaction()
        return checked_topic(**settings)

    patch.setattr(topic_store, "checked_topic", made)
    patch.setattr(topic_store, "check_keyed", lambda *_: None)
