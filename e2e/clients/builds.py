"""Builds the drivers of the clients, once for each version of what they are made of.

What is fetched comes from the languages' own registries and is pinned by digests, in
``package-lock.json``, ``Cargo.lock``, ``jars.sha256`` and ``go.sum``. A driver is cached under the
hash of its folder.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from e2e.bench.java import compile_java, digest_of
from e2e.cluster.golang import go
from e2e.cluster.layout import Layout
from e2e.cluster.shell import run

SOURCES: Final = Path(__file__).parent
_FETCH_S: Final = 600.0
_BUILD_S: Final = 1800.0
_NODE: Final = "Node.js 16.19 or later with npm: `apt-get install nodejs npm`, or nodejs.org"
_RUST: Final = "Rust 1.75 or later with cargo: rustup.rs"
_JAVA: Final = "a JDK 17 and Maven: `apt-get install default-jdk-headless maven`"
TOOLS: Final[Mapping[str, Mapping[str, str]]] = {
    "python": {},
    "node": {"node": _NODE, "npm": _NODE},
    "rust": {"cargo": _RUST},
    "java": {"java": _JAVA, "javac": _JAVA, "mvn": _JAVA},
    "go": {},  # where the machine has none, it comes from PyPI, as for the cluster
}
"""Program by language, and where it comes from."""


class MissingTool(Exception):
    """A program that a language needs is not on this machine; the message says how to get it."""


def missing(language: str, which: Callable[[str], str | None] = shutil.which) -> str:
    """Return what a language lacks on this machine, in words; "" if nothing."""
    absent = {name: source for name, source in TOOLS[language].items() if which(name) is None}
    return f"no {', '.join(absent)}: needs {next(iter(absent.values()))}" if absent else ""


def ensure(layout: Layout, language: str) -> tuple[str, ...]:
    """Build a driver unless it is cached; return its command.

    Raises:
        MissingTool: See there.
        ClusterError: A build failed, or something fetched is not what was pinned.
    """
    if lack := missing(language):
        raise MissingTool(lack)
    if language == "python":
        return (sys.executable, str(SOURCES / "python" / "driver.py"))
    built = folder_of(layout, language)
    if not built.exists():
        partial = built.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(SOURCES / language, partial)
        _BUILDS[language](partial, layout)
        partial.rename(built)
    return _commands(built)[language]


def folder_of(layout: Layout, language: str) -> Path:
    """Return where a driver is with all that it needs, once it is built."""
    source = SOURCES / language
    if language == "python":
        return source
    return layout.cache / f"client-{language}-{digest_of(source)}"


def _commands(built: Path) -> dict[str, tuple[str, ...]]:
    return {
        "node": ("node", str(built / "driver.js")),
        "rust": (str(built / "driver"),),
        "go": (str(built / "driver"),),
        "java": ("java", "-Xmx512m", "-cp", f"{built / 'classes'}:{built / 'lib' / '*'}", "Driver"),
    }


def _build_node(folder: Path, layout: Layout) -> None:
    options = ("--ignore-scripts", "--no-audit", "--no-fund", "--prefix", folder)
    run("npm", "ci", *options, log=layout.cache / "build-client-node.log", timeout_s=_FETCH_S)


def _build_rust(folder: Path, layout: Layout) -> None:
    target = layout.cache / "client-rust-target"  # another version compiles what has changed
    manifest = folder / "Cargo.toml"
    log = layout.cache / "build-client-rust.log"
    run(
        "cargo", "build", "--locked", "--manifest-path", manifest, "--target-dir", target,
        log=log, timeout_s=_BUILD_S,
    )  # fmt: skip
    shutil.copy2(target / "debug" / "driver", folder / "driver")


def _build_java(folder: Path, layout: Layout) -> None:
    compile_java(folder, folder, layout.cache / "build-client-java.log")


def _build_go(folder: Path, layout: Layout) -> None:
    command = ("build", "-trimpath", "-buildvcs=false", "-o", "driver", ".")
    environment = {"CGO_ENABLED": "0", "GOWORK": "off"}
    log = layout.cache / "build-client-go.log"
    run(go(layout), *command, cwd=folder, env=environment, log=log, timeout_s=_BUILD_S)


_BUILDS: Final[Mapping[str, Callable[[Path, Layout], None]]] = {
    "node": _build_node,
    "rust": _build_rust,
    "java": _build_java,
    "go": _build_go,
}
