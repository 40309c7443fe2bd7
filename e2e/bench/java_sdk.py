"""Rows of the RocketMQ Java SDK: what an unmodified client gets, and what it costs the servers.

The load programs are in ``java_sdk/``; one process of one loads one system, and is frozen with
that. A send is acknowledged when the system promises so; a simple consumer's message when its
acknowledgement is answered; a push consumer's when it is given to the listener.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dledger.client import Client
from dledger.errors import NotLeader
from e2e.bench.cases import Case
from e2e.bench.engine import measured
from e2e.bench.java import class_path
from e2e.bench.loads import Load
from e2e.bench.machine import Busy
from e2e.bench.ours import Ours
from e2e.bench.process_group import ProcessGroup
from e2e.bench.rows import Row
from e2e.bench.sdk import SdkCalls
from e2e.cluster.layout import default_layout
from e2e.harness.nodes import NodeSpec, finished
from e2e.harness.processes import Command
from e2e.harness.waiting import HarnessError, eventually

JAVA_SDK: Final = "java-sdk"
TOPIC: Final = "bench-sdk"
QUEUES: Final = 8
WARM_UP_S: Final = 30.0
"""Of sends, when a group starts; each kind of call has its own beside."""
ASYNC_16: Final = SdkCalls("async", 16, "async sends, 16 under way")
ASYNC_256: Final = SdkCalls("async", 256, "async sends, 256 under way")
SYNC_64: Final = SdkCalls("sync", 64, "sync sends, 64 threads")
SYNC_1: Final = SdkCalls("sync", 1, "sync sends, 1 thread")
PUSH: Final = SdkCalls("push", 16, "push consumer, 16 threads")
SIMPLE: Final = SdkCalls("simple", 8, "simple consumer, receive 32 and ack each, 8 threads")
STEPS: Final = (ASYNC_16, ASYNC_256, SYNC_64, SYNC_1, PUSH, SIMPLE)
NORMAL: Final = "NORMAL"
FIFO: Final = "FIFO"
DELAY: Final = "DELAY"
_SENDING: Final = ("async", "sync")
_SOURCES: Final = Path(__file__).parent / "java_sdk"
_FOUNDED_S: Final = 60.0
_SETTLE_S: Final = 2.0
_TRIES: Final = 60
"""RocketMQ's proxy may take a frozen group's topics for untyped, and refuses all sends until its
brokers have told the name server of them again, and it has asked that."""
_READ_PER_S: Final = 6_000
"""More than a consumer takes on two cores: so many for each second lie before it."""
_FILL: Final = Case(batch=1, window=256)
_FILL_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic that a load program uses.

    Attributes:
        name: Its name.
        type: Of its messages, in the words of RocketMQ.
        groups: Consumer groups that are to get its messages in order: RocketMQ has to be told.
    """

    name: str
    type: str = NORMAL
    groups: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A load program: its main class, and its topics in the order of its arguments."""

    main: str
    topics: Sequence[Topic]


SDK_LOAD: Final = Program(main="SdkLoad", topics=(Topic(name=TOPIC),))


class OursBySdk(Ours):
    """See `System`: our nodes, loaded by the Java SDK."""

    warm_up_s = WARM_UP_S

    def __init__(self, program: Program = SDK_LOAD) -> None:
        super().__init__()
        self._program = program

    def found(self, specs: Sequence[NodeSpec]) -> None:
        """See `System`: make what a send does not make by itself, topics of another type."""
        super().found(specs)
        topics = [topic for topic in self._program.topics if topic.type != NORMAL]

        async def make() -> None:
            async with Client(specs[0].own_address) as client:
                for topic in topics:
                    await client.create_topic(topic.name, topic.type, QUEUES)

        def is_made() -> bool:
            try:
                finished(make())
            except NotLeader:
                return False
            return True

        eventually("our nodes make their topics", is_made, _FOUNDED_S)

    def load(self, specs: Sequence[NodeSpec]) -> Command:
        """See `System`. The client knows all nodes."""
        client = specs[0].directory.parent / "client"
        return load_command(self._program, [spec.endpoint for spec in specs], client)


def load_command(program: Program, endpoints: Sequence[str], home: Path) -> Command:
    """Return a program that loads who listens at *endpoints*; the SDK logs below *home*."""
    classes = class_path(
        default_layout(), "java-sdk-load", _SOURCES, "fetch the Java SDK and compile its load"
    )
    options = ("-Xmx512m", "-XX:+UseG1GC", f"-Duser.home={home}", f"-Drocketmq.log.root={home}")
    topics = [topic.name for topic in program.topics]
    argv = ("java", *options, "-cp", classes, program.main, ";".join(endpoints), *topics)
    return Command(argv, answers=True)


class JavaSdkRows:
    """The rows of one system, turn after turn.

    Args:
        seconds: Length of a row.
        warm_up_s: For how long a load program does each kind of call before it counts, once.
        promise: What an acknowledgement means, as a note.
    """

    def __init__(self, *, seconds: float, warm_up_s: float, promise: str) -> None:
        self._seconds = seconds
        self._warm_up_s = warm_up_s
        self._promise = promise
        self._warm: set[tuple[int, str]] = set()

    def __call__(self, group: ProcessGroup) -> Iterator[Row]:
        """Yield a turn's rows; what the sends leave is what the consumers read."""
        for step in STEPS:
            yield self._row(group, step)

    def _row(self, group: ProcessGroup, step: SdkCalls) -> Row:
        load, case = group.load, Case(batch=1, window=step.window)
        group.wait_whole()
        before_s = self._warm_up_of(load, step.mode)
        if step.mode not in _SENDING:
            _fill(load, step.mode, before_s + _SETTLE_S + self._seconds)
        settle(load, case, step.mode)
        if before_s:
            load.run(case, before_s, mode=step.mode)
        row = costed_row(group, step, self._seconds, kind=JAVA_SDK)
        load.ask("close")
        return replace(row, notes=(self._promise,))

    def _warm_up_of(self, load: Load, mode: str) -> float:
        """Return how long this kind of call has to be made before it counts."""
        who = (load.child.pid, mode)
        if who in self._warm:
            return 0.0
        self._warm.add(who)
        return self._warm_up_s


def costed_row(group: ProcessGroup, calls: SdkCalls, seconds: float, *, kind: str) -> Row:
    """Measure calls of the group's own load program, and what a message of them costs."""
    busy, case, name = Busy(), Case(batch=1, window=calls.window), f"1 KiB, {calls.name}"
    row = measured(group, group.load, case, seconds, kind=kind, name=name, mode=calls.mode)
    figures = dict(row.figures) | cost_figures(row.figures, busy.seconds())
    return replace(row, figures=figures)


def _fill(load: Load, mode: str, seconds: float) -> None:
    """Send until a consumer has enough before it for so long."""
    load.ask(
        "fill", group=mode, messages=round(seconds * _READ_PER_S), size_bytes=_FILL.size_bytes,
        window=_FILL.window, seconds=_FILL_S,
    )  # fmt: skip


def settle(load: Load, case: Case, mode: str) -> None:
    """Load until nothing fails: after a pause, servers and client find each other again.

    Raises:
        HarnessError: They did not.
    """
    for _ in range(_TRIES):
        loaded = load.run(case, _SETTLE_S, mode=mode)
        if loaded.requests and not loaded.failures:
            return
    raise HarnessError(f"{mode} calls of the Java SDK still fail, see {load.child.log}")


def cost_figures(figures: Mapping[str, float], busy: float) -> dict[str, float]:
    """Return the processor time behind a message, and how busy others kept the cores.

    Args:
        figures: Of the row: its rate, its length, and what each process took in that.
        busy: Seconds of all cores meanwhile.
    """
    seconds, client_s = figures["seconds"], figures["client_cpu_s"]
    each = [s for name, s in figures.items() if name.startswith("node") and name.endswith("_cpu_s")]
    messages = figures["per_s"] * seconds
    costs = {"others_cores": max(0.0, busy - sum(each) - client_s) / seconds}
    if messages:
        costs |= {"server_us": sum(each) * 1e6 / messages, "client_us": client_s * 1e6 / messages}
    return costs
