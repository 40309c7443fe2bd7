"""Bugs in what time it is: whose clock is believed, what a leap ages, what goes on."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_CLOCK = "tests/replica/test_log_clock.py"
_DATE = "tests/replica/test_group_date.py"
_DATING = "tests/replica/test_dating.py"
_LIVED = "tests/broker/test_lived_time.py"
_WORLDS = "tests/replica/test_time_under_any_clocks.py"
_SNAPSHOTS = "tests/replica/test_node_snapshots.py"
_PROPOSER = "tests/replica/test_proposer.py"

TIME_MUTANTS = (
    Mutant(
        name="a leader that has applied nothing yet begins the log's time",
        file="replica/dating.py",
        old="            if serves and (date_ms",
        new="            if (date_ms",
        why="after a weekend off and a start without a snapshot, all messages are two days older",
        checks=(_DATING,),
    ),
    Mutant(
        name="a new leader reads its wall clock",
        file="replica/log_clock.py",
        old="True, self._applied_us, self._leapt_ms\n",
        new="True, self._clock.unix_ms() * _US_PER_MS, self._leapt_ms\n",
        why="one clock that is 73 hours ahead for a second drops every message of the group",
        checks=(_WORLDS, _CLOCK),
    ),
    Mutant(
        name="time without a leader ages messages",
        file="replica/log_clock.py",
        old="        if not self._is_led:\n            return\n",
        new="",
        why="the one node that stayed up for a weekend leads, and all that waited is old",
        checks=(_WORLDS, _CLOCK),
    ),
    Mutant(
        name="time in which the process was frozen ages messages",
        file="replica/log_clock.py",
        old="min(max(passed_us, 0), _MOST_BETWEEN_LOOKS_US)",
        new="max(passed_us, 0)",
        why="containers that were paused for three days drop what they hold when they go on",
        checks=(_WORLDS, _CLOCK),
    ),
    Mutant(
        name="a log that is ahead of the date stands still",
        file="replica/log_clock.py",
        old="(lived_us // 8 if self.is_slow else 0)",
        new="(lived_us if self.is_slow else 0)",
        why="a lease of 8 s ends when the date has come, in days",
        checks=(_WORLDS, _CLOCK),
    ),
    Mutant(
        name="a log that is ahead of the date goes on as before",
        file="replica/log_clock.py",
        old="(lived_us // 8 if self.is_slow else 0)",
        new="0",
        why="it stays ahead for ever",
        checks=(_CLOCK,),
    ),
    Mutant(
        name="a leap that was lost still counts",
        file="replica/log_clock.py",
        old="True, self._applied_us, self._leapt_ms\n",
        new="True, self._applied_us, max(self._own_leapt_ms, self._leapt_ms)\n",
        why="a leader that was deposed, and leads again, ends leases late by what nobody skipped",
        checks=(_CLOCK,),
    ),
    Mutant(
        name="leases end with the leap that is on its way",
        file="replica/log_clock.py",
        old="        self._own_leapt_ms += to_ms - from_ms\n",
        new="",
        why="until it is applied the leader takes everything on loan for given back",
        checks=(_CLOCK, _DATING),
    ),
    Mutant(
        name="the middle of whoever was heard",
        file="replica/group_date.py",
        old="heard[min(len(heard) - minority - 1, (len(heard) - 1) // 2)]",
        new="heard[(len(heard) - 1) // 2]",
        why="two wrong clocks of five push the date ahead while two right ones are not heard",
        checks=(_DATE,),
    ),
    Mutant(
        name="the highest that no minority can have pushed",
        file="replica/group_date.py",
        old="heard[min(len(heard) - minority - 1, (len(heard) - 1) // 2)]",
        new="heard[len(heard) - minority - 1]",
        why="of two members the one whose clock is ahead dates for both",
        checks=(_DATE,),
    ),
    Mutant(
        name="a date by fewer than a majority",
        file="replica/group_date.py",
        old="if len(heard) < majority(voters):",
        new="if not heard:",
        why="a leader that hears nobody dates by its own clock",
        checks=(_DATE, _DATING),
    ),
    Mutant(
        name="the later date of both halves",
        file="replica/group_date.py",
        old="return min(known) if known",
        new="return max(known) if known",
        why="while a member is replaced, one of the halves is enough to push the date",
        checks=(_DATE,),
    ),
    Mutant(
        name="a leap in each round until one is applied",
        file="replica/dating.py",
        old=" and serves and is_done:",
        new=" and serves:",
        why="entries pile up while the disk is slow and clocks move",
        checks=(_DATING,),
    ),
    Mutant(
        name="a leap that was cut is waited for",
        file="replica/dating.py",
        old="applied_index >= index or self._core.term != term",
        new="applied_index >= index",
        why="in a quiet group the log stays behind until as many other entries have come",
        checks=(_DATING,),
    ),
    Mutant(
        name="an answer is as old as it was",
        file="replica/dating.py",
        old="heard.report.unix_ms + int((now_s - heard.heard_s) * 1000)",
        new="heard.report.unix_ms",
        why="the date is behind by the age of the answers",
        checks=(_DATING,),
    ),
    Mutant(
        name="who does not serve yet leaps",
        file="replica/dating.py",
        old="if date_ms is not None and serves and is_done",
        new="if date_ms is not None and is_done",
        why="a new leader has not applied its predecessor's leap, and skips the same time twice",
        checks=(_DATING,),
    ),
    Mutant(
        name="the first entries of a group do not wait for a date",
        file="replica/proposer.py",
        old="if not self._core.has_room or not self._log_clock.is_dated:",
        new="if not self._core.has_room:",
        why="they are of 1970",
        checks=(_PROPOSER,),
    ),
    Mutant(
        name="messages age by an hour of each leap",
        file="broker/lived_time.py",
        old="self.lived_ms - skipped_ms)",
        new="self.lived_ms - max(0, skipped_ms - 3_600_000))",
        why="clocks that creep by an hour each minute drop in an hour what should stay for days",
        checks=(_LIVED, _WORLDS),
    ),
    Mutant(
        name="a leap skips what it says",
        file="broker/lived_time.py",
        old="skipped_ms = min(to_ms, self.log_ms) - max(from_ms, self._before_ms)",
        new="skipped_ms = to_ms - from_ms",
        why="lived time goes back, and leases and messages with it",
        checks=(_LIVED,),
    ),
    Mutant(
        name="what lies before a leap is as old as the log says",
        file="broker/lived_time.py",
        old="    behind = bisect_right(leaps, log_ms, key=_log_ms)\n",
        new="    behind = len(leaps)\n",
        why="by what all leaps skipped a message is older or younger than it is",
        checks=(_LIVED, _WORLDS),
    ),
    Mutant(
        name="what was forgotten of leaps makes messages older",
        file="broker/lived_time.py",
        old="    return leaps[:least] + leaps[least + 1 :]",
        new="    later = (leaps[least + 1][0], leaps[least][1])\n"
        "    return (*leaps[:least], later, *leaps[least + 2 :])",
        why="after many leaps retention drops what is young",
        checks=(_LIVED,),
    ),
    Mutant(
        name="leases end by the log's time",
        file="broker/consumer_groups.py",
        old="                now_ms=self._time.lived_ms,\n",
        new="                now_ms=self._time.log_ms,\n",
        why="everything on loan is delivered again behind a leap",
        checks=(_LIVED,),
    ),
    Mutant(
        name="a segment's age is that of the dates in it",
        file="replica/maintenance.py",
        old="newest_ms=lambda segment: lived_at(leaps, self._newest(segment)),",
        new="newest_ms=self._newest,",
        why="what was stored behind a leap never goes",
        checks=(_SNAPSHOTS,),
    ),
    Mutant(
        name="retention by the log's time",
        file="replica/maintenance.py",
        old="self._driver.log_clock.lived_ms()",
        new="self._driver.log_clock.now_ms()",
        why="after a weekend off everything unread goes within a second of the start",
        checks=(_SNAPSHOTS,),
    ),
)
