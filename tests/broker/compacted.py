"""Compacted topics for tests of what happens to their messages, not of how they are made."""

from __future__ import annotations

from typing import Any

import pytest

from dledger.broker import topic_store
from dledger.broker.topics import Compaction, Topic, checked_topic


def compact_topics(patch: pytest.MonkeyPatch) -> None:
    """Have every topic compacted that is made, or read from a snapshot, but one called `plain`."""

    def made(**settings: Any) -> Topic:
        checked_topic(**settings)
        return read(**settings)

    def read(**settings: Any) -> Topic:
        return Topic(**settings, compaction=None if settings["name"] == "plain" else Compaction())

    patch.setattr(topic_store, "checked_topic", made)
    patch.setattr(topic_store, "Topic", read)
