"""Which group this disk belongs to, and how it joins one.

Owned by the node, which starts its driver once the disk belongs to a group. A disk joins by
`Bootstrap`, or by the handshake of a member that knows the disk's UUID; and only the group that the
setting ``group_id`` names.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from dledger.common.features import FEATURE_LEVEL
from dledger.errors import AlreadyBootstrapped, NodeRemoved, NotTheGroup
from dledger.files.files import Files
from dledger.peers.handshake import Handshake, PeerAddress, check
from dledger.raft.view import RaftView
from dledger.replica.bootstrap_record import BootstrapFile, BootstrapRecord, check_bootstrap
from dledger.replica.founding import is_unfounded
from dledger.store.commit_log import CommitLog
from dledger.store.identity import Identity, join, load_or_format
from dledger.store.tombstone import NAME as TOMBSTONE_NAME
from dledger.store.tombstone import Tombstone, load_tombstone, save_tombstone
from dledger.store.two_copies import OnMended
from dledger.types import Member, Membership, NodeId, Role

logger = logging.getLogger(__name__)


def authoritative_membership(core: RaftView | None) -> Membership:
    """Return the members if this node leads; none otherwise, since a follower may lag."""
    if core is None or core.role is not Role.LEADER:
        return Membership()
    return core.membership


class Bootstrap:
    """The identity of one disk, which is formatted if it was empty; it joins one group, once.

    Args:
        address: The peer address that this node sends in its handshakes.
        told_group: The id of the group that an empty disk may join or bootstrap; "": none.
        feature_level: The feature level that this node sends in its handshakes.
        on_joined: Called when the disk has joined a group.
        on_mended: Told of a copy of the identity that was written again.
    """

    def __init__(
        self,
        files: Files,
        directory: Path,
        *,
        group: str,
        name: str,
        address: PeerAddress,
        told_group: str,
        feature_level: int = FEATURE_LEVEL,
        on_joined: Callable[[], Awaitable[None]],
        on_mended: OnMended = lambda _: None,
    ) -> None:
        """Load or write the identity.

        Raises:
            NodeRemoved: The group has removed this node.
            StorageError: The directory belongs to another node, or is damaged.
        """
        self._files = files
        self._directory = directory
        self._name = name
        self._address = address
        self.told_group = told_group
        self._feature_level = feature_level
        self._on_joined = on_joined
        self._lock = asyncio.Lock()
        self._founding = BootstrapFile(files, directory)
        self.identity: Identity = load_or_format(
            files, directory, f"{group}/{name}", on_mended=on_mended
        )
        tombstone = load_tombstone(files, directory)
        if tombstone is not None:
            raise self._removed(tombstone)
        if self.group_id and told_group not in ("", self.group_id):
            logger.warning(
                "this disk belongs to group %r; group_id %r applies to an empty disk only",
                self.group_id,
                told_group,
            )

    @property
    def node_id(self) -> NodeId:
        """The UUID of this node's disk."""
        return self.identity.node_id

    @property
    def group_id(self) -> str:
        """The group; empty while Unjoined."""
        return self.identity.group_id

    def founding_of(self, log: CommitLog) -> BootstrapRecord | None:
        """Return this node's bootstrap if its log lacks the entry of that. Blocks.

        Raises:
            CorruptFile: The bootstrap record is damaged.
        """
        founding = self._founding.load()
        begun = founding is not None and founding.group_id == self.group_id
        return founding if begun and is_unfounded(log, self.identity.recovered_to) else None

    async def bootstrap(self, group_id: str, members: tuple[Member, ...]) -> None:
        """Bootstrap a group with this node among its members; it is recorded on disk first.

        Raises:
            AlreadyBootstrapped: This node belongs to a group.
            NotTheGroup: This node is configured to join another group, or none.
            InvalidArgument: See `check_bootstrap`.
        """
        founding = check_bootstrap(group_id, members, own_id=self.node_id)
        async with self._lock:
            if self.group_id:
                raise AlreadyBootstrapped(self.group_id)
            if group_id != self.told_group:
                raise NotTheGroup(told=self.told_group, theirs=group_id)
            await asyncio.to_thread(self._founding.save, founding)
            await self._join(group_id)
            logger.info("bootstrapping group %s with %s", group_id, [m.name for m in members])
            await self._on_joined()

    def handshake_to(self, member: Member, epoch: tuple[int, int] = (0, 0)) -> Handshake:
        """Return the handshake for a stream to *member*; *epoch* and its entry, see `Epochs`."""
        return Handshake(
            group_id=self.group_id,
            sender_id=self.node_id,
            sender_name=self._name,
            recipient_id=member.id,
            endpoint=self._address,
            feature_level=self._feature_level,
            epoch=epoch[0],
            epoch_index=epoch[1],
        )

    async def accept(self, handshake: Handshake, view: Callable[[], RaftView | None]) -> None:
        """Accept a peer's handshake; an Unjoined node joins the group it is configured to join.

        Args:
            handshake: The peer's handshake.
            view: Returns the Raft core, or None before there is one.

        Raises:
            Refused: See `handshake.check`.
        """
        async with self._lock:
            core = view()
            joins = check(
                handshake,
                node_id=self.node_id,
                group_id=self.group_id,
                told_group=self.told_group,
                membership=authoritative_membership(core),
                removal_index=core.removal_index(handshake.sender_id) if core else None,
            )
            if joins:
                await self._join(handshake.group_id)
                logger.info(
                    "joined group %s by the handshake of %r",
                    handshake.group_id,
                    handshake.sender_name,
                )
                await self._on_joined()

    async def bury(self, index: int, now_ms: int) -> NodeRemoved:
        """Write the tombstone of a node that its group has removed; return why it must stop.

        Raises:
            DiskFull, StorageError: It could not be written; the node must stop all the same.
        """
        tombstone = Tombstone(
            group_id=self.group_id, node_id=self.node_id, index=index, learned_at_ms=now_ms
        )
        await asyncio.to_thread(save_tombstone, self._files, self._directory, tombstone)
        return self._removed(tombstone)

    def _removed(self, tombstone: Tombstone) -> NodeRemoved:
        return NodeRemoved(
            tombstone.node_id,
            group_id=tombstone.group_id,
            index=tombstone.index,
            path=str(self._directory / TOMBSTONE_NAME),
        )

    async def _join(self, group_id: str) -> None:
        self.identity = await asyncio.to_thread(
            join, self._files, self._directory, self.identity, group_id
        )
