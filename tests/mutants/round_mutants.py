"""Bugs in when rounds of compaction run, what they may do, and what is told of them."""

from __future__ import annotations

from functools import partial

from tests.mutants.mutant import Mutant

_ROUNDS = "tests/operator/test_rounds.py"
_TURNS = "tests/operator/test_round_reconcile.py"
_SCHEDULE = "tests/operator/test_schedule.py"
_HISTORY = "tests/operator/test_compaction_history.py"
_CHECKS = "tests/operator/test_checks.py"
_MADE = "tests/operator/test_round_schedule.py"
_mutant = partial(Mutant, package="operator")

ROUND_MUTANTS = (
    _mutant(
        name="a round runs beside a backup",
        file="controllers/log_job_reconcile.py",
        old="predecessor=backup)",
        new='predecessor="")',
        why="both read the nodes' logs at once, and the round an archive that is being written",
        checks=(_TURNS,),
    ),
    _mutant(
        name="a backup runs beside a round",
        file="controllers/log_job_reconcile.py",
        old="reconcile(running=running)",
        new="reconcile()",
        why="two Jobs of a group read its nodes at once",
        checks=(_TURNS,),
    ),
    _mutant(
        name="two rounds at once",
        file="controllers/round_reconcile.py",
        old="rival = rival or one.name",
        new="rival = rival",
        why="the second does the same again, and takes the room of the first",
        checks=(_TURNS,),
    ),
    _mutant(
        name="a round that ended lets the next pass a backup",
        file="controllers/round_reconcile.py",
        old="one, group, jobs.get(one.name), predecessor=predecessor, rival=rival",
        new='one, group, jobs.get(one.name), predecessor="", rival=rival',
        why="a backup waits for round after round",
        checks=(_TURNS,),
    ),
    _mutant(
        name="missed rounds are left out",
        file="api/schedule.py",
        old="if at is None or backup_due or any",
        new="if at is None or (now - at).total_seconds() >= LATE_S or any",
        why="a weekly round is missed for a week since the operator was away for ten minutes",
        checks=(_SCHEDULE,),
    ),
    _mutant(
        name="a missed round is made again and again",
        file="api/schedule.py",
        old="return at if text_of(at) > max(last, group.created_at) else None",
        new="return at if text_of(at) > group.created_at else None",
        why="a round follows the other until the next time of the schedule",
        checks=(_SCHEDULE,),
    ),
    _mutant(
        name="a clock that was ahead stops the schedule",
        file="api/schedule.py",
        old='known if known <= text_of(until) else ""',
        new="known",
        why="no round, and no backup, until that time comes, perhaps in years",
        checks=(_SCHEDULE,),
    ),
    _mutant(
        name="a round with a backup's certificate",
        file="resources/compaction.py",
        old="tuple(compactor_volumes(group))",
        new="()",
        why="nodes refuse it, or backups may let go of messages",
        checks=(_ROUNDS,),
    ),
    _mutant(
        name="a round writes to the store",
        file="resources/compaction.py",
        old="reads_only=True",
        new="reads_only=False",
        why="what only reads a volume of backups could damage it",
        checks=(_ROUNDS,),
    ),
    _mutant(
        name="any result goes into the status",
        file="decisions/rounds.py",
        old="return value if counts and 0 <= value <= _GREATEST else 0",
        new="return int(value) if counts else 0",
        why="the API server refuses the whole status for one number, for ever",
        checks=(_ROUNDS,),
    ),
    _mutant(
        name="a topic that exists may become compacted",
        file="decisions/topic_checks.py",
        old="if asked != seen.compaction:",
        new="if asked is None and seen.compaction:",
        why="the spec says that a topic is compacted, and nothing ever is",
        checks=(_CHECKS,),
    ),
    _mutant(
        name="a compacted topic is given more queues",
        file="decisions/topic_checks.py",
        old="elif seen.compaction and topic.queues != seen.queues:",
        new="elif seen.compaction and topic.queues < seen.queues:",
        why="the newest message of a key lies in another queue than the one before",
        checks=(_CHECKS,),
    ),
    _mutant(
        name="the schedule makes rounds of nothing",
        file="decisions/plan.py",
        old="wanted = observed.round_due and compacted_topics(observed.topics)",
        new="wanted = observed.round_due",
        why="each round is refused, and the group told to be ill",
        checks=(_MADE,),
    ),
    _mutant(
        name="a round is overdue from when the group was made",
        file="status/compaction_history.py",
        old='found.setdefault("since", now)',
        new='found.setdefault("since", group.created_at)',
        why="the alert fires the moment that an old group gets its first compacted topic",
        checks=(_HISTORY,),
    ),
    _mutant(
        name="a refused second round counts as one that failed",
        file="status/compaction_history.py",
        old='return one.phase == FAILED and rows[0].get("reason") in _FAILURES',
        new="return one.phase == FAILED",
        why="who asks twice is told that compaction fails",
        checks=(_HISTORY,),
    ),
)
