"""Messages and changes as sentences, for scenario files and traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    DiscardRequest,
    DiscardResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    InstallSnapshotRequest,
    InstallSnapshotResponse,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from dledger.raft.ready import RoleChange
from dledger.types import Entry, EntryKind, HardState, Membership, Role


def entry(item: Entry) -> str:
    """Return such as ``2:(term 1, "a")``, or the kind in place of the data."""
    what = f'"{item.data.decode()}"' if item.kind == EntryKind.DATA else item.kind.name.lower()
    if item.kind == EntryKind.MEMBERSHIP and item.index > 1:
        what = membership(Membership.decode(item.data))
    return f"{item.index}:(term {item.term}, {what})"


def membership(item: Membership) -> str:
    """Return such as ``voters 1 2 4 and 1 2 3, learners 5, epoch 1``."""
    text = f"voters {' '.join(sorted(item.voter_ids)) or 'none'}"
    if item.is_joint:
        text += f" and {' '.join(sorted(item.outgoing_ids))}"
    if item.learners:
        text += f", learners {' '.join(sorted(m.id for m in item.learners))}"
    if item.epoch:
        text += f", epoch {item.epoch}"
    return text


def entries(items: Sequence[Entry]) -> str:
    """Return entries in a row."""
    return " ".join(entry(item) for item in items)


def hard_state(state: HardState) -> str:
    """Return such as ``term 2, vote 1``."""
    return f"term {state.term}, vote {state.vote or 'none'}"


def role_change(change: RoleChange) -> str:
    """Return what a node became, and why."""
    leader = f" of {change.leader}" if change.role is Role.FOLLOWER and change.leader else ""
    return f"{change.role.value}{leader} in term {change.term}: {change.cause.value}"


def message(item: Message) -> str:
    """Return who says what to whom."""
    return f"{item.sender} -> {item.recipient} {_WORDS[type(item)](item)}"


def _pre_vote_request(m: PreVoteRequest) -> str:
    return f"pre-vote for term {m.term}? log ends (term {m.last_term}, index {m.last_index})"


def _pre_vote_response(m: PreVoteResponse) -> str:
    return f"pre-vote: {_yes_no(m.granted)}, term {m.term}"


def _vote_request(m: VoteRequest) -> str:
    transfer = ", handed over" if m.transfer else ""
    return f"vote in term {m.term}? log ends (term {m.last_term}, index {m.last_index}){transfer}"


def _vote_response(m: VoteResponse) -> str:
    return f"vote: {_yes_no(m.granted)}, term {m.term}"


def _append_request(m: AppendRequest) -> str:
    what = entries(m.entries) or "nothing"
    return (
        f"append after (term {m.previous_term}, index {m.previous_index}): {what}; "
        f"commit {m.commit_index}, term {m.term}"
    )


def _append_response(m: AppendResponse) -> str:
    if m.success:
        return f"appended up to {m.match_index}, term {m.term}"
    return (
        f"no append at {m.match_index}, agree at most at (term {m.conflict_term}, "
        f"index {m.conflict_index}), term {m.term}"
    )


def _install_request(m: InstallSnapshotRequest) -> str:
    end = m.offset + len(m.data)
    return (
        f"snapshot up to (term {m.info.last_term}, index {m.info.last_index}): "
        f"bytes [{m.offset}, {end}) of {m.info.size_bytes}, term {m.term}"
    )


def _install_response(m: InstallSnapshotResponse) -> str:
    wish = f"goes on at byte {m.offset}" if m.accepted else "is not taken"
    return f"snapshot up to {m.last_index} {wish}, term {m.term}"


def _heartbeat_request(m: HeartbeatRequest) -> str:
    return f"heartbeat {m.round}, commit {m.commit_index}, term {m.term}"


def _heartbeat_response(m: HeartbeatResponse) -> str:
    return f"heartbeat {m.round} answered, term {m.term}"


def _discard_request(m: DiscardRequest) -> str:
    how = "" if m.firm else "would "
    return f"{how}lack (term {m.entry_term}, index {m.index})? term {m.term}"


def _discard_response(m: DiscardResponse) -> str:
    what = f"(term {m.entry_term}, index {m.index})"
    return f"{'lacks' if m.lacks else 'may have'} {what}, term {m.term}"


def _timeout_now(m: TimeoutNow) -> str:
    return f"campaign now, term {m.term}"


def _yes_no(granted: bool) -> str:
    return "yes" if granted else "no"


_WORDS: dict[type[Message], Callable[[Any], str]] = {
    PreVoteRequest: _pre_vote_request,
    PreVoteResponse: _pre_vote_response,
    VoteRequest: _vote_request,
    VoteResponse: _vote_response,
    AppendRequest: _append_request,
    AppendResponse: _append_response,
    HeartbeatRequest: _heartbeat_request,
    HeartbeatResponse: _heartbeat_response,
    InstallSnapshotRequest: _install_request,
    InstallSnapshotResponse: _install_response,
    TimeoutNow: _timeout_now,
    DiscardRequest: _discard_request,
    DiscardResponse: _discard_response,
}
