"""A part of an `AdminBackend`, as a test's subject asks it; mypy holds it to the Protocol."""

from __future__ import annotations

from dledger.common.status import NodeStatus
from dledger.replica.force_group import Force, Forced
from dledger.replica.member_change import Changed, MemberChange
from dledger.services.admin import AdminBackend
from dledger.services.export import CommittedLog
from dledger.types import Member, NodeId


class PartOfAdminBackend(AdminBackend):
    """Whatever a subclass does not have, its test is not about: to ask for it is an error."""

    def status(self) -> NodeStatus:
        raise NotImplementedError

    async def wait_change(self, timeout_s: float) -> None:
        raise NotImplementedError

    async def bootstrap(self, group_id: str, members: tuple[Member, ...]) -> None:
        raise NotImplementedError

    def transfer_leadership(self, target: NodeId | None) -> NodeId:
        raise NotImplementedError

    async def change_members(self, change: MemberChange, *, timeout_s: float) -> Changed:
        raise NotImplementedError

    async def force_new_group(self, force: Force, *, timeout_s: float) -> Forced:
        raise NotImplementedError

    async def snapshot(self) -> int:
        raise NotImplementedError

    def committed_log(self) -> CommittedLog:
        raise NotImplementedError
