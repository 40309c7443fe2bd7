"""Our own system: ``dledger node`` processes, founded through the public client."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from dledger.client import AdminClient
from dledger.common.status import NodeStatus
from e2e.bench.process_group import NodeState
from e2e.bench.rows import OURS
from e2e.harness.nodes import Link, NodeSpec, finished, member_of, node_command, status
from e2e.harness.processes import Command
from e2e.harness.waiting import eventually

_FOUNDED_S = 60.0
_GROUP_ID = str(uuid.uuid4())


class Ours:
    """See `System`; *settings* go to every node, by their names in the node's config."""

    name = OURS
    warm_up_s = 2.0
    link = Link.BY_HOST

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        python: Path = Path(sys.executable),
        environment: Mapping[str, str] | None = None,
        tells_group: bool = True,
        load_module: str = "e2e.bench.native_load",
    ) -> None:
        """Take nodes and clients from where *environment* makes *python* find them.

        *tells_group*: whether these nodes are told which group they may join. *load_module*: the
        clients, which are given the nodes' endpoints.
        """
        self._tells_group = tells_group
        self._load_module = load_module
        self._settings = dict(settings or {})
        self._python, self._environment = python, dict(environment or {})

    def node(self, spec: NodeSpec, specs: Sequence[NodeSpec]) -> Command:  # noqa: ARG002 - founding tells
        """See `System`."""
        group = {"group": "bench", "peer_host": spec.link_host}
        group |= {"group_id": _GROUP_ID} if self._tells_group else {}
        return node_command(
            spec,
            group | self._settings,
            python=self._python,
            environment=self._environment,
        )

    def load(self, specs: Sequence[NodeSpec]) -> Command:
        """See `System`."""
        endpoints = ",".join(spec.endpoint for spec in specs)
        argv = (self._python, "-m", self._load_module, endpoints)
        return Command(argv, self._environment, answers=True)

    def found(self, specs: Sequence[NodeSpec]) -> None:
        """See `System`."""
        answers = [
            eventually("our nodes answer", lambda s=s: status(s.own_address), _FOUNDED_S)  # type: ignore[misc]
            for s in specs
        ]
        if any(answer.group_id for answer in answers):
            return
        members = [member_of(a, s.link_address) for a, s in zip(answers, specs, strict=True)]

        async def bootstrap() -> None:
            async with AdminClient(specs[0].own_address) as admin:
                await admin.bootstrap(_GROUP_ID, members)

        finished(bootstrap())

    def state(self, spec: NodeSpec) -> NodeState | None:
        """See `System`. The node is asked through its own port, cut links or not."""
        told = status(spec.own_address)
        if told is None:
            return None
        return NodeState(
            leads=told.role == "leader",
            term=told.term,
            is_ready=told.ready,
            last_index=told.last_index,
            phases=_phases(told),
        )


def _phases(told: NodeStatus) -> dict[str, float]:
    record = told.last_failover
    if record is None:
        return {}
    return {
        "detected_ms": record.detected_ms,
        "elected_ms": record.elected_ms,
        "first_ack_ms": record.first_ack_ms,
    }
