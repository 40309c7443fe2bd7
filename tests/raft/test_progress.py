from hypothesis import given
from hypothesis import strategies as st

from dledger.raft.progress import Progress, ProgressState
from dledger.types import SnapshotInfo

INFO = SnapshotInfo(last_index=5, last_term=1, last_chain=0, size_bytes=100, crc32c=0)
BOUNDS = {"max_messages": 3, "max_bytes": 100}


def replicating(*, match: int = 5) -> Progress:
    progress = Progress(next_index=match + 1)
    progress.acked(match)
    return progress


def test_probe_sends_one_message_at_a_time() -> None:
    """Until the follower answers, a second probe would only add load."""
    progress = Progress(next_index=6)

    progress.sent(last_index=9, size_bytes=10)

    assert not progress.can_send(**BOUNDS)
    assert progress.next_index == 6


def test_answered_probe_starts_the_pipeline() -> None:
    """A success at the place we asked about says where the logs agree."""
    progress = Progress(next_index=6)
    progress.sent(last_index=9, size_bytes=10)

    progress.acked(9)

    assert progress.state is ProgressState.REPLICATE
    assert (progress.match_index, progress.next_index) == (9, 10)


def test_success_below_the_probe_keeps_probing() -> None:
    """A late answer raises match, but says nothing about the place we asked about."""
    progress = Progress(next_index=6)
    progress.sent(last_index=9, size_bytes=10)

    progress.acked(3)

    assert progress.state is ProgressState.PROBE
    assert (progress.match_index, progress.next_index) == (3, 6)


def test_pipeline_is_bounded_by_messages() -> None:
    """The third unanswered message is the last."""
    progress = replicating()
    for index in (6, 7, 8):
        assert progress.can_send(**BOUNDS)
        progress.sent(last_index=index, size_bytes=1)

    assert not progress.can_send(**BOUNDS)


def test_pipeline_is_bounded_by_bytes() -> None:
    """Large messages fill the window before the count does."""
    progress = replicating()
    progress.sent(last_index=6, size_bytes=100)

    assert not progress.can_send(**BOUNDS)


def test_ack_frees_every_message_up_to_it() -> None:
    """Acks are cumulative."""
    progress = replicating()
    for index in (6, 7, 8):
        progress.sent(last_index=index, size_bytes=10)

    progress.acked(7)

    assert list(progress.inflight) == [(8, 10)]
    assert progress.inflight_bytes == 10


def test_rejection_in_the_pipeline_goes_back_to_the_agreement() -> None:
    """A lost message shows as a rejection of the next one."""
    progress = replicating()
    progress.sent(last_index=9, size_bytes=10)
    progress.sent(last_index=12, size_bytes=10)

    assert progress.rejected(9, resume_index=6)
    assert progress.state is ProgressState.PROBE
    assert progress.next_index == 7
    assert not progress.inflight


def test_rejection_never_goes_below_match() -> None:
    """What was acknowledged is durable there and stays."""
    progress = replicating(match=5)
    progress.sent(last_index=9, size_bytes=10)

    progress.rejected(9, resume_index=0)

    assert progress.next_index == 6


def test_stale_rejections_change_nothing() -> None:
    """A rejection of what was acknowledged since, or of another probe, is old news."""
    pipeline = replicating(match=5)
    probe = Progress(next_index=6)

    assert not pipeline.rejected(5, resume_index=1)
    assert not pipeline.rejected(99, resume_index=1)
    assert not probe.rejected(4, resume_index=1)


def test_broken_connection_waits_for_a_sign_of_life() -> None:
    """What is in flight is lost, and more would be too."""
    progress = replicating()
    progress.sent(last_index=9, size_bytes=10)

    progress.disconnected()

    assert progress.state is ProgressState.PROBE
    assert not progress.can_send(**BOUNDS)
    progress.heartbeat_answered()
    assert progress.probe_due


def test_heartbeat_asks_again_only_when_something_is_unanswered() -> None:
    """An idle follower costs heartbeats and nothing else."""
    idle = replicating()
    idle.heartbeat_answered()
    idle.heartbeat_answered()

    assert not idle.probe_due


def test_heartbeat_asks_again_only_without_progress() -> None:
    """While acks come in, nothing is lost; the first round without one asks."""
    progress = replicating(match=5)
    for index in (6, 7, 8):
        progress.sent(last_index=index, size_bytes=10)
    progress.heartbeat_answered()
    progress.acked(6)

    progress.heartbeat_answered()
    assert not progress.probe_due
    progress.heartbeat_answered()
    assert progress.probe_due


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "ack", "reject", "heartbeat", "disconnect", "ask"]),
        st.integers(0, 30),
        st.integers(0, 30),
    )
)


@given(STEPS)
def test_progress_stays_sane_whatever_is_answered(steps: list[tuple[str, int, int]]) -> None:
    """Match < next, bytes add up, a probe is alone; for every order of events."""
    progress = Progress(next_index=5)
    for action, first, second in steps:
        entries_go = progress.state is not ProgressState.SNAPSHOT and progress.can_send(**BOUNDS)
        if action == "send" and entries_go:
            progress.sent(last_index=progress.next_index + first, size_bytes=second)
        elif action == "ack":
            progress.acked(first)
        elif action == "reject":
            progress.rejected(first, second)
        elif action == "heartbeat":
            progress.heartbeat_answered()
        elif action == "disconnect":
            progress.disconnected()
        elif action == "ask":
            progress.asks_for_snapshot()

        assert progress.match_index < progress.next_index
        assert progress.inflight_bytes == sum(size for _, size in progress.inflight)
        assert all(index > progress.match_index for index, _ in progress.inflight)
        assert progress.state is ProgressState.REPLICATE or not progress.inflight


def test_ack_of_what_was_known_does_not_end_a_snapshot() -> None:
    """It lacks entries that we do not have; only more of the log than that makes it go on."""
    progress = Progress(next_index=6, match_index=3)
    progress.needs_snapshot(INFO)

    assert not progress.acked(3)
    assert progress.state is ProgressState.SNAPSHOT
    assert progress.acked(9)
    assert (progress.state, progress.next_index) == (ProgressState.PROBE, 10)


def test_ack_of_a_probe_that_was_under_way_leaves_what_is_known_below_what_is_next() -> None:
    """The follower had synced the entry, then found that it had lost one before (seed 20040034)."""
    progress = Progress(next_index=21)
    progress.sent(last_index=21, size_bytes=0)
    progress.asks_for_snapshot()

    assert progress.acked(21)

    assert (progress.state, progress.match_index) == (ProgressState.SNAPSHOT, 21)
    assert progress.next_index == 22


def test_answer_about_another_snapshot_changes_nothing() -> None:
    """It is late: a newer one took its place, or the follower has the log again."""
    progress = Progress(next_index=6)
    progress.needs_snapshot(INFO)

    assert not progress.snapshot_answered(last_index=4, accepted=True, offset=50)
    assert progress.snapshot_offset == 0
    progress.probe_from(6)
    assert not progress.snapshot_answered(last_index=5, accepted=True, offset=50)
