"""Bad memory in the simulated group: entries that arrive changed, behind every CRC."""

from __future__ import annotations

from unittest import mock

from dledger.raft.ready import Divergence
from dledger.replica.role_observer import RefusalLog
from dledger_sim.options import Options
from dledger_sim.run import Run


def test_entries_that_are_mangled_on_their_way_are_refused_and_sent_again() -> None:
    """Behind every CRC: the chain of the leader's log shows it before anything counts."""
    refused: list[object] = []

    def note(_: RefusalLog, what: object) -> None:
        if what is not None:
            refused.append(what)

    with mock.patch.object(RefusalLog, "note", note):
        outcome = Run(1, Options(nodes=3, mangle=0.2)).run()

    assert len(refused) > 20
    assert all(isinstance(each, Divergence) for each in refused)
    assert outcome.acknowledged > 500
