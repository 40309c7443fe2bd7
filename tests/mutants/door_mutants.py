"""Bugs in the clients' server: its bounds, and what is served there without a coroutine."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_CALLBACKS = "tests/rocketmq/test_callbacks.py"
_RULES = "tests/calls/test_rules.py"
_BOUNDS = "tests/door/test_bounds_of_a_port.py"
_CALLS = "tests/door/test_grpc_calls.py"
_ORDER = "tests/door_process/test_order.py"
_LOST = "tests/door_process/test_lost_link.py"
_FRAMES = "tests/door_process/test_strangers_frames.py"
_DOORS = "tests/system/test_door_processes.py"
_TOGETHER = "tests/contract/test_calls_together.py"
_PROTOCOL = "tests/rocketmq/test_rocketmq_protocol.py"
_SHARE = "tests/common/test_shares.py"
_SHARES = "tests/door/test_shares_of_a_port.py"
_TLS_BYTES = "tests/door/test_tls_bytes.py"
_TLS_PORT = "tests/door/test_tls_port.py"
_TLS_TRANSPORT = "tests/door/test_tls_transport.py"

_RESTS = "tests/door/test_rests.py"
_DEADLINES = "tests/door/test_deadlines.py"

DOOR_MUTANTS = (
    Mutant(
        name="what waits for a client is forgotten with its call",
        file="door/task_calls.py",
        old="        if rest is not None:\n            self._drop(rest)\n",
        new="",
        why="its place among the polls of a node is never given back",
        checks=(_RESTS,),
    ),
    Mutant(
        name="what is to go on has left its place before it does",
        file="door/task_calls.py",
        old="        if self._rest is not None and self._task is None:\n"
        "            self._run(self._serve_on)\n",
        new="        rest, self._rest = self._rest, None\n"
        "        if rest is not None:\n"
        "            self._run(rest.serve)\n",
        why="a client that goes away just then leaves its place behind",
        checks=(_RESTS,),
    ),
    Mutant(
        name="a timer stays when the last call of its moment has ended",
        file="door/deadlines.py",
        old="            moment.timer.cancel()\n            del self._moments[moment.number]\n",
        new="            pass\n",
        why="calls with a timeout of hours leave a timer each",
        checks=(_DEADLINES,),
    ),
    Mutant(
        name="what waits gives no share of a rule back when its client goes",
        file="calls/pipeline.py",
        old="            self._rest.drop()\n        if self._asked is not None:\n"
        "            self._asked.leave()\n",
        new="            self._rest.drop()\n",
        why="a limit of polls is used up by consumers that are gone",
        checks=("tests/calls/test_pipeline.py",),
    ),
    Mutant(
        name="a request that ends keeps its room",
        file="calls/pipeline.py",
        old="        self.admission.leave(room)\n        if submitted.cancelled():",
        new="        if submitted.cancelled():",
        why="after 32 MiB of messages the node takes none any more",
        checks=(_CALLBACKS,),
    ),
    Mutant(
        name="a repeated message gets the offset of whatever has its id",
        file="rocketmq/sending.py",
        old="    if stored.repeats or stored.conflicts:\n        return None\n",
        new="",
        why="a message whose id somebody took is acknowledged and not stored",
        checks=(_CALLBACKS,),
    ),
    Mutant(
        name="an unknown outcome is told at once",
        file="calls/pipeline.py",
        old="            work.resume(error)\n",
        new="            work.refuse(error)\n",
        why="a client sees each failover",
        checks=(_CALLBACKS,),
    ),
    Mutant(
        name="a client that gives up is served on",
        file="calls/pipeline.py",
        old="                return submitted.cancel\n",
        new="                return None\n",
        why="what nobody waits for holds room until it is committed",
        checks=(_CALLBACKS,),
    ),
    Mutant(
        name="a message is judged when it has arrived",
        file="door/grpc_format.py",
        old="        if size > self._max:",
        new="        if size > self._max and len(data) - start >= size:",
        why="a client makes a node hold as much as it likes",
        checks=(_CALLS, _BOUNDS),
    ),
    Mutant(
        name="a stopping server forgets the calls without a task",
        file="calls/call.py",
        old="        self.give_up()\n        if self.asked",
        new="        if self.asked",
        why="what is under way when a node stops holds its room, and is answered to nobody",
        checks=(_CALLBACKS,),
    ),
    Mutant(
        name="a door's batches go past the rules",
        file="calls/pipeline.py",
        old="        elif not self._rules or self._admit(work):\n",
        new="        else:\n",
        why="a limit that a busy client does not feel, since its calls are joined",
        checks=(_RULES,),
    ),
    Mutant(
        name="a call whose batch went back is counted again",
        file="server/door_batches.py",
        old="                outcome = Resumes.ASKED\n",
        new="                pass\n",
        why="at each failover a client has used up twice what it sent",
        checks=(_RULES,),
    ),
    Mutant(
        name="a share is kept by a call that was given up",
        file="calls/call.py",
        old="            self.asked.leave()\n\n    async",
        new="            pass\n\n    async",
        why="a client that gives up often enough is never served again",
        checks=(_RULES,),
    ),
    Mutant(
        name="a follower is told as a client is",
        file="calls/pipeline.py",
        old="seen = caller.forwarded and isinstance(error, (Unavailable, DiskFull, RateLimited))",
        new="seen = False",
        why="a follower does not try again, and each failover is seen through it",
        checks=("tests/calls/test_pipeline.py",),
    ),
    Mutant(
        name="a batch behind a refused one is taken",
        file="door_process/node_end.py",
        old="                self._resuming.add(connection)\n",
        new="                pass\n",
        why="a message overtakes one of its connection that is passed on",
        checks=(_ORDER,),
    ),
    Mutant(
        name="a node believes the command of a door",
        file="server/door_batches.py",
        old="        produce.check_texts()\n",
        new="        produce.check_texts()\n        return produce\n",
        why="one client's messages are stored in the name of another",
        checks=(_FRAMES,),
    ),
    Mutant(
        name="the batches of a lost door keep their room",
        file="door_process/node_end.py",
        old="        for cancel in under_way.values():\n            cancel()\n",
        new="        under_way.clear()\n",
        why="what nobody waits for holds room until it is committed, if ever",
        checks=(_LOST,),
    ),
    Mutant(
        name="the handlers of a lost door run on",
        file="link/calls_in.py",
        old="        for call in tuple(self._calls.values()):\n"
        "            self._over(call)\n            call.drop()\n",
        new="        self._calls.clear()\n",
        why="polls of clients that are gone wait on, and take messages",
        checks=(_LOST,),
    ),
    Mutant(
        name="a door that hangs is asked for ever",
        file="door_process/supervisor.py",
        old="            if self._pings - self._answered >= LOOKS:\n",
        new="            if self._pings - self._answered >= 1 << 30:\n",
        why="its clients wait, and new ones are lost to it",
        checks=(_DOORS,),
    ),
    Mutant(
        name="an answer's room is given back before it is taken",
        file="link/calls_in.py",
        old="        return self.link.full or call.queued - call.taken"
        " > self._bounds.unsent_stream_bytes\n",
        new="        return self.link.full\n",
        why="a client that does not read makes its door hold all of its answers",
        checks=("tests/door_process/test_flow.py",),
    ),
    Mutant(
        name="gRPC's server keeps a deadline to itself",
        file="calls/grpc_server.py",
        old="    remaining_s = context.time_remaining()\n",
        new="    remaining_s = None\n",
        why="a client that waits for less than ten seconds is told nothing",
        checks=(_TOGETHER,),
    ),
    Mutant(
        name="gRPC's server drops the trailers",
        file="calls/grpc_server.py",
        old="trailing_metadata=trailers",
        new="trailing_metadata=()",
        why="a client cannot tell one error from another",
        checks=(_TOGETHER,),
    ),
    Mutant(
        name="gRPC's server takes no answer for received",
        file="calls/grpc_server.py",
        old="            stream.is_written = True\n",
        new="",
        why="a push consumer loses each message after its first lease",
        checks=(_PROTOCOL,),
    ),
    Mutant(
        name="a deadline does not cross a link",
        file="link/calls_in.py",
        old="deadline_s=self._deadline_s(opening.deadline_s)",
        new="deadline_s=None",
        why="behind a door, a client that waits for less than ten seconds is told nothing",
        checks=(_TOGETHER,),
    ),
    Mutant(
        name="who has least makes room",
        file="common/shares.py",
        old="self._classes[max(self._classes)]",
        new="self._classes[min(self._classes)]",
        why="a stranger who fills a bound ends everybody else's",
        checks=(_SHARE,),
    ),
    Mutant(
        name="calls that are not whole are counted nowhere",
        file="door/calls.py",
        old="        if call.is_unfinished:\n",
        new="        if call.is_unfinished and call.is_stream:\n",
        why="one address holds all calls of a port, for 15 bytes each",
        checks=(_SHARES,),
    ),
    Mutant(
        name="a call keeps all of its headers",
        file="door/opening.py",
        old="            fields = kept_of(pairs)\n",
        new="            fields = dict(pairs)\n",
        why="4 MB on the wire are 600 MiB of a node",
        checks=(_SHARES,),
    ),
    Mutant(
        name="a call that waits keeps all of its headers",
        file="door/calls.py",
        old="                call.headers.shed()\n",
        new="",
        why="a poll takes half as much again, and so does what never becomes whole",
        checks=(_SHARES,),
    ),
    Mutant(
        name="refused calls have no rate",
        file="door/calls.py",
        old="            if not self._address.may_be_refused(now_s):\n",
        new="            if not self._address.may_be_refused(now_s) and stream_id < 0:\n",
        why="a stranger has a node refuse for him as fast as it can",
        checks=(_SHARES,),
    ),
    Mutant(
        name="a turn to greet goes to one who waits no more",
        file="door/places.py",
        old="            turn.cancel()\n",
        new="            pass\n",
        why="a crowd of 1,000 TLS clients stands still, a second for each 32 of it",
        checks=(_SHARES,),
    ),
    Mutant(
        name="a handshake ends the one before it",
        file="door/places.py",
        old=" or wait_s <= 0:",
        new=" or wait_s <= PROMPT_S:",
        why="a crowd behind one address never comes back after a failover",
        checks=(_SHARES,),
    ),
    Mutant(
        name="a door's batch leaves its headers behind",
        file="door_process/joiner.py",
        old="min(ends, default=None), headers.pairs)",
        new="min(ends, default=None), ())",
        why="a rule counts the calls of doors for nobody",
        checks=("tests/calls/test_rules.py",),
    ),
    Mutant(
        name="a lost connection is known by its own calls",
        file="door/connection.py",
        old="        del self._calls, self._proofs\n",
        new="",
        why="what each connection took stays until a round of the collector that may never come",
        checks=(_TLS_TRANSPORT,),
    ),
    Mutant(
        name="TLS is fed whatever a socket had",
        file="door/tls_transport.py",
        old="            if len(data) <= SLICE_BYTES:\n                carried",
        new="            if data:\n                carried",
        why="memory buffers never shrink: a client that once sent much holds 256 KiB for good",
        checks=(_TLS_TRANSPORT,),
    ),
    Mutant(
        name="a client changes its keys as often as it likes",
        file="door/tls_transport.py",
        old="        if self._barren > BARREN_BYTES:\n",
        new="        if self._barren > 1 << 30:\n",
        why="27 bytes cost the node 10 us, and HTTP/2 cannot see them",
        checks=(_TLS_BYTES, _TLS_PORT),
    ),
    Mutant(
        name="a close says nothing over TLS",
        file="door/tls_transport.py",
        old="            self._close(self._tls.end())\n",
        new='            self._close(b"")\n',
        why="a client cannot tell an end from a cut",
        checks=(_TLS_PORT,),
    ),
    Mutant(
        name="who does not read the end of TLS is waited for",
        file="door/tls_transport.py",
        old="        self._timer = self._loop.call_later(_LINGER_S, self._socket.abort)\n",
        new="",
        why="a socket, and what was written to it, for as long as a client likes",
        checks=(_TLS_TRANSPORT,),
    ),
    Mutant(
        name="a port that stops forgets who is shaking hands",
        file="door/server.py",
        old="        for handshake in tuple(self._handshakes):\n            handshake.abort()\n",
        new="",
        why="a stopped port is still open to them",
        checks=(_TLS_PORT,),
    ),
)
