import sys

import pytest

from dledger.raft.leader import Leader
from dledger_sim import __main__ as command_line
from dledger_sim.checkers import ViolationError
from dledger_sim.faults import Faults
from dledger_sim.node import Bug
from dledger_sim.simulator import Options, Simulation


@pytest.mark.parametrize("first", [1, 11, 21, 31, 41])
def test_no_seed_breaks_a_promise(first: int) -> None:
    """Safety at every event, and a whole group again after the faults; 50 seeds."""
    for seed in range(first, first + 10):
        try:
            Simulation(seed).run()
        except Exception as error:
            error.add_note(f"replay: python -m dledger_sim --core --seed {seed} --trace")
            raise


def test_the_replay_command_runs_this_simulator(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """There are two: the same seed is another run in that of the whole node."""
    monkeypatch.setattr(sys, "argv", ["dledger_sim", "--core", "--seed", "5", "--trace"])

    code = command_line.main()

    told = capsys.readouterr().out.splitlines()
    assert code == 0
    assert told[-1] == str(Simulation(5).run())
    assert len(told) > 1000


def test_same_seed_is_the_same_run() -> None:
    """Otherwise a failure could not be replayed."""
    first, again, other = (Simulation(seed).run() for seed in (5, 5, 6))

    assert first == again
    assert first.trace_hash != other.trace_hash


def broken_seeds(options: Options, seeds: int) -> list[int]:
    found = []
    for seed in range(1, seeds + 1):
        try:
            Simulation(seed, options).run()
        except AssertionError:
            found.append(seed)
            break
    return found


def test_ack_before_sync_is_caught_by_looking_at_disks() -> None:
    """An entry is applied that only a minority holds."""
    options = Options(bug=Bug.ACK_BEFORE_SYNC)

    with pytest.raises(ViolationError, match="have it on disk"):
        Simulation(1, options).run()


ELECTIONS = Faults(delay_ms=100, sync_ms=200, crash_saving=0.5, crash_leader=1.0, hint_s=0.2)
LOSSES = Faults(
    delay_ms=20, sync_ms=200, crash_leader=0.8, crash_s=1, hint_s=1, partition_s=1, loss=0.1
)
CUT_OFF = Faults(pause_s=1, partition_s=1, hint_s=0.1)
SHORT_REIGNS = Faults(delay_ms=100, sync_ms=20, crash_leader=1.0, hint_s=0.5)


def test_vote_before_sync_is_caught_by_what_the_group_does() -> None:
    """A forgotten vote is given twice: two leaders in a term, or what follows from it."""
    options = Options(
        nodes=3, faults=ELECTIONS, bug=Bug.VOTE_BEFORE_SYNC, check_disks=False, faulty_s=30
    )

    assert broken_seeds(options, 40)


@pytest.mark.long
def test_ack_before_sync_is_caught_by_what_the_group_does() -> None:
    """An acknowledged entry is forgotten."""
    options = Options(
        nodes=3, faults=LOSSES, bug=Bug.ACK_BEFORE_SYNC, check_disks=False, faulty_s=20
    )

    assert broken_seeds(options, 40)


def test_commit_of_earlier_terms_by_counting_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figure 8 of the paper."""

    def count_all(self: Leader) -> int:
        match_index = {peer: p.match_index for peer, p in self.progress.items()}
        match_index[self._config.id] = self._log.durable_index
        return self._memberships.electorate.committed(match_index)

    monkeypatch.setattr(Leader, "commit_point", count_all)
    options = Options(nodes=3, faults=SHORT_REIGNS, check_disks=False, faulty_s=30)

    assert broken_seeds(options, 40)


def test_reads_without_a_quorum_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that was replaced without knowing it misses what its successor acknowledged."""

    def confirm_alone(self: Leader) -> None:
        self._out.reads += self._reads.round_confirmed(self._round)

    monkeypatch.setattr(Leader, "_confirm_reads", confirm_alone)
    options = Options(nodes=3, faults=CUT_OFF, check_disks=False, faulty_s=20)

    assert broken_seeds(options, 40)


@pytest.mark.parametrize("faults", [ELECTIONS, LOSSES, SHORT_REIGNS, CUT_OFF])
def test_the_same_faults_break_nothing_without_a_planted_bug(faults: Faults) -> None:
    """It is the bug that is caught, not the checker that is wrong."""
    for seed in range(1, 6):
        Simulation(seed, Options(nodes=3, faults=faults, faulty_s=20)).run()
