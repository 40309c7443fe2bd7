"""A topic as clients are told of it: in lists, and described by itself."""

from __future__ import annotations

from dataclasses import asdict

from dledger.broker.topic_store import TopicStore
from dledger.broker.topics import Topic
from dledger.rpc.pb import dledger_pb2 as pb


def topic_message(topics: TopicStore, topic: Topic) -> pb.Topic:
    """Return the message of a topic that there is."""
    compaction = topic.compaction
    return pb.Topic(
        name=topic.name,
        type=topic.type,
        queues=topic.queues,
        messages=topics.messages(topic.name),
        retention_hours=topic.retention_hours,
        compaction=None if compaction is None else pb.Compaction(**asdict(compaction)),
    )
