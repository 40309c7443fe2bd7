"""Bugs in the order of priorities: what is urgent and waits, and what goes to a wrong queue."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_MODEL = "tests/broker/test_priority_histories.py"
_DOORS = "tests/rocketmq/test_priority_topics.py"
_SPOOL = "tests/spool/test_spooled_priorities.py"

PRIORITY_MUTANTS = (
    Mutant(
        name="the lowest queue comes first",
        file="broker/consumer_groups.py",
        old="            order = [*range(len(queues) - 1, -1, -1)]\n",
        new="            order = [*range(len(queues))]\n",
        why="what is urgent comes last",
        checks=(_MODEL,),
    ),
    Mutant(
        name="a receive begins with the queue that it names",
        file="broker/consumer_groups.py",
        old="        if command.any_queue and topic_type.highest_first:\n",
        new="        if command.any_queue and topic_type.highest_first and not hint:\n",
        why="a simple consumer names one at random, and gets what is not urgent",
        checks=(_MODEL,),
    ),
    Mutant(
        name="a priority above the last queue goes round",
        file="broker/priorities.py",
        old="    return min(priority, queues - 1)\n",
        new="    return priority % queues\n",
        why="the highest of all is delivered as the lowest",
        checks=(_MODEL,),
    ),
    Mutant(
        name="a message without a priority is the lowest",
        file="broker/priorities.py",
        old="    if NO_PRIORITY in priorities:\n",
        new="    if NO_PRIORITY - 1 in priorities:\n",
        why="a producer that forgot it is not told, and its messages starve",
        checks=(_MODEL, _DOORS),
    ),
    Mutant(
        name="a batch may ask for another queue than its priority's",
        file="broker/priorities.py",
        old="    if batch.queue_id not in {NO_QUEUE, queue_id}:\n",
        new="    if batch.queue_id < NO_QUEUE:\n",
        why="its producer is told of one place, and its messages are in another",
        checks=(_MODEL,),
    ),
    Mutant(
        name="a push consumer polls one queue",
        file="rocketmq/receiving.py",
        old="                or TYPES[topic.type].highest_first\n",
        new="",
        why="it gets what is in the queue that it named, while higher ones wait",
        checks=(_DOORS,),
    ),
    Mutant(
        name="a push consumer is told to poll each queue",
        file="rocketmq/routes.py",
        old="        as_one = to_poll and TYPES[topic.type].highest_first\n",
        new="        as_one = False\n",
        why="it holds a batch of each queue in its memory, where nothing overtakes it",
        checks=(_DOORS,),
    ),
    Mutant(
        name="an expression looks at the queues in turn",
        file="rocketmq/expression_scans.py",
        old="        if poll.any_queue and TYPES[topic.type].highest_first:\n",
        new="        if poll.any_queue and not TYPES:\n",
        why="with an SQL92 filter the order of priorities is gone",
        checks=(_DOORS,),
    ),
    Mutant(
        name="a send with a priority makes its topic",
        file="requests/topic_resolver.py",
        old="        is_normal = kind == NORMAL.name\n",
        new="        is_normal = bool(kind)\n",
        why="a topic is NORMAL for ever because somebody misspelt another",
        checks=(_DOORS,),
    ),
    Mutant(
        name="a topic that is missing is said without its type",
        file="requests/topic_resolver.py",
        old='kind="" if is_normal else kind)',
        new='kind="")',
        why="who does what the refusal says makes a NORMAL topic, which refuses the message",
        checks=("tests/rocketmq/test_topic_types_told.py",),
    ),
    Mutant(
        name="a spool forgets the priority",
        file="spool/payload.py",
        old='    if typed is None:\n        return b""\n',
        new='    if typed is not None or typed is None:\n        return b""\n',
        why="what was sent while the group was away is rejected when it is back",
        checks=(_SPOOL,),
    ),
)
