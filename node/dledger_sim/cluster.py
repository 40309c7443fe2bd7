"""A simulated group: processes on one clock and one network, clients, and who watches them.

Implements `process.World` for the nodes and `clients.Service` for the clients.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from zlib import crc32

from crc32c import crc32c

from dledger.errors import DledgerError, StorageError
from dledger.raft.messages import AppendRequest, Message, VoteRequest
from dledger.raft.quorum import Electorate
from dledger.replica.driver import Driver
from dledger.replica.reports import ReportRequest, ReportResponse
from dledger.rocketmq.half_checks import HalfChecks
from dledger.types import Entry, Membership, NodeId, Role
from dledger_sim.checkers import (
    Commitment,
    ElectionSafety,
    LogTime,
    MembershipHistory,
    OneHistory,
    StuckError,
    ViolationError,
    Votes,
    check_said,
    check_step,
)
from dledger_sim.clients import Answer, Producer, create_topics, is_error, keeper
from dledger_sim.compacted import CompactedTopics
from dledger_sim.consumed import Consumed
from dledger_sim.fates import Fates
from dledger_sim.lived import LivedHours, check_not_ahead
from dledger_sim.loop import MS, Clock, S
from dledger_sim.network import Links, PeerRecords
from dledger_sim.options import Options
from dledger_sim.process import GROUP, START_MS, Process, founding_entry, member, members
from dledger_sim.room import check_has_room, check_not_in_vain
from dledger_sim.streams import Streams

_CLIENT_DELAY_US = 2 * MS
_CALM_JOB_US = 5 * MS
_SLOW_JOB_US = (20 * MS, 1500 * MS)


class Cluster:
    """Everything of one run that is not a fault."""

    def __init__(
        self, seed: int, options: Options, *, tell: Callable[[str], None] | None = None
    ) -> None:
        self.seed = seed
        self.options = options
        self.clock = Clock()
        self.calm = False
        self.steps = 0
        self.trace_hash = 0
        self.last_commit_us = 0
        self._tell = tell
        self._jobs = self.random("jobs")
        self._network = self.random("network")
        self._crashes = self.random("crashes")
        self._mangled = self.random("mangled")
        self._slow_jobs = self.random("slow jobs")
        self._slow_until_us: dict[NodeId, int] = {}
        self.links = Links(self.clock, options, self._network, self.random("reports"))
        self.elections = ElectionSafety()
        self.history = OneHistory()
        self.processes: dict[NodeId, Process] = {}
        self._ever: list[Process] = []
        self.memberships_ever = MembershipHistory()
        self.commitment = Commitment(self._ever, self.memberships_ever)
        self.log_time = LogTime()
        self.lived = LivedHours(options.kept_hours)
        self.compacted = CompactedTopics()
        self.fates = Fates()
        self.streams = Streams(self)
        self.consumed = Consumed()
        self._kept_from = 1
        self.votes = Votes()
        self._found()
        self.producers = [
            Producer(f"client-{n}", self, options, self.random(f"client {n}"))
            for n in range(options.clients)
        ]
        if options.keeps:
            self.producers.append(keeper(self, options, self.random("keeper")))
        self.kept_down: set[NodeId] = set()
        self.replacing: set[NodeId] = set()

    def random(self, what: str) -> Random:
        """Return the random numbers of one concern: others' use of theirs does not change them."""
        return Random(f"{self.seed}/{what}")

    def _found(self) -> None:
        membership = replace(members(self.options.nodes), group_id=GROUP)
        founding = founding_entry(membership)
        self.memberships_ever.appended([founding])
        founders = membership.voters[: self._crashes.choice((1, None))]
        for one in membership.voters:
            rng = self.random(f"node {one.id}")
            first = founding if one in founders else None
            self._add(Process(one, self, rng, founding=first))
        self._made = len(self.processes)

    def begin(self) -> None:
        """Start all nodes; one campaigns, as after Bootstrap. Then the clients start."""
        for process in self.processes.values():
            self.start(process)
        first = next(iter(self.processes.values()))
        first.loop.run(first.driver.campaign)
        self._make_topic()

    def _make_topic(self) -> None:
        """Make the topics, asking again and again; the producers wait for them."""
        commands = create_topics(self.options)
        done: set[int] = set()

        def answered(number: int, answer: Answer) -> None:
            if not is_error(answer) and number not in done:
                done.add(number)
                if len(done) == len(commands):
                    for producer in self.producers:
                        producer.start()

        def ask() -> None:
            if len(done) < len(commands):
                number = len(done)
                node = self._crashes.choice(self.nodes())
                self.ask(node, commands[number], partial(answered, number))
                self.clock.after(100 * MS, ask)

        ask()

    # Nodes

    def add_node(self, name: str | None = None) -> Process:
        """Start a node with an empty disk that knows its group; a wiped one keeps its *name*."""
        self._made += 1
        fresh = member(str(self._made))
        one = replace(fresh, name=name or fresh.name)
        process = Process(one, self, self.random(f"node {one.id}"), founding=None)
        self._add(process)
        self.start(process)
        return process

    def _add(self, process: Process) -> None:
        self.processes[process.id] = process
        self._ever.append(process)

    def discard(self, process: Process) -> None:
        """Take a node away for good, with its disk."""
        self.crash(process)
        process.retired = True
        del self.processes[process.id]

    def memberships(self) -> list[Membership]:
        """Return the memberships that may decide: the newest committed one, and what is behind.

        What only a node has that is no member does not count: nobody will make it known there that
        its log was overruled.
        """
        since, committed = self.commitment.membership
        members = [self.processes.get(one.id) for one in committed.members]
        newer = (one.membership() for one in members if one is not None and not one.retired)
        newest = dict(sorted((pair for pair in newer if pair[0] > since), key=lambda p: p[0]))
        return [committed, *newest.values()]

    def is_quorum(self, processes: Collection[Process], *, promoted: bool = False) -> bool:
        """Whether these nodes are enough by every membership that may decide.

        Args:
            processes: The nodes.
            promoted: Also if all other learners become voters before these do: each does once it
                has caught up, and one that was heard a moment ago may be gone.
        """
        names = {one.id for one in processes}
        return all(
            Electorate(
                one.voter_ids | (one.learner_ids - names if promoted else frozenset()),
                one.outgoing_ids,
            ).is_quorum(names)
            for one in self.memberships()
        )

    def lost_entry(self) -> int | None:
        """Return a committed entry that a member needs, and of which no member has a whole copy.

        What is left on the disks of those who were removed is asked of nobody: the group rightly
        stands still.
        """
        last = self.commitment.last_index
        needed = (index for one in self.known_members() for r in one.log.faulty for index in r)
        return next((each for each in needed if each <= last and self._is_lost(each)), None)

    def _is_lost(self, index: int) -> bool:
        there = (one for one in self.known_members() if not one.retired)
        return not any(self.commitment.is_here(one, index) for one in there)

    def stranded(self) -> NodeId | None:
        """Return a member whose own log knows itself, and none of the others that are left.

        Nobody can introduce its leader to it (adr 21): it waits for ever, whole or not. One that
        joins hears the leader all the same.
        """
        members = {one.id: one for one in self.known_members() if not one.retired}
        for node, one in members.items():
            known = {each.id for each in one.membership()[1].members}
            if one.is_up and one.driver.core.is_joining:
                continue
            if known and len(members) > 1 and not known & (members.keys() - {node}):
                return node
        return None

    def is_settled(self) -> bool:
        """Whether one membership decides, and no change of it is under way."""
        now, *newer = self.memberships()
        return not newer and not now.is_joint

    def known_members(self) -> list[Process]:
        """Return the nodes of all memberships that may decide."""
        ids = {member.id for one in self.memberships() for member in one.members}
        return [one for one in self.processes.values() if one.id in ids]

    def members(self) -> list[Process]:
        """Return the nodes of the membership that the leader goes by; learners included."""
        ids = [one.id for one in self._newest_membership().members]
        return [self.processes[one] for one in ids if one in self.processes]

    def learner_ids(self) -> frozenset[NodeId]:
        """Return who is only a learner, by the membership that the leader goes by."""
        return frozenset(self._newest_membership().learner_ids)

    def _newest_membership(self) -> Membership:
        leader = max(self.serving(), key=lambda one: one.driver.core.term, default=None)
        return self.commitment.membership[1] if leader is None else leader.membership()[1]

    def serving(self) -> list[Process]:
        """Return the nodes that lead, or believe so, and answer clients."""
        everyone = self.processes.values()
        return [one for one in everyone if one.is_up and one.driver.is_serving_leader()]

    def up(self) -> list[Process]:
        """Return the nodes whose process runs."""
        return [one for one in self.processes.values() if one.is_up]

    def leaders(self) -> list[Process]:
        """Return the nodes that lead, or believe so."""
        return [one for one in self.up() if one.driver.core.role is Role.LEADER]

    def start(self, process: Process) -> None:
        """Start a node that is down."""
        if not process.is_up and not process.retired:
            self.note(f"{process.id} starts")
            try:
                process.start()
            except StorageError as error:
                self._refused_start(process, error)

    def _refused_start(self, process: Process, error: StorageError) -> None:
        """Try again later, while disks fail; a disk that works must let its node start."""
        self.note(f"{process.id} cannot start: {error}")
        check_has_room(process, error)
        if self.calm or not self.options.eio_s:
            raise error
        process.files.kill()
        self.restart_later(process)

    def revive(self, process: Process) -> None:
        """Let a node run on, or again, on a disk that works."""
        process.files.heal()
        process.files.empty()
        self.start(process)
        process.loop.resume()

    def calm_down(self) -> None:
        """End all faults but those of nodes that are down or whose disks fail: see `revive`."""
        self.calm = self.links.calm = True
        self.links.heal()

    def revive_all(self) -> None:
        """Let all nodes run, on disks that work."""
        for process in list(self.processes.values()):
            self.revive(process)

    def is_whole(self) -> bool:
        """Whether all members are up and have all that was committed, whole, and one leads."""
        last, leaders = self.commitment.last_index, self.leaders()
        return (
            not self.replacing
            and all(
                one.is_up and one.log.is_whole and one.driver.applied_index == last
                for one in self.members()
            )
            and len(leaders) == 1
            and leaders[0].driver.core.last_index == last
        )

    def within(self, seconds: int, reached: Callable[[], bool], what: str) -> None:
        """Let time pass until *reached*. Raises StuckError: it is not, within these seconds."""
        end_us = self.clock.now_us + seconds * S
        if not (reached() or self.clock.run_until(end_us, reached)):
            raise StuckError(f"{what} within {seconds} s")

    def crash(self, process: Process, *, kill: bool = False) -> None:
        """Cut a node's power, or kill its process only."""
        if not process.is_up:
            return
        self.note(f"{process.id} {'is killed' if kill else 'loses power'}")
        (process.kill if kill else process.crash)()
        for other in self.up():
            if self._crashes.random() < 0.8:
                delay_us = self._crashes.randint(0, 100 * MS)
                self.hint_after(delay_us, other, process.id)

    def hint_after(self, delay_us: int, process: Process, peer: NodeId) -> None:
        """Tell a node after a delay that its connection with a peer broke."""
        loop = process.loop
        hint = process.driver.peer_disconnected
        self.clock.after(delay_us, lambda: loop.run(hint, peer))

    def slow_down(self, process: Process, duration_us: int) -> None:
        """Let each job that a node's disk begins within this time take long."""
        self.note(f"{process.id} has a slow disk for {duration_us} us")
        self._slow_until_us[process.id] = self.clock.now_us + duration_us

    def has_slow_disk(self) -> bool:
        """Whether a disk is slow at the moment."""
        return any(self.clock.now_us < until_us for until_us in self._slow_until_us.values())

    # What processes ask

    def send(self, message: Message) -> None:
        """Carry a message, or lose it."""
        check_said(self.processes.get(message.sender), message)
        if isinstance(message, VoteRequest):
            self.votes.asked(message)
        if isinstance(message, AppendRequest):
            self.memberships_ever.appended(e for e in message.entries if e.term == message.term)
        life = self._life(message.sender)
        is_report = isinstance(message, ReportRequest | ReportResponse)
        draw = self.links.report_delays_us if is_report else self.links.delays_us
        for delay_us in draw(message.sender, message.recipient):
            self.clock.after(delay_us, lambda: self._deliver(message, life))

    def _life(self, sender: NodeId) -> int:
        process = self.processes.get(sender)
        return 0 if process is None else process.lives

    def _deliver(self, message: Message, life: int) -> None:
        """Hand a message over, if the recipient is up.

        Where a node comes back with less than it had, nothing of its earlier life may still be on
        the way: the connection that carried it ended with it.
        """
        process = self.processes.get(message.recipient)
        if process is None or not process.is_up:
            return
        if self.options.waits_for_one and life != self._life(message.sender):
            return
        if self.links.reaches(message.sender, message.recipient):
            self.note(_sentence(message))
            message = self._arrived(message)
            self._introduce(process, message.sender)
            process.loop.run(process.driver.receive, message)

    def _arrived(self, message: Message) -> Message:
        """Return a message, or one with an entry that a bad memory changed on its way."""
        part = 0.0 if self.calm else self.options.mangle
        if not part or not isinstance(message, AppendRequest) or self._mangled.random() >= part:
            return message
        entries = list(message.entries)
        whole = [at for at, entry in enumerate(entries) if entry.data]
        if whole:
            at = self._mangled.choice(whole)
            data = bytes([entries[at].data[0] ^ 1]) + entries[at].data[1:]
            entries[at] = replace(entries[at], data=data, crc32c=crc32c(data))
        return replace(message, entries=tuple(entries))

    def _introduce(self, process: Process, sender: NodeId) -> None:
        """Handle a node that the recipient does not know as a handshake does (`peers.peers`).

        The recipient asks the members that it hears itself.
        """
        core = process.driver.core
        if core.memberships.hears(sender, core.commit_index):
            return
        for other in self.up():
            asked = core.was_member(other.id) and self.links.talks(process.id, other.id)
            if asked and other.driver.core.membership.get(sender) is not None:
                core.introduce(sender)

    def job_us(self, process: Process) -> tuple[int, int]:
        """Draw how long a job takes, and when within that time it runs."""
        rng, options = self._jobs, self.options
        total_us = rng.randint(100, options.sync_ms * MS)
        if self.calm:
            total_us = min(total_us, _CALM_JOB_US)
        elif options.stall and rng.random() < options.stall:
            total_us = rng.randint(0, 2 * S)
        if not self.calm and self.clock.now_us < self._slow_until_us.get(process.id, 0):
            total_us = self._slow_jobs.randint(*_SLOW_JOB_US)
        if not self.calm and options.crash_writing and rng.random() < options.crash_writing:
            self.crash_after(rng.randint(1, total_us), process)
        return total_us, rng.randint(0, total_us)

    def crash_after(self, delay_us: int, process: Process, *, kill: bool = False) -> None:
        """Crash a node after a delay, unless it ends before; it restarts some time later."""
        life = process.lives

        def crash() -> None:
            if process.lives == life and process.is_up and not self.calm:
                self.crash(process, kill=kill)
                self.restart_later(process)

        self.clock.after(delay_us, crash)

    def restart_later(self, process: Process) -> None:
        """Start a node that is down after a while."""
        down_us = self._crashes.randint(1, self._crashes.choice((10 * MS, 500 * MS, 3 * S)))
        self.restart_after(down_us, process)

    def restart_after(self, down_us: int, process: Process) -> None:
        """Start a node that is down, unless it is to stay so."""
        self.clock.after(down_us, lambda: self._restart(process))

    def _restart(self, process: Process) -> None:
        if process.id not in self.kept_down:
            self.start(process)

    def records(self, process: Process) -> PeerRecords:
        """Return where a node can ask for entries that its disk has lost."""
        return PeerRecords(process, self.processes, self.links, self.clock)

    def half_checks(self, process: Process) -> HalfChecks:
        """Return what asks producers about transactions while a process leads."""
        return self.streams.checks(process)

    def opened(self, process: Process) -> None:
        """Check what a starting process finds on its disk."""
        self.history.opened(process)

    def wrote(self, process: Process, entries: Sequence[Entry]) -> None:
        """Check what is written to a log."""
        self.history.wrote(process, entries)
        self.commitment.wrote(entries)

    def applied(self, process: Process, entry: Entry, results: Sequence[object]) -> None:
        """Check what is applied."""
        self.note(f"{process.id} applies {entry.index} of term {entry.term}")
        self.commitment.applied(process, entry, results)
        self.log_time.applied(entry, self.clock.now_us // 1000)
        if self.options.rounds:
            self.compacted.apply(process, entry, results)
        if self.options.timed or self.options.halves:
            self.fates.apply(entry, results, START_MS + self.clock.now_us // MS)
        if self.options.typed:
            self.consumed.apply(entry, results, process.state.broker.time.lived_ms)
        self._went(process, entry)

    def _went(self, process: Process, entry: Entry) -> None:
        """Check what time an entry has, and what it lets go of."""
        if self.options.has_right_clocks:
            check_not_ahead(entry, self.clock.now_us)
        first_index = process.state.broker.first_index
        self.lived.applied(entry, first_index)
        if first_index > self._kept_from:
            self._kept_from = first_index
            self.note(f"messages in entries below {first_index} go")
            if self.options.neighbour_s:
                check_not_in_vain([one.files for one in self.known_members()])

    def lacks_room(self) -> bool:
        """Whether others' files are on somebody's disk."""
        return any(one.files.has_neighbours for one in self.processes.values())

    def stepped(self, process: Process) -> None:
        """Check a process that has just done something."""
        if not process.is_up:
            return
        self.steps += 1
        counted = process.membership_seen
        process.membership_seen = process.driver.core.membership
        before = check_step(process)
        now = process.seen
        if now.role is Role.LEADER:
            self.lived.led(self.clock.now_us)
        self.votes.check(process, before)
        if now.commit_index > before.commit_index:
            self.commitment.committed(process, before, counted)
        if now.term > before.term:
            self._may_crash(process, self.options.crash_voting)
        if now.role is Role.LEADER and self.elections.elected(process.id, now.term):
            self.note(f"{process.id} leads term {now.term}")
            self.commitment.elected(process, now.term)
            self._may_crash(process, self.options.crash_leader)
        if now.applied_index > before.applied_index:
            self._advanced(process, before.applied_index, now.applied_index)
        self.memberships_ever.check(process)

    def _may_crash(self, process: Process, part: float) -> None:
        if part and self._crashes.random() < part:
            self.crash_after(self._crashes.randint(1, 200 * MS), process)

    def _advanced(self, process: Process, before: int, after: int) -> None:
        if after > self.commitment.last_index:
            self.last_commit_us = self.clock.now_us
        self.commitment.advanced(process, before, after, term=process.seen.term)

    def refused(self, process: Process, reason: str) -> None:
        """Check that a node finds no fault in what a member says, where there is none."""
        self.note(f"{process.id} refuses a message: {reason}")
        if not (self.options.mangle or self.options.damages):
            raise ViolationError(f"{process.id} refuses a message of a member: {reason}")

    def died(self, process: Process, error: BaseException) -> None:
        """Restart a process that ended itself, as whoever supervises it does."""
        self.note(f"{process.id} ends: {error}")
        check_has_room(process, error)
        self.crash(process, kill=True)
        self.restart_later(process)

    # What clients ask

    def nodes(self) -> Sequence[NodeId]:
        """Return who may be asked."""
        return [one.id for one in self.processes.values() if not one.retired]

    def ask(self, node: NodeId, command: bytes, answer: Callable[[Answer], None]) -> None:
        """Send a command to a node, and its answer back; either may be lost."""
        self.call(node, lambda driver: driver.propose(command, grows=True), answer)

    def call(
        self,
        node: NodeId,
        work: Callable[[Driver], Awaitable[object]],
        answer: Callable[[Answer], None],
    ) -> None:
        """Have a node's driver do something for a client, and send back what came of it."""
        self.have(node, lambda process: work(process.driver), answer)

    def have(
        self,
        node: NodeId,
        work: Callable[[Process], Awaitable[object]],
        answer: Callable[[Answer], None],
    ) -> None:
        """Have a node do something for a client, and send back what came of it."""
        for delay_us in self._client_delays_us():
            self.clock.after(delay_us, lambda: self._serve(node, work, answer))

    def _client_delays_us(self) -> list[int]:
        options, rng = self.options, self._network
        if self.calm:
            return [rng.randint(MS // 10, _CLIENT_DELAY_US)]
        if options.loss and rng.random() < options.loss:
            return []
        copies = 2 if options.duplicate and rng.random() < options.duplicate else 1
        return [rng.randint(MS // 10, options.delay_ms * MS) for _ in range(copies)]

    def _serve(
        self,
        node: NodeId,
        work: Callable[[Process], Awaitable[object]],
        answer: Callable[[Answer], None],
    ) -> None:
        process = self.processes.get(node)
        if process is None or not process.is_up:
            return
        loop = process.loop

        async def serve() -> None:
            try:
                got: Answer = await work(process)
            except DledgerError as error:
                got = error
            for delay_us in self._client_delays_us():
                self.clock.after(delay_us, lambda: answer(got))

        loop.run(lambda: loop.create_task(serve()))

    # Telling

    def note(self, line: str) -> None:
        """Make a line part of what the run is compared by, and tell it."""
        line = f"{self.clock.now_us} {line}"
        self.trace_hash = crc32(line.encode(), self.trace_hash)
        if self._tell is not None:
            self._tell(line)


def _sentence(message: Message) -> str:
    text = f"{message.sender}>{message.recipient} {type(message).__name__} term {message.term}"
    if isinstance(message, AppendRequest):
        text += f" {len(message.entries)} behind {message.previous_index}"
    return text
