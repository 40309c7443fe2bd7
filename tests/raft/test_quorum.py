from hypothesis import given
from hypothesis import strategies as st

from dledger.raft import quorum
from dledger.raft.quorum import Electorate, VoteResult
from dledger.types import NodeId

IDS = [NodeId(str(number)) for number in range(9)]
VOTERS = st.sets(st.sampled_from(IDS), min_size=1)
MATCHES = st.dictionaries(st.sampled_from(IDS), st.integers(0, 12))
VOTES = st.dictionaries(st.sampled_from(IDS), st.booleans())


@given(MATCHES, VOTERS)
def test_committed_is_the_highest_index_that_a_majority_has(
    match_index: dict[NodeId, int], voters: set[NodeId]
) -> None:
    """Agrees with trying every index in turn."""
    expected = 0
    for index in range(1, 13):
        having = [voter for voter in voters if match_index.get(voter, 0) >= index]
        if len(having) * 2 > len(voters):
            expected = index

    assert quorum.committed(match_index, voters) == expected


@given(VOTES, VOTERS)
def test_vote_result_is_what_the_open_votes_can_still_change(
    votes: dict[NodeId, bool], voters: set[NodeId]
) -> None:
    """Agrees with asking: is it won now, and could it be won if all others granted?"""
    granted = sum(votes.get(voter, False) for voter in voters)
    possible = sum(votes.get(voter, True) for voter in voters)

    result = quorum.vote_result(votes, voters)

    assert (result is VoteResult.WON) == (granted * 2 > len(voters))
    assert (result is VoteResult.LOST) == (not possible * 2 > len(voters))


def test_nothing_is_committed_or_won_without_voters() -> None:
    """An empty membership decides nothing."""
    assert quorum.committed({IDS[0]: 7}, []) == 0
    assert quorum.vote_result({IDS[0]: True}, []) is not VoteResult.WON


@given(st.integers(1, 9))
def test_two_majorities_share_a_voter(voter_count: int) -> None:
    """That is what a majority is for."""
    assert 2 * quorum.majority(voter_count) > voter_count
    assert quorum.majority(voter_count) <= voter_count


def test_joint_election_is_open_while_one_half_is() -> None:
    """Both halves elect: having won one is not enough (Raft 6)."""
    new, old = (frozenset({one}) for one in IDS[:2])

    assert Electorate(new, old).vote_result({IDS[0]: True}) is VoteResult.PENDING
    assert Electorate(new, old).vote_result({IDS[0]: True, IDS[1]: True}) is VoteResult.WON
