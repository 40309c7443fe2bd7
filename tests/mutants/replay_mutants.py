"""Bugs in what the group knows of a spool's replays: messages that are lost, or stored twice."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LANES = "tests/broker/test_replayed_lanes.py"
_WIRE = "tests/rocketmq/test_replays.py"
_BATCHES = "tests/requests/test_broken_messages.py"
_ADVERTISED = "tests/sidecar/test_parent.py"

REPLAY_MUTANTS = (
    Mutant(
        name="a sidecar advertises a name",
        file="sidecar/child.py",
        old="        return await asyncio.to_thread(resolve, host, wait_s=_RESOLVE_WAIT_S)\n",
        new="        return host\n",
        why="an SDK takes it for an IPv4 address, and none of its sends arrives",
        checks=(_ADVERTISED,),
    ),
    Mutant(
        name="an ended call keeps its request",
        file="sidecar/channel.py",
        old="            del call\n",
        new="            pass\n",
        why="an outage with many messages waiting takes gigabytes, and the container is killed",
        checks=("tests/sidecar/test_upstream.py",),
    ),
    Mutant(
        name="the sequence passes a conflict",
        file="broker/topic_store.py",
        old="        done = produced.conflicts[0] if produced.conflicts else batch.count\n",
        new="        done = batch.count\n",
        why="a message that is not stored yet is answered with OK when it comes again, and lost",
        checks=(_LANES,),
    ),
    Mutant(
        name="a lane falls back",
        file="broker/replayed_lanes.py",
        old="lane._replace(last=max(lane.last, last), used_ms=lived_ms)",
        new="lane._replace(last=last, used_ms=lived_ms)",
        why="after a repeat of old messages, those behind them are stored twice",
        checks=(_LANES,),
    ),
    Mutant(
        name="a use does not count",
        file="broker/replayed_lanes.py",
        old="            self._lanes.move_to_end(key)\n",
        new="",
        why="a lane in use is forgotten for one that is not",
        checks=(_LANES,),
    ),
    Mutant(
        name="lanes age by the log's time",
        file="broker/topic_store.py",
        old="whose=whose, lived_ms=time.lived_ms)",
        new="whose=whose, lived_ms=time.log_ms)",
        why="a group that was away for a month has forgotten what it stored before",
        checks=(_LANES,),
    ),
    Mutant(
        name="one message too many is known",
        file="common/replay_mark.py",
        old="last - self.first + 1))",
        new="last - self.first + 2))",
        why="the first new message of each call is answered with OK and lost",
        checks=(_LANES,),
    ),
    Mutant(
        name="one message too few is known",
        file="common/replay_mark.py",
        old="last - self.first + 1))",
        new="last - self.first))",
        why="the last message before a cut is stored twice",
        checks=(_LANES,),
    ),
    Mutant(
        name="ids overrule the sequence",
        file="broker/retries.py",
        old="            if row < replayed and (before is None or before.digest != digest):\n",
        new="            if row < replayed and before is None:\n",
        why="what is stored is stored once more because another message has its id by now",
        checks=(_LANES,),
    ),
    Mutant(
        name="a topic that is made anew remembers",
        file="broker/topic_store.py",
        old="        self._lanes.forget_topic(topic.name)\n",
        new="",
        why="what is replayed to it is answered with OK and lost",
        checks=(_LANES,),
    ),
    Mutant(
        name="the topic that holds least gives way",
        file="broker/replayed_lanes.py",
        old="        return None if share is None else (-len(share.keys),)\n",
        new="        return None if share is None else (len(share.keys),)\n",
        why="a stranger's flood of lanes pushes out a quiet spool",
        checks=(_LANES,),
    ),
    Mutant(
        name="a client has all lanes it wants",
        file="broker/replayed_lanes.py",
        old="        if len(keys) > self._of_client:\n",
        new="        if len(keys) < 0:\n",
        why="one client fills a topic, and pushes out the others in it",
        checks=(_LANES,),
    ),
    Mutant(
        name="readers are told lanes",
        file="broker/produce.py",
        old="    head = HEADER.pack(version, flags & ~HAS_MARK, 0, *others)\n",
        new="    head = HEADER.pack(version, flags, 0, *others)\n",
        why="what they get is no batch, or tells whose spool it was",
        checks=(_LANES,),
    ),
    Mutant(
        name="replays share a command",
        file="rocketmq/command_batcher.py",
        old="        if not alone:\n",
        new="        if not alone or rows:\n",
        why="the rows of the second call have the sequences of others, and are stored twice",
        checks=(_WIRE,),
    ),
    Mutant(
        name="a door joins replays",
        file="door_process/send_batches.py",
        old="    if headers.raw(REPLAY_FIELD) is not None:\n",
        new="    if headers.raw(REPLAY_FIELD) == b'':\n",
        why="their marks are lost, and days later they are stored twice",
        checks=(_WIRE,),
    ),
    Mutant(
        name="a mark stays where it came",
        file="door/contract.py",
        old=" or name == REPLAY_FIELD\n",
        new="\n",
        why="a replay at a follower is stored twice",
        checks=(_WIRE,),
    ),
    Mutant(
        name="a message stored apart is marked as well",
        file="rocketmq/sending.py",
        old="        origin = origin._replace(client_id=scope, replay=None)\n",
        new="        origin = origin._replace(client_id=scope)\n",
        why="it is taken for the first one of its call, which is known, and is lost",
        checks=(_WIRE,),
    ),
    Mutant(
        name="a producer brings marks of its own",
        file="services/batches.py",
        old="    if batch.replay is not None:",
        new="    if batch.queue_id < NO_QUEUE:",
        why="who reads keys in a backup can have a spool's messages taken for stored",
        checks=(_BATCHES,),
    ),
)
