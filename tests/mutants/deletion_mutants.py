"""Bugs in what clients make, in its end, and in whose word counts."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_DELETING = "tests/broker/test_deleting.py"
_MADE = "tests/requests/test_made.py"
_RECEIPTS = "tests/rocketmq/test_receipts.py"

DELETION_MUTANTS = (
    Mutant(
        name="a repeated delete hits the topic made since",
        file="broker/topic_store.py",
        old="if topic is None or topic.generation != command.generation:",
        new="if topic is None:",
        why="an answer that was lost costs the messages of another topic",
        checks=(_DELETING,),
    ),
    Mutant(
        name="generations are used again",
        file="broker/topic_store.py",
        old="            self._made += 1\n",
        new="            self._made = len(self._topics) + 1\n",
        why="handles and deletes of before hit a topic that was made anew",
        checks=(_DELETING,),
    ),
    Mutant(
        name="message ids outlive their topic",
        file="broker/topic_store.py",
        old="        self._dedupe.forget_topic(topic.name)\n",
        new="",
        why="a message is answered with a place in a queue that is gone, and is lost",
        checks=(_DELETING,),
    ),
    Mutant(
        name="deliveries outlive their topic",
        file="broker/state.py",
        old="        self.groups.forget_topic(deleted.topic.name)\n",
        new="",
        why="a group passes over what a topic made anew begins with",
        checks=(_DELETING,),
    ),
    Mutant(
        name="a delete changes what a snapshot refers to",
        file="broker/consumer_groups.py",
        old="                self._own(group.name).forget(topic)\n",
        new="                group.forget(topic)\n",
        why="a snapshot is of two moments",
        checks=(_DELETING,),
    ),
    Mutant(
        name="queues are not given back",
        file="broker/topic_store.py",
        old="        self._queues_in_all -= topic.queues\n",
        new="",
        why="a group is full for ever once it was",
        checks=(_DELETING,),
    ),
    Mutant(
        name="the last secret counts",
        file="broker/state.py",
        old="self.secret = self.secret or command.secret",
        new="self.secret = command.secret",
        why="a second leader's makes every handle that is out invalid",
        checks=(_DELETING,),
    ),
    Mutant(
        name="polls of a deleted topic wait on",
        file="rocketmq/long_polls.py",
        old="            self._over.wake(waiter.wake for waiter in waiters)\n",
        new="",
        why="a consumer hears of it only when its time is up",
        checks=(_MADE,),
    ),
    Mutant(
        name="readers of a deleted topic wait on",
        file="services/reading.py",
        old="        if not topics.is_there(self._topic):\n            raise UnknownTopic(name)\n",
        new="",
        why="a reader goes on in another topic, from the middle",
        checks=(_MADE,),
    ),
    Mutant(
        name="all polls of a deleted topic are woken in one turn",
        file="requests/herd.py",
        old="for _ in range(min(AT_ONCE, len(self._waiting))):",
        new="for _ in range(len(self._waiting)):",
        why="ten thousand answers are made while votes and heartbeats wait",
        checks=(_MADE,),
    ),
    Mutant(
        name="a handle is good for a topic made anew",
        file="rocketmq/receipts.py",
        old='f"{group}\\0{topic}\\0{generation}\\0"',
        new='f"{group}\\0{topic}\\0"',
        why="what was held of a deleted topic is taken for what is held now",
        checks=(_RECEIPTS,),
    ),
    Mutant(
        name="a handle without a secret",
        file="rocketmq/receipts.py",
        old="digest_size=_MAC_BYTES) if secret else None",
        new="digest_size=_MAC_BYTES)",
        why="before the first message is handed out anybody can make handles",
        checks=(_RECEIPTS,),
    ),
    Mutant(
        name="a handle may hold any number",
        file="rocketmq/receipts.py",
        old="if max(offset, receive_id) >= NUMBER_BOUND:",
        new="if max(offset, receive_id) >= 1 << 64:",
        why="one row fails all that share its command",
        checks=(_RECEIPTS,),
    ),
    Mutant(
        name="everything is made on demand at once",
        file="requests/topic_resolver.py",
        old="        if self._left < 1:\n            return False\n",
        new="",
        why="a client fills the group with topics by naming them",
        checks=(_MADE,),
    ),
    Mutant(
        name="another client speaks for a client",
        file="rocketmq/client_registry.py",
        old="        return caller.has_telemetry and caller.host == known.host\n",
        new="        return True\n",
        why="what a live consumer holds is given away at another client's word",
        checks=(_MADE,),
    ),
    Mutant(
        name="the last Telemetry of a name has it",
        file="rocketmq/telemetry.py",
        old="peers[0] == peer",
        new="peers[-1] == peer",
        why="another client opens one of its own, and speaks for the client",
        checks=(_MADE,),
    ),
    Mutant(
        name="anybody keeps a client alive for ever",
        file="rocketmq/client_registry.py",
        old=" and now_s - with_telemetry_s < _WITHOUT_TELEMETRY_S",
        new="",
        why="what a dead consumer held is given to nobody",
        checks=(_MADE,),
    ),
)
