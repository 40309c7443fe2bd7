"""A follower that is behind gets what it lacks in shares, while others are served without it."""

from dledger.raft.messages import AppendRequest, HeartbeatResponse
from dledger.types import NodeId
from tests.raft.bench import Alone

SHARE, MESSAGE, BODY = 100, 60, b"x" * 20


def behind(*, entries: int) -> Alone:
    """Return a leader who has committed so many entries with 2 while 3 was away, and is back."""
    node = Alone(max_catch_up_bytes=SHARE, max_append_bytes=MESSAGE)
    node.become_leader()
    for peer in ("2", "3"):
        node.ack(node.raft.last_index, sender=peer)
    node.settle()
    node.do(lambda raft: raft.peer_disconnected(NodeId("3")))
    for _ in range(entries):
        write(node)
        node.tick()
    node.hear(HeartbeatResponse, sender="3", term=node.raft.term, round=0)
    node.settle()
    return node


def write(node: Alone) -> None:
    """Commit one entry with 2."""
    node.propose(BODY)
    node.settle()
    node.ack(node.raft.last_index, sender="2")
    node.settle()


def answered(node: Alone) -> int:
    """Let 3 answer all it was sent until nothing more comes; return the bytes it got."""
    taken, got_bytes = len(node.sent), 0
    node.ack(node.raft.progress()[NodeId("3")].next_index - 1, sender="3")
    while True:
        node.settle()
        got = [
            entry
            for message in node.sent[taken:]
            if isinstance(message, AppendRequest) and message.recipient == "3"
            for entry in message.entries
        ]
        taken = len(node.sent)
        if not got:
            return got_bytes
        got_bytes += sum(entry.size_bytes for entry in got)
        node.ack(got[-1].index, sender="3")


def has(node: Alone, peer: str) -> int:
    return node.raft.progress()[NodeId(peer)].match_index


def test_it_gets_a_share_a_tick_while_clients_write() -> None:
    """However quickly it answers, and it comes nearer with each tick until it has all."""
    node = behind(entries=40)
    shares = []
    for _ in range(30):
        write(node)
        node.tick()
        shares.append(answered(node))
        if has(node, "3") == node.raft.last_index:
            break

    assert has(node, "3") == node.raft.last_index == node.raft.commit_index
    assert all(0 < share < SHARE + MESSAGE for share in shares)
    assert len(shares) >= 40 * len(BODY) / (SHARE + MESSAGE)


def test_it_gets_all_at_once_when_nobody_writes() -> None:
    """There is nobody whom it could hold up."""
    node = behind(entries=40)
    node.tick()

    answered(node)

    assert has(node, "3") == node.raft.last_index


def test_it_gets_all_at_once_when_commits_wait_for_it() -> None:
    """Its acknowledgement is what clients wait for: the other follower is silent."""
    node = behind(entries=40)
    write(node)
    node.tick()
    answered(node)
    assert has(node, "3") < node.raft.commit_index
    last_index = node.propose(BODY)[1]
    node.settle()
    node.tick()

    answered(node)

    assert has(node, "3") == node.raft.commit_index == last_index


def test_its_share_grows_with_what_clients_write() -> None:
    """Or it would never come near those who write more than the share."""
    node = behind(entries=60)
    for _ in range(10):
        write(node)
    node.tick()

    share = answered(node)

    assert 2 * 10 * len(BODY) <= share < 2 * 10 * len(BODY) + MESSAGE


def test_entries_that_are_not_committed_are_never_held_back() -> None:
    """A share that is used up keeps nobody from a new entry: its majority may need it."""
    node = behind(entries=5)
    assert answered(node) == SHARE == 5 * len(BODY)

    for _ in range(10):
        node.propose(BODY)
    taken = len(node.sent)
    node.settle()

    sent = [m for m in node.sent[taken:] if isinstance(m, AppendRequest) and m.recipient == "3"]
    assert sum(len(m.entries) for m in sent) == 10
