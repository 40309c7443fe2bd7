"""Bugs in what holds messages at the door, lets them go when they are due, or recalls them."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_DOOR = "tests/rocketmq/test_delayed_messages.py"
_FOUNDING = "tests/replica/test_founding.py"

TIMER_MUTANTS = (
    Mutant(
        name="what is due goes by the leader's log time",
        file="replica/firing.py",
        old="            date_ms = self._leader.date_ms()\n            if date_ms is",
        new="            date_ms = self._leader.state.now_ms + 10**7\n            if date_ms is",
        why="one leader with a wrong clock, and all messages are early for good",
        checks=(_DOOR,),
    ),
    Mutant(
        name="messages go while the date is not known",
        file="replica/firing.py",
        old="            if date_ms is None or not held.count:\n",
        new="            date_ms = date_ms or 1 << 60\n            if not held.count:\n",
        why="a leader that hears nobody lets all of them go at once",
        checks=(_DOOR,),
    ),
    Mutant(
        name="few messages that are due are read at once",
        file="replica/firing.py",
        old="_STEP_BYTES: Final = 32 << 20\n",
        new="_STEP_BYTES: Final = 1 << 20\n",
        why="what is scattered over large entries reads each of them for each message",
        checks=(_DOOR,),
    ),
    Mutant(
        name="a past time is held",
        file="requests/delivery_times.py",
        old="    return latest_ms > date_ms\n",
        new="    return True\n",
        why="what is to be delivered at once costs twice, and has a handle that is of no use",
        checks=(_DOOR,),
    ),
    Mutant(
        name="any delivery time is taken",
        file="requests/delivery_times.py",
        old="    if latest_ms - date_ms > MAX_DELAY_MS:\n",
        new="    if False:\n",
        why="a slip of the pen holds a message for a hundred years",
        checks=(_DOOR,),
    ),
    Mutant(
        name="a topic takes messages of any type",
        file="rocketmq/send_requests.py",
        old="        if topic.type != self.kind:\n",
        new="        if False:\n",
        why="a message with a time lies in a topic whose consumers know no times, or the reverse",
        checks=(_DOOR,),
    ),
    Mutant(
        name="the fast way takes what has a time",
        file="rocketmq/sending.py",
        old="        if topic.type != NORMAL.name or sending.kind != NORMAL.name:\n",
        new="        if topic.type != sending.kind:\n",
        why="a single message is delivered at once, whatever its time",
        checks=(_DOOR,),
    ),
    Mutant(
        name="more is held than there is room for",
        file="rocketmq/sending.py",
        old="        if is_later and (why := self._engine.holding_refusal()):\n",
        new="        if False and (why := self._engine.holding_refusal()):\n",
        why="the disk fills with what cannot go, and all are refused",
        checks=(_DOOR,),
    ),
    Mutant(
        name="a recall says OK to what was delivered",
        file="requests/recalls.py",
        old="    if result.before[0] is Fate.DELIVERED:\n",
        new="    if False:\n",
        why="a producer believes that nobody gets what somebody has",
        checks=(_DOOR,),
    ),
    Mutant(
        name="a recall handle is not checked",
        file="requests/recall_handles.py",
        old="        if not compare_digest(mac, self._mac(fields + named)):\n",
        new="        if False:\n",
        why="whoever can count recalls the messages of others",
        checks=("tests/rocketmq/test_recall_handles.py",),
    ),
    Mutant(
        name="a recall handle is good for a topic that was made anew",
        file="requests/recall_handles.py",
        old='        about = f"recall\\0{topic}\\0{generation}\\0".encode()\n',
        new='        about = f"recall\\0{topic}\\0".encode()\n',
        why="a handle of a deleted topic recalls a message of its successor",
        checks=("tests/rocketmq/test_recall_handles.py",),
    ),
    Mutant(
        name="a restored log says nothing of what it held",
        file="replica/founding.py",
        old="    if recovered_to and last_index == recovered_to and held != FIRE:\n",
        new="    if False:\n",
        why="the new group delivers what the one that was backed up delivers as well",
        checks=(_FOUNDING,),
    ),
    Mutant(
        name="the word comes behind the founding",
        file="replica/founding.py",
        old="    log.append(entries)\n",
        new="    log.append(entries[::-1])\n",
        why="a leader that has the one without the other lets everything go",
        checks=(_FOUNDING,),
    ),
    Mutant(
        name="a founding that was cut short is not finished",
        file="replica/founding.py",
        old="    return entry.kind is EntryKind.DATA\n",
        new="    return False\n",
        why="a power cut amid the founding, and the restored log founds nothing for ever",
        checks=(_FOUNDING,),
    ),
)
