"""A group whose disks are all replaced, one after the other, by disks that know none of the rest.

The log that a new disk gets begins with the founders. When the last one gets it they have all left,
so nobody whom it knows could introduce the leader to it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from dledger_sim.cluster import Cluster
from dledger_sim.nemesis import Members
from dledger_sim.options import Options
from dledger_sim.process import Process
from dledger_sim.run import Run

_QUIET = Options(tight=True, clients=1, batch=4, think_ms=60, snapshot_entries=200)
"""No faults; appends are small, so that none carries the log up to the newest members."""


def _nothing(cluster: Cluster, joining: Process) -> None:
    del cluster, joining


def _restart(cluster: Cluster, joining: Process) -> None:
    cluster.crash(joining)
    cluster.start(joining)


def _change_leader(cluster: Cluster, joining: Process) -> None:
    del joining
    for leader in cluster.leaders():
        leader.loop.run(leader.driver.transfer_leadership, None)


def _is_fed(process: Process) -> bool:
    return process.driver.core.last_index > 1


def _votes(cluster: Cluster, process: Process) -> bool:
    """Whether it is a voter of the one membership that decides."""
    return cluster.is_settled() and process.id in cluster.memberships()[0].voter_ids


@pytest.mark.parametrize("meanwhile", [_nothing, _restart, _change_leader])
def test_the_last_of_all_replaced_disks_catches_up_and_votes(
    meanwhile: Callable[[Cluster, Process], None],
) -> None:
    """Also if it restarts, or the leader changes, before its log has come to itself."""
    run = Run(5, _QUIET)
    cluster = run.cluster
    cluster.begin()
    cluster.clock.run_until(4_000_000)
    members = Members(cluster)
    founders = list(cluster.processes.values())

    for founder in founders:
        cluster.discard(founder)
        fresh = cluster.add_node(founder.member.name)
        cluster.replacing.add(founder.id)
        members._replace(founder.id, fresh.member)
        cluster.within(30, partial(_is_fed, fresh), "it gets nothing")
        assert {each.id for each in fresh.membership()[1].members} <= {one.id for one in founders}
        meanwhile(cluster, fresh)
        cluster.within(60, partial(_votes, cluster, fresh), "it does not vote")

    assert not {one.id for one in founders} & set(cluster.processes)
    assert cluster.stranded() is None
