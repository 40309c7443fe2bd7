"""What was lost without a word: worlds in which one clock, disk or file system is believed.

Each of these failed, at the first seeds, before entries were dated by more than one clock, before
sends waited for room, before *full* was told in one place, and before members remembered of each
other what each had. The worlds are written down: what a seed draws changes.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from dledger_sim.options import Options
from dledger_sim.run import Run

_CLOCKS = Options(
    segment_bytes=8 << 10, clients=2, window=2, batch=32, snapshot_entries=20, kept_hours=72,
    leap_s=1.0, order_s=1.5, reorder=True,
)  # fmt: skip
_CRASHES = replace(_CLOCKS, nodes=5, kept_hours=24, drift=0.1, crash_s=1.5, partition_s=5.0)
_ALL_WRONG = replace(_CLOCKS, all_wrong=True, kill_s=2.0)
_ONE = Options(clients=2, window=2, batch=4, snapshot_entries=200, reorder=True, faulty_s=16)
_OS_BUFFER = replace(_ONE, os_buffer=True, lone_cut_s=0.5)
_PUT_BACK = replace(_ONE, put_back_s=0.5, order_s=5.0, kill_s=5.0)
_FULL = Options(segment_bytes=8 << 10, batch=32, snapshot_entries=20, order_s=1.5, faulty_s=12)
_ROOM = Options(
    segment_bytes=256 << 10, batch=4, body_bytes=8000, think_ms=120, snapshot_entries=20,
    delay_ms=2, sync_ms=2, consumes=True,
)  # fmt: skip


@pytest.mark.found
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))]
)
@pytest.mark.parametrize(
    "world",
    [
        pytest.param(_CLOCKS, id="a-minority-s-clocks-are-days-off"),
        pytest.param(_CRASHES, id="a-minority-s-clocks-drift-and-nodes-crash"),
        pytest.param(_ALL_WRONG, id="everybody-s-clocks-are-days-off"),
        pytest.param(_OS_BUFFER, id="one-power-cut-of-what-only-the-page-cache-had"),
        pytest.param(_PUT_BACK, id="a-disk-is-put-back-to-what-it-was"),
        pytest.param(replace(_FULL, full_s=1.5, quota=True), id="a-quota"),
        pytest.param(replace(_FULL, inodes_s=1.5), id="no-inode-left"),
        pytest.param(replace(_ROOM, volume_kib=1408, faulty_s=16), id="a-small-volume"),
        pytest.param(replace(_ROOM, volume_kib=64 << 10, neighbour_s=1.0), id="others-files"),
    ],
)
def test_nothing_is_lost_because_one_word_is_believed(world: Options, seed: int) -> None:
    """No message, no node, and no send for ever."""
    Run(seed, world).run()


SEED_509 = Options(
    nodes=1, tight=True, clients=1, window=1, batch=64, think_ms=60, snapshot_entries=20,
    kept_kib=32, delay_ms=60, sync_ms=80, loss=0.1, duplicate=0.1, straggle=0.01, reorder=True,
    kill_s=2.0, power_cut_s=3.0, clock_jump_s=3.0, rot_s=2.0, misdirect_s=4.0, lie_s=3.0,
    mangle=0.01,
)  # fmt: skip


def test_a_leader_that_has_applied_nothing_yet_does_not_begin_the_log_s_time_anew() -> None:
    """After a start without a snapshot it took its log for a new group's, and the clock's word.

    What the clock had jumped by was then lived, with no leap: 6,383 s in a world of 4 s.
    """
    Run(509, SEED_509).run()


SEED_23 = Options(
    batch=4, think_ms=60, snapshot_entries=200, faulty_s=16, storm=True, delay_ms=10, sync_ms=2,
    duplicate=0.01, reorder=True, partition_s=5.0, depose_s=1.0, slow_s=3.0, pause_s=5.0,
    order_s=5.0, os_buffer=True, lone_cut_s=2.0, makes=True,
)  # fmt: skip


def test_who_lost_power_soon_is_back_and_does_not_vote_for_one_that_lags() -> None:
    """With osBuffer: a follower had what the leader's buffer lost; the two that lacked it elected.

    One machine's power was cut, and it was up again before the follower that had it was elected.
    """
    Run(23, SEED_23).run()
