"""The table of who may call what on the peer port is about that port: no more, and no less."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.rpc.callers import MAY_CALL, may_call, member
from dledger.server.wiring import forwarded_services_of, services_of
from tests.system.live_nodes import LiveNodes


async def test_every_method_of_the_peer_port_is_in_the_table_and_none_other(
    tmp_path: Path,
) -> None:
    """A method that is new has to say who may call it; until then nobody may."""
    nodes = LiveNodes(tmp_path)
    await nodes.start(0)
    try:
        node = nodes.nodes[0]
        served = {path for service in node._peer_services() for path in service._method_handlers}
        for told in forwarded_services_of(node._parts)[-2:]:  # of followers' clients
            served |= set(told._method_handlers)
        served |= {
            path for each in services_of(node._parts, peer_port=True) for path in each.methods
        }
    finally:
        await nodes.stop()

    assert served == MAY_CALL.keys()


@pytest.mark.parametrize(
    "role",
    ["", "member", "member/", "operator/orders-0", "admin/x", "backup/", "nobody", "Operator"],
)
def test_what_is_no_role_may_call_nothing(role: str) -> None:
    """A member has a name, and nobody else has one."""
    assert not [path for path in MAY_CALL if may_call(role, path)]


def test_a_backup_only_reads_and_a_compactor_lets_go_of_messages_besides() -> None:
    """And a member leaves the group as it is."""
    admin = "/dledger.v1.Admin/"
    assert {path for path in MAY_CALL if may_call("backup", path)} == {
        admin + method
        for method in (
            *("Status", "Export", "ExportPlaces", "ExportPlan", "ExportSnapshot", "Snapshot"),
        )
    }
    compacts = {path for path in MAY_CALL if may_call("compactor", path)}
    assert compacts - {path for path in MAY_CALL if may_call("backup", path)} == {
        *(admin + "Compact", admin + "DescribeTopic", "/dledger.v1.Topics/ListTopics"),
    }
    of_member = [path for path in MAY_CALL if may_call(member("orders-0"), path)]
    assert [path for path in of_member if path.startswith(admin)] == [f"{admin}Status"]
