"""A made-up next version: level 2 brings one command, and one field of a command there is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from dledger.broker.commands import DECODERS, CreateGroup, CreateTopic
from dledger.broker.results import TopicCreated
from dledger.broker.state import BrokerState
from dledger.common.features import FEATURES, CommandForm, Features, since
from dledger.errors import UnknownTopic

CLONE_TOPIC: Final = 200
NEXT: Final[Features] = replace(
    FEATURES,
    level=2,
    commands={
        **FEATURES.commands,
        3: CommandForm(
            name="CREATE_GROUP", level=1, fields=since(1, "name entry stored") | since(2, "note")
        ),
        CLONE_TOPIC: CommandForm(name="CLONE_TOPIC", level=2, fields=since(2, "topic copy")),
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneTopic:
    """Make a topic like another."""

    topic: str
    copy: str

    def encode(self) -> bytes:
        data = json.dumps({"topic": self.topic, "copy": self.copy}).encode()
        return len(data).to_bytes(4, "little") + bytes([CLONE_TOPIC]) + data


def _clone_topic(row: Mapping[str, Any]) -> CloneTopic:
    return CloneTopic(topic=row["topic"], copy=row["copy"])


def _create_group(row: Mapping[str, Any]) -> CreateGroup:
    return CreateGroup(name=row["name"] + row["note"]) if "note" in row else _plain_group(row)


_plain_group: Callable[[Mapping[str, Any]], Any] = DECODERS[3]


class NextState(BrokerState):
    """What the next version makes of the log."""

    def __init__(self) -> None:
        more = {3: _create_group, CLONE_TOPIC: _clone_topic}
        super().__init__(features=NEXT, decoders={**DECODERS, **more})

    def _bound(self) -> dict[type, Callable[[Any], object]]:
        return super()._bound() | {CloneTopic: self._clone}

    def _clone(self, command: CloneTopic) -> TopicCreated:
        topic = self.topics.get(command.topic)
        if topic is None:
            raise UnknownTopic(command.topic)
        return self.topics.create(
            CreateTopic(name=command.copy, type=topic.type, queues=topic.queues)
        )
