import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from dledger.broker.results import Produced
from dledger.broker.state import BrokerState
from dledger.errors import StorageError
from dledger.raft.leader import Leader
from dledger.raft.log import RaftLog
from dledger.replica.persistence import Persister
from dledger.types import Membership
from dledger_sim import __main__ as command_line
from dledger_sim import checkers
from dledger_sim import cluster as cluster_module
from dledger_sim import seeds as many
from dledger_sim.audit import audit
from dledger_sim.checkers import StuckError, ViolationError
from dledger_sim.clients import TOPIC
from dledger_sim.loop import Clock, ProcessLoop
from dledger_sim.nemesis import Members
from dledger_sim.options import Options
from dledger_sim.run import LeaderWatch, Outcome, Run, partition_with_hub
from dledger_sim.seeds import Failure, ended_by_force, run_seeds, shrink, try_seed
from tests.store.harness import Disk as LogDisk

ROOT = Path(__file__).parents[2]
SEEDS = int(os.environ.get("SIM_SEEDS", "300"))
FIRST_SEEDS = 40
JOBS = 2


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(1, FIRST_SEEDS + 1), id="first"),
        pytest.param(range(FIRST_SEEDS + 1, SEEDS + 1), id="others", marks=pytest.mark.long),
    ],
)
def test_no_seed_breaks_a_promise_and_each_is_the_same_run_twice(seeds: range) -> None:
    """Safety at every event, progress of a healed quorum, nothing acknowledged is lost."""
    acknowledged = 0
    for result in run_seeds(seeds, jobs=JOBS, twice=True):
        if isinstance(result, Failure):
            pytest.fail(f"{result.text}replay: {result.replay}")
        acknowledged += result.acknowledged

    assert acknowledged > 500 * len(seeds)


def test_a_change_in_its_last_step_ends_before_the_group_is_cut() -> None:
    """Else who is cut off from whom would be drawn among too few, in vain and for ever."""
    run = Run(3, Options())
    cluster = run.cluster
    cluster.begin()
    cluster.calm = cluster.links.calm = True
    cluster.clock.run_until(3_000_000)
    (leader,) = cluster.leaders()
    stay = leader.driver.core.membership.voters[:2]
    leader.loop.run(lambda: leader.driver.change_membership(voters=stay, learners=()))
    assert not cluster.is_settled()

    partition_with_hub(cluster, LeaderWatch(cluster))

    assert cluster.is_settled()
    assert len(cluster.members()) == 2


def test_a_group_that_no_partition_leaves_a_hub_is_stuck_not_drawn_again_for_ever() -> None:
    """Seed 9400457 hung there."""
    cluster = Run(3, Options()).cluster
    cluster.begin()
    cluster.clock.run_until(3_000_000)
    watch: Any = SimpleNamespace(has_hub=lambda: False)

    with pytest.raises(StuckError, match="leave no hub"):
        partition_with_hub(cluster, watch)


def test_a_run_in_which_time_stands_still_ends_with_its_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Callbacks that call each other at one moment for ever."""

    def spin(self: Run) -> Outcome:
        def again() -> None:
            self.cluster.clock.after(0, again)

        again()
        self.cluster.clock.run_until(1_000_000)
        raise AssertionError

    monkeypatch.setattr(Run, "run", spin)

    failure = try_seed(7)

    assert isinstance(failure, Failure)
    assert "StalledError: 100000 actions, and it is still 0 us" in failure.text
    assert failure.replay == "python -m dledger_sim --seed 7 --trace"


@pytest.mark.parametrize("limit", [{"cpu_s": 0.1}, {"wall_s": 0.1}])
def test_a_run_that_asks_no_clock_is_ended_by_force(
    monkeypatch: pytest.MonkeyPatch, limit: dict[str, float]
) -> None:
    """Whatever it catches: a loop of Python's own, in a node or in the simulator."""

    def spin(self: Run) -> Outcome:
        while True:
            with suppress(Exception):
                sum(range(1000))

    monkeypatch.setattr(Run, "run", spin)
    monkeypatch.setattr(many, "ended_by_force", partial(ended_by_force, **limit))

    _, limit_of_this_test = signal.getitimer(signal.ITIMER_REAL)
    failure = try_seed(7)

    assert isinstance(failure, Failure)
    assert "StalledError: the run has not ended after" in failure.text
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)
    assert signal.getitimer(signal.ITIMER_REAL)[1] == limit_of_this_test


def test_disks_rot_while_members_change_in_a_third_of_the_runs() -> None:
    """But none is wiped there: the copies on two disks may be all that there were."""
    drawn = [Options.draw(Random(f"{seed}/options")) for seed in range(600)]
    mixed = [one for one in drawn if one.mixes]

    assert 160 < len(mixed) < 240
    assert not any(one.wipe_s for one in drawn if one.damages)


def test_a_group_whose_last_copy_is_damaged_rightly_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is told as such; with a whole copy anywhere it is a violation."""
    run = Run(3, Options(change_s=1.0, rot_s=1.0))
    cluster = run.cluster
    cluster.begin()
    cluster.clock.run_until(3_000_000)
    damaged = list(cluster.processes.values())[:1]

    def stand_still() -> None:  # as late as that: until then a node may mend what is in its memory
        for one in damaged:
            one.log.mark_faulty(2, 2, "planted")
        raise StuckError("planted")

    monkeypatch.setattr(run, "_heal_all", stand_still)
    with pytest.raises(StuckError, match="planted"):
        run._recover()

    damaged = list(cluster.processes.values())

    assert run._recover() == 2


SEED_330 = Options(
    nodes=1,
    tight=True,
    window=1,
    batch=4,
    think_ms=30,
    snapshot_entries=20,
    kept_kib=128,
    delay_ms=10,
    sync_ms=80,
    loss=0.01,
    straggle=0.01,
    reorder=True,
    clog_s=5.0,
    kill_s=5.0,
    pause_s=5.0,
    hint_s=5.0,
    change_s=1.0,
    full_s=4.0,
    makes=True,
)


@pytest.mark.found
def test_a_learner_whose_log_knows_nobody_that_is_left_hears_who_leads() -> None:
    """It had the founder's membership only when the founder was gone, and was cut off."""
    outcome = Run(330, SEED_330).run()

    assert (outcome.stranded, outcome.lost_entry) == (None, None)


def test_a_wiped_disk_is_one_that_both_halves_of_a_change_can_spare() -> None:
    """Seed 9700066 wiped one of two, of a group that shrank from three."""
    cluster = Run(3, Options()).cluster
    cluster.begin()
    cluster.clock.run_until(3_000_000)
    (leader,) = cluster.leaders()
    three = leader.driver.core.membership
    joint = Membership.of(three.voters, three.group_id, outgoing=three.voters[:2])
    cluster.commitment.membership = (leader.driver.core.membership_index, joint)

    Members(cluster).wipe()

    assert not cluster.replacing


SEED_14624 = Options(
    nodes=5,
    segment_bytes=16 << 10,
    window=3,
    batch=64,
    think_ms=60,
    snapshot_entries=200,
    kept_kib=32,
    delay_ms=10,
    sync_ms=2,
    loss=0.1,
    duplicate=0.1,
    straggle=0.01,
    reorder=True,
    clog_s=1.0,
    away_s=4.0,
    power_cut_s=6.0,
    crash_writing=0.01,
    pause_s=1.5,
    clock_jump_s=3.0,
    order_s=1.5,
    change_s=3.0,
    wipe_s=4.0,
    eio_s=1.5,
)
SEED_14864 = Options(
    segment_bytes=8 << 10,
    clients=1,
    window=1,
    batch=64,
    think_ms=30,
    snapshot_entries=200,
    kept_kib=128,
    delay_ms=60,
    sync_ms=2,
    duplicate=0.1,
    straggle=0.01,
    reorder=True,
    clog_s=1.0,
    partition_s=5.0,
    stall=0.05,
    crash_s=5.0,
    kill_s=5.0,
    pause_s=5.0,
    clock_jump_s=3.0,
    change_s=1.0,
    wipe_s=4.0,
    eio_s=1.5,
    full_s=4.0,
    mangle=0.01,
)


@pytest.mark.parametrize(("seed", "world"), [(14624, SEED_14624), (14864, SEED_14864)])
def test_who_stays_outside_is_no_voter_of_a_quorum_that_must_go_on(
    seed: int, world: Options
) -> None:
    """Of two learners, the one that was then cut off became a voter first.

    The worlds are what these seeds drew then; what they draw now is another one.
    """
    assert Run(seed, world).run().acknowledged > 100


def test_a_learner_need_not_have_applied_what_progress_is_measured_by() -> None:
    """It may be fed older entries for long; seed 5817 had a new one at the end of the faults."""
    run = Run(3, Options())
    run.cluster.begin()
    run.cluster.clock.run_until(3_000_000)
    behind = next(iter(run.cluster.processes.values()))
    behind.driver._applied_index = 0

    assert not run._have_applied(1)
    with mock.patch.object(run.cluster, "learner_ids", return_value={behind.id}):
        assert run._have_applied(1)


def test_a_node_that_ends_itself_in_a_task_of_its_own_is_started_again() -> None:
    """As whoever supervises it does: a task cannot be closed while it runs."""
    cluster = Run(3, Options()).cluster
    cluster.begin()
    process = next(iter(cluster.processes.values()))

    async def fail() -> None:
        process.driver.disk_failed(StorageError("planted"))

    process.loop.run(lambda: process.loop.create_task(fail()))
    cluster.clock.run_until(5_000_000)

    assert (process.is_up, process.lives) == (True, 2)


def test_time_passes_for_who_waits_for_less_than_a_microsecond() -> None:
    """Seed 18131: the rest of a deadline, 1e-15 s, was waited for at the same moment for ever."""
    clock = Clock()
    loop = ProcessLoop(clock, job_us=lambda: (1, 1))
    seen: list[int] = []

    loop.call_later(1e-15, lambda: seen.append(clock.now_us))
    loop.call_later(0, lambda: seen.append(clock.now_us))
    clock.run_until(10)

    assert seen == [0, 1]


def test_a_group_that_has_not_even_the_topic_is_audited() -> None:
    """Seed 7213: nothing was committed. But what was acknowledged is lost then."""
    empty: Any = SimpleNamespace(
        id="1", state=SimpleNamespace(broker=BrokerState()), log=LogDisk().open()
    )
    told = Produced(topic=TOPIC, queue_ids=(0,), offsets=(0,), index=1, generation=1, stored=1)
    producer: Any = SimpleNamespace(
        name="p", topic=TOPIC, acknowledged=[SimpleNamespace(result=told, ids=["1"])]
    )

    audit([empty], [])
    with pytest.raises(ViolationError, match="it is lost"):
        audit([empty], [producer])


def test_another_seed_is_another_run() -> None:
    """Or comparing two runs of one seed would say nothing."""
    one, other = Run(3).run(), Run(4).run()

    assert one.trace_hash != other.trace_hash


def test_hashes_of_strings_do_not_change_a_run() -> None:
    """The order of sets differs between processes; nothing may rest on it."""
    outcomes = {
        subprocess.run(
            [sys.executable, "-m", "dledger_sim", "--seed", "3"],
            env={**os.environ, "PYTHONHASHSEED": salt, "PYTHONPATH": str(ROOT / "node")},
            check=True,
            capture_output=True,
        ).stdout
        for salt in ("1", "2")
    }

    assert len(outcomes) == 1


def test_a_quarter_of_the_runs_and_more_are_storms_on_good_disks() -> None:
    """Leaders one after and beside another; none is drawn where disks rot as members change."""
    drawn = [Options.of(seed) for seed in range(600)]
    storms = [one for one in drawn if one.storm]

    assert len(storms) > 200
    assert 80 < sum(bool(one.depose_s) for one in storms) < len(storms) - 80
    assert not any(one.damages or one.wipe_s for one in storms)


def first_failure(seeds: int) -> Failure | None:
    results = (try_seed(seed) for seed in range(1, seeds + 1))
    return next((result for result in results if isinstance(result, Failure)), None)


def test_ack_before_sync_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that speaks before its disk has the entries."""
    release = Persister._release

    def acks_at_once(self: Persister) -> None:
        self._send_held(self._acks, self._sequence)
        release(self)

    monkeypatch.setattr(Persister, "_release", acks_at_once)

    failure = first_failure(5)

    assert failure is not None
    assert "which is not on its disk" in failure.text


def test_vote_before_sync_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that votes before its disk knows: it may vote again after a power cut."""
    release = Persister._release

    def votes_at_once(self: Persister) -> None:
        self._send_held(self._votes, self._sequence)
        release(self)

    monkeypatch.setattr(Persister, "_release", votes_at_once)

    failure = first_failure(2)

    assert failure is not None
    assert "before it is kept" in failure.text


def count_all(self: Leader) -> int:
    """Return what a majority stores, whatever its term."""
    match_index = {peer: one.match_index for peer, one in self.progress.items()}
    match_index[self._config.id] = self._log.durable_index
    return self._memberships.electorate.committed(match_index)


def test_commit_of_an_earlier_term_by_counting_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figure 8 of the paper, at the first commit that it makes unsafe."""
    monkeypatch.setattr(Leader, "commit_point", count_all)

    failure = first_failure(20)

    assert failure is not None
    assert "commits an earlier entry" in failure.text


QUIET = Options(storm=True, clients=1, batch=4, reorder=True, snapshot_entries=200)
ELECTIONS = replace(
    QUIET,
    delay_ms=100,
    sync_ms=200,
    crash_voting=0.5,
    crash_leader=1.0,
    crash_s=1.0,
    hint_s=0.2,
    order_s=0.5,
    faulty_s=30,
)
LOSSES = replace(
    QUIET, delay_ms=20, sync_ms=200, crash_leader=0.8, crash_s=1.0, hint_s=1.0, partition_s=1.0,
    loss=0.1, faulty_s=20,
)  # fmt: skip
CUT_OFF = replace(QUIET, pause_s=1.0, partition_s=1.0, hint_s=0.1, faulty_s=20)
SHORT_REIGNS = replace(QUIET, delay_ms=100, sync_ms=20, crash_leader=1.0, hint_s=0.5, faulty_s=30)
DEPOSED = replace(QUIET, delay_ms=2, sync_ms=2, depose_s=0.3, slow_s=3.0, faulty_s=20)


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look into no node and no disk: what is wrong must show in what the group does."""
    monkeypatch.setattr(cluster_module, "check_said", lambda *_: None)
    monkeypatch.setattr(checkers, "_check_counting", lambda *_: None)
    monkeypatch.setattr(checkers, "_check_durable", lambda *_: None)
    monkeypatch.setattr(checkers.Votes, "check", lambda *_: None)
    monkeypatch.setattr(checkers.Commitment, "committed", lambda *_: None)
    monkeypatch.setattr(checkers.Commitment, "_on_disks", lambda *_: None)
    monkeypatch.setattr(checkers.Commitment, "_vote_is_kept", lambda *_: None)


def found_by(world: Options, seeds: int) -> list[str]:
    for seed in range(1, seeds + 1):
        try:
            Run(seed, world).run()
        except AssertionError as error:
            return [f"{seed}: {error}"]
    return []


@pytest.mark.long
@pytest.mark.usefixtures("blind")
def test_ack_before_sync_is_caught_by_what_the_group_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An acknowledged entry is forgotten."""
    release = Persister._release

    def acks_at_once(self: Persister) -> None:
        self._send_held(self._acks, self._sequence)
        release(self)

    monkeypatch.setattr(Persister, "_release", acks_at_once)

    assert found_by(LOSSES, 40)


@pytest.mark.usefixtures("blind")
def test_reads_without_a_quorum_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that was replaced without knowing it misses what its successor acknowledged."""

    def confirm_alone(self: Leader) -> None:
        self._out.reads += self._reads.round_confirmed(self._round)

    monkeypatch.setattr(Leader, "_confirm_reads", confirm_alone)

    assert found_by(CUT_OFF, 40)


def test_a_completion_of_what_was_overruled_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow disk ends with what its node, cut off, took as leader and no longer has."""
    truncate = RaftLog.truncate

    def counts_what_is_gone(self: RaftLog, first: int) -> None:
        before = [write.valid_to for write in self._writes]
        truncate(self, first)
        for write, valid_to in zip(self._writes, before, strict=True):
            write.valid_to = valid_to

    monkeypatch.setattr(RaftLog, "truncate", counts_what_is_gone)

    assert found_by(DEPOSED, 20)


def test_entries_behind_another_history_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two leaders that were cut off have an entry each at one index, and one leads again."""
    monkeypatch.setattr(RaftLog, "matches", lambda self, index, _: self.knows(index))

    assert found_by(DEPOSED, 20)


@pytest.mark.parametrize("world", [ELECTIONS, LOSSES, SHORT_REIGNS, CUT_OFF, DEPOSED])
def test_the_same_worlds_break_nothing_without_a_planted_bug(world: Options) -> None:
    """It is the bug that is caught, not the checker that is wrong."""
    assert not found_by(world, 3)


def test_shrinking_keeps_the_faults_that_a_failure_needs() -> None:
    """One by one, each only if the run still fails without it."""
    off = shrink(["a", "b", "c", "d"], lambda off: not {"b", "d"} & set(off))

    assert off == ("a", "c")


def test_failing_run_prints_how_to_replay_it_with_as_few_faults_as_possible(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line to copy, and exit code 1."""

    def fail(self: Run) -> Outcome:
        if self.options.loss or self.options.nodes:
            raise ViolationError("planted")
        raise AssertionError

    monkeypatch.setattr(Run, "run", fail)
    argv = ["dledger_sim", "--seeds", "3", "--first", "7", "--jobs", "1", "--shrink"]
    monkeypatch.setattr(sys, "argv", argv)

    code = command_line.main()

    active = ",".join(Options.of(7).active())
    assert code == 1
    assert f"python -m dledger_sim --seed 7 --off {active} --trace" in capsys.readouterr().out


def test_keep_going_runs_the_seeds_behind_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All that fail are told, and the exit code is 1."""

    def fail(self: Run) -> Outcome:
        raise ViolationError("planted")

    monkeypatch.setattr(Run, "run", fail)
    argv = ["dledger_sim", "--seeds", "2", "--first", "7", "--jobs", "1", "--keep-going"]
    monkeypatch.setattr(sys, "argv", argv)

    code = command_line.main()

    told = capsys.readouterr().out
    assert code == 1
    assert "seed 7 failed" in told
    assert "seed 8 failed" in told
    assert "0 seeds ok, 2 failed" in told
    assert "(failed: 7, 8)" in told


def test_progress_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A long run shows that it lives, how long it will take, and what it did."""
    monkeypatch.setattr(command_line, "_REPORT_EVERY_S", 0.0)
    monkeypatch.setattr(sys, "argv", ["dledger_sim", "--seeds", "2", "--jobs", "1"])

    code = command_line.main()

    told = capsys.readouterr().out.splitlines()
    assert code == 0
    assert told[0].startswith("1 seeds ok, 0 failed of 2, ")
    assert told[0].endswith(" min left")
    assert told[-1].startswith("2 seeds ok, 0 failed in ")
