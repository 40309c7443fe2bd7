"""Java DLedger from Maven Central, started and loaded by the sources in ``java/``.

It acknowledges from the page cache: its commit log is mapped memory that a thread flushes now and
then. Jars are fetched by Maven and compared with ``java/jars.sha256`` before anything runs them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from e2e.bench.process_group import NodeState
from e2e.cluster import packages
from e2e.cluster.layout import Layout, default_layout
from e2e.cluster.shell import run
from e2e.cluster.steps import Steps
from e2e.harness.nodes import Link, NodeSpec
from e2e.harness.processes import Command
from e2e.harness.waiting import HarnessError

NAME: Final = "java-dledger"
DEFAULT_HEARTBEAT_MS: Final = 2000
_SOURCES: Final = Path(__file__).parent / "java"
_PACKAGES: Final = {"maven": "/usr/bin/mvn", "default-jdk-headless": "/usr/bin/javac"}
_COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_FETCH_S: Final = 600.0
_JVM: Final = ("-Xms512m", "-Xmx1g", "-XX:+UseG1GC")


class JavaDLedger:
    """See `System`.

    Args:
        heartbeat_ms: Its own default is 2 s; three missed ones start an election.
        batch_push: Whether its leader sends followers several entries at once; off by default.
    """

    warm_up_s = 30.0
    link = Link.BY_PORT

    def __init__(
        self, *, heartbeat_ms: int = DEFAULT_HEARTBEAT_MS, batch_push: bool = False
    ) -> None:
        self._heartbeat_ms = heartbeat_ms
        self._batch_push = batch_push
        self._class_path = ensure_built(default_layout())

    @property
    def name(self) -> str:
        """See `System`: settings that are not its defaults are part of the name."""
        changed = [f"heartbeat {self._heartbeat_ms} ms"] * (
            self._heartbeat_ms != DEFAULT_HEARTBEAT_MS
        ) + ["batch push"] * self._batch_push
        return NAME + (f" ({', '.join(changed)})" if changed else "")

    def node(self, spec: NodeSpec, specs: Sequence[NodeSpec]) -> Command:
        """See `System`."""
        (spec.directory / "role.json").unlink(missing_ok=True)
        known = (e.own_address if e == spec else e.link_address for e in specs)
        peers = ";".join(f"{e.name}-{at}" for e, at in zip(specs, known, strict=True))
        push = str(self._batch_push).lower()
        arguments = (spec.name, peers, str(spec.directory), str(self._heartbeat_ms), push)
        return self._java("Server", *arguments)

    def load(self, specs: Sequence[NodeSpec]) -> Command:
        """See `System`. Its clients come through the peers' port, which no cut link leads to."""
        return self._java("Client", ";".join(f"{e.name}-{e.own_address}" for e in specs))

    def _java(self, main: str, *arguments: str) -> Command:
        argv = ("java", *_JVM, "-cp", self._class_path, main, "bench", *arguments)
        return Command(argv, answers=True)

    def found(self, specs: Sequence[NodeSpec]) -> None:
        """See `System`. The nodes' arguments found the group."""

    def state(self, spec: NodeSpec) -> NodeState | None:
        """See `System`: the server notes its role in a file."""
        try:
            told = json.loads((spec.directory / "role.json").read_text("utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        leads = told["role"] == "LEADER"
        return NodeState(
            leads=leads, term=told["term"], is_ready=leads or told["role"] == "FOLLOWER"
        )


def ensure_built(layout: Layout) -> str:
    """Return the class path of Java DLedger and its load programs; see `class_path`."""
    return class_path(layout, "java-peer", _SOURCES, "fetch Java DLedger and compile its programs")


def class_path(layout: Layout, name: str, sources: Path, what: str) -> str:
    """Fetch the jars of a folder of sources and compile what it has, unless both are cached.

    Args:
        layout: Where the cache is.
        name: In the cache; a digest of *sources* follows it.
        sources: ``pom.xml``, ``jars.sha256``, and programs unless it is only for its jars.
        what: The step, in words.

    Raises:
        HarnessError: A jar is not the one that was pinned.
    """
    built = layout.cache / f"{name}-{digest_of(sources)}"
    if not built.exists():
        steps = Steps()
        packages.ensure(layout, _PACKAGES, steps)
        with steps.step(what):
            _build(built, sources)
    return f"{built / 'classes'}:{built / 'lib' / '*'}"


def digest_of(folder: Path) -> str:
    """Return 12 hex digits that change when a file of the folder does."""
    digest = hashlib.sha256()
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _build(built: Path, sources: Path) -> None:
    partial = built.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    if any(sources.glob("*.java")):
        compile_java(sources, partial)
    else:
        fetch_jars(sources, partial / "lib")
    partial.rename(built)


def compile_java(sources: Path, folder: Path, log: Path | None = None) -> None:
    """Fetch the jars of a folder of sources, check them, and compile it into ``classes``.

    Raises:
        HarnessError: A jar is not the one that was pinned.
        CommandFailed: Maven or the compiler failed.
    """
    lib, classes = folder / "lib", folder / "classes"
    fetch_jars(sources, lib, log)
    classes.mkdir()
    files = sorted(sources.glob("*.java"))
    run("javac", "-d", classes, "-cp", f"{lib}/*", *files, log=log, timeout_s=_FETCH_S)


def fetch_jars(sources: Path, lib: Path, log: Path | None = None) -> None:
    """Fetch what a folder's ``pom.xml`` names into *lib*, and check it by its ``jars.sha256``.

    Raises:
        HarnessError: A jar is not the one that was pinned.
        CommandFailed: Maven failed.
    """
    fetch = ("mvn", "-B", "-q", "-f", sources / "pom.xml", _COPY, f"-DoutputDirectory={lib}")
    run(*fetch, "-DincludeScope=runtime", log=log, timeout_s=_FETCH_S)
    check_jars(lib, (sources / "jars.sha256").read_text("ascii"))


def check_jars(lib: Path, pinned: str) -> None:
    """Compare what was fetched with the pinned digests, one ``digest  name`` a line.

    Raises:
        HarnessError: One is missing, differs, or is not pinned.
    """
    wanted = {name: digest for digest, name in (line.split() for line in pinned.splitlines())}
    found = {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in lib.glob("*.jar")}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise HarnessError(
                f"{name}: SHA-256 {found.get(name)}, but jars.sha256 has {wanted.get(name)}"
            )
