"""A killed master under a steady load of FIFO and delayed messages: ours, then RocketMQ's.

Each has a group of its own. Everything that was acknowledged is to be delivered, delayed messages
not before their time, and FIFO ones in the order of their message group. The killed process is
started again when both types are acknowledged again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.bench.cases import Case
from e2e.bench.contest import Contestant
from e2e.bench.faults import KILL
from e2e.bench.java_sdk import settle
from e2e.bench.machine import Busy
from e2e.bench.process_group import ProcessGroup
from e2e.bench.rows import Row
from e2e.bench.typed_judging import got_of, judge, sent_of
from e2e.bench.typed_sends import SETTLED_S
from e2e.harness.waiting import eventually

TYPED_FAILOVER: Final = "typed-failover"
TYPES_FAILOVER: Final = "types-failover"
KINDS: Final[Mapping[str, str]] = {"fifo": "FIFO", "delay": "delayed"}
"""As the load program calls them, and in words."""
_FLOW_S: Final = 1.0
_FLOWS_S: Final = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyPlan:
    """The load, and how long each part of it takes.

    Attributes:
        per_s: Messages a second of each type.
        groups: Message groups.
        from_s: Delayed messages are due so far ahead, at least.
        to_s: At most.
        warm_up_s: For how long each type is sent to another topic before.
        warm_up_window: So many under way then.
        before_s: Before the master is killed.
        after_s: After both types are acknowledged again.
        wait_s: For what was acknowledged and has not come, at most.
        quiet_s: After that: what comes in it has come before.
        size_bytes: Of a body.
    """

    per_s: float = 200
    groups: int = 200
    from_s: float = 10
    to_s: float = 20
    warm_up_s: float = 20
    warm_up_window: int = 64
    before_s: float = 40
    after_s: float = 20
    wait_s: float = 180
    quiet_s: float = 10
    size_bytes: int = 1024


def typed_failover_rows(
    chosen: Mapping[str, Contestant], plan: SteadyPlan, scratch: Path, logs: Path
) -> Iterator[Row]:
    """Yield two rows for each system: what its FIFO and its delayed messages met.

    Args:
        chosen: As `typed_contestants` makes them; their turns are not held.
        plan: The load.
        scratch: Where the nodes' disks are.
        logs: Where what they print goes.
    """
    for name, contestant in chosen.items():
        specs = contestant.place(scratch / name)
        group = ProcessGroup(contestant.make(), specs, logs / name)
        try:
            group.start()
            yield from _rows(group, plan)
        finally:
            group.discard()


def _rows(group: ProcessGroup, plan: SteadyPlan) -> Iterator[Row]:
    load, case = group.load, Case(batch=1, window=plan.warm_up_window)
    for kind in KINDS:  # or who is slow at first is behind before anything happens
        settle(load, case, kind)
        load.run(case, plan.warm_up_s, mode=kind)
    load.ask("settle", answer_s=SETTLED_S)
    load.ask(
        "watch", per_s=plan.per_s, groups=plan.groups, from_s=plan.from_s, to_s=plan.to_s,
        size_bytes=plan.size_bytes,
    )  # fmt: skip
    _wait_flowing(group)
    others_cores = _others_cores(group, plan.before_s)
    victim = group.wait_whole()
    fault_ms = round(time.time() * 1000)
    KILL.make(group, victim)
    _wait_flowing(group)
    KILL.heal(group, victim)
    group.restart(victim)
    time.sleep(plan.after_s)
    answer = load.ask("finish", seconds=plan.wait_s, quiet_s=plan.quiet_s, answer_s=_FLOWS_S)
    for kind, words in KINDS.items():
        figures = judge(sent_of(answer, kind), got_of(answer, kind), fault_ms)
        figures["others_cores"] = others_cores
        yield Row(
            kind=TYPED_FAILOVER,
            system=group.system.name,
            name=f"{words}, {plan.per_s:g} a second",
            size_bytes=plan.size_bytes,
            figures=figures,
        )


def _others_cores(group: ProcessGroup, seconds: float) -> float:
    """Wait for so long; return how many cores others than the group and its client took."""

    def own_s() -> float:
        usages = [*group.usages(), group.load.child.usage()]
        return sum(usage.cpu_s for usage in usages if usage is not None)

    busy, before_s, began_s = Busy(), own_s(), time.monotonic()
    time.sleep(seconds)
    took_s = time.monotonic() - began_s
    return max(0.0, busy.seconds() - (own_s() - before_s)) / took_s


def _wait_flowing(group: ProcessGroup) -> None:
    """Wait until both types are acknowledged, again and again.

    Raises:
        HarnessError: They are not.
    """

    def flows() -> bool:
        earlier = group.load.ask("progress")
        time.sleep(_FLOW_S)
        later = group.load.ask("progress")
        return all(later[kind] > earlier[kind] for kind in KINDS)

    eventually(f"{group.system.name} acknowledges both types", flows, _FLOWS_S)
