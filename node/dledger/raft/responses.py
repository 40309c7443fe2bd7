"""Replies and checks that need no state beyond their arguments. Called by the core."""

from __future__ import annotations

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
    VoteRequest,
    VoteResponse,
)


def is_well_formed(message: AppendRequest) -> bool:
    """Whether the entries join, and their terms never fall nor exceed the sender's (Raft 5.3)."""
    index, term = message.previous_index, message.previous_term
    for entry in message.entries:
        index += 1
        if entry.index != index or entry.term < max(term, 1):
            return False
        term = entry.term
    return message.previous_index >= 0 and 0 <= term <= message.term


def stored(
    message: AppendRequest | InstallSnapshotRequest,
    *,
    term: int,
    match_index: int,
    match_chain: int,
) -> AppendResponse:
    """Return that we have the leader's log up to *match_index*; it leaves when that is durable."""
    return AppendResponse(
        sender=message.recipient,
        recipient=message.sender,
        term=term,
        success=True,
        match_index=match_index,
        match_chain=match_chain,
    )


def answer_outdated(message: Message, term: int) -> Message | None:
    """Return what tells the sender, who lives in an earlier term, about our *term*.

    Nothing for answers, and for a TimeoutNow: they ended with their term.
    """
    us, them = message.recipient, message.sender
    if isinstance(message, AppendRequest):
        return AppendResponse(
            sender=us,
            recipient=them,
            term=term,
            success=False,
            match_index=message.previous_index,
        )
    if isinstance(message, InstallSnapshotRequest):
        return InstallSnapshotResponse(
            sender=us,
            recipient=them,
            term=term,
            last_index=message.info.last_index,
            accepted=False,
            offset=0,
        )
    if isinstance(message, HeartbeatRequest):
        return HeartbeatResponse(sender=us, recipient=them, term=term, round=message.round)
    if isinstance(message, DiscardRequest):
        return DiscardResponse(
            sender=us,
            recipient=them,
            term=term,
            index=message.index,
            entry_term=message.entry_term,
            firm=message.firm,
            lacks=False,
        )
    if isinstance(message, VoteRequest):
        return VoteResponse(sender=us, recipient=them, term=term, granted=False)
    return None
