from random import Random

from dledger.raft.timer import ElectionTimer


def waits(timer: ElectionTimer) -> int:
    ticks = 1
    while not timer.tick():
        ticks += 1
    return ticks


def test_follower_waits_longer_than_the_timeout() -> None:
    """Between one and one and a half timeouts, and not always the same (Raft 9.3)."""
    found = {waits(ElectionTimer(20, Random(seed))) for seed in range(50)}

    assert min(found) > 20
    assert max(found) <= 30
    assert len(found) > 5


def test_hearing_the_leader_starts_the_wait_anew() -> None:
    """Only silence leads to an election."""
    timer = ElectionTimer(20, Random(1))
    for _ in range(19):
        timer.tick()

    timer.follow()

    assert waits(timer) > 20


def test_hint_waits_at_most_a_quarter() -> None:
    """A broken connection is worth a quick, but not a simultaneous, look."""
    found = set()
    for seed in range(50):
        timer = ElectionTimer(20, Random(seed))
        found.add(0 if timer.hint() else waits(timer))

    assert found == {0, 1, 2, 3, 4, 5}


def test_failed_campaigns_wait_longer_up_to_twice_the_timeout() -> None:
    """Back-off doubles, with a random part, and is bounded."""
    timer = ElectionTimer(20, Random(1))
    found = []
    for _ in range(6):
        timer.campaign()
        found.append(waits(timer))
        timer.failed()

    assert 5 <= found[0] <= 10 <= found[1] <= 20
    assert all(20 <= wait <= 40 for wait in found[2:])


def test_rivals_do_not_stay_in_step() -> None:
    """Two campaigns that began in the same tick rarely end in the same tick again and again."""
    first, second = ElectionTimer(20, Random(1)), ElectionTimer(20, Random(2))
    ties = 0
    for _ in range(100):
        first.campaign()
        second.campaign()
        ties += waits(first) == waits(second)

    assert ties < 40


def test_who_gave_leadership_up_lets_others_go_first() -> None:
    """Its disk is probably slow: it waits more than two timeouts, until a leader is heard."""
    timer = ElectionTimer(20, Random(1))

    timer.rest()
    assert waits(timer) > 40

    timer.rest()
    timer.follow()
    assert waits(timer) <= 30


def test_lower_priority_waits_longer_in_every_wait() -> None:
    """Who has a handicap lets the others go first: after silence, and after a broken connection."""
    first, last = ElectionTimer(20, Random(1)), ElectionTimer(20, Random(1), handicap_ticks=30)
    assert last.deadline_ticks == first.deadline_ticks + 30

    first.hint()
    last.hint()

    assert last.deadline_ticks == first.deadline_ticks + 30


def test_handicap_decays_with_each_wait_in_vain() -> None:
    """A group whose favourites are gone still gets a leader."""
    first, last = ElectionTimer(20, Random(1)), ElectionTimer(20, Random(1), handicap_ticks=30)

    handicaps = []
    for _ in range(6):
        first.campaign()
        last.campaign()
        handicaps.append(last.deadline_ticks - first.deadline_ticks)

    assert handicaps == [15, 7, 3, 1, 0, 0]


def test_handicap_is_whole_again_once_a_leader_is_heard() -> None:
    """The next election is another one."""
    first, last = ElectionTimer(20, Random(1)), ElectionTimer(20, Random(1), handicap_ticks=30)
    for timer in (first, last):
        timer.campaign()
        timer.follow()

    assert last.deadline_ticks == first.deadline_ticks + 30
