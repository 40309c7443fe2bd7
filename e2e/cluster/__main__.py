"""``python -m e2e.cluster``: start and stop the cluster that the stories run on."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from e2e.cluster import doctor, golang
from e2e.cluster.choose import KINDS, open_cluster
from e2e.cluster.errors import FAILED, exit_code
from e2e.cluster.interface import Cluster
from e2e.cluster.layout import default_layout
from e2e.cluster.steps import Steps
from e2e.cluster.tools import find_kubectl

INTERRUPTED = 130

EPILOG = """\
examples:
  python -m e2e.cluster doctor                 what this machine lacks
  python -m e2e.cluster tools                  build what tests need that need no cluster
  python -m e2e.cluster up                     start it, or return at once if it is healthy
  export KUBECONFIG=$(python -m e2e.cluster kubeconfig)
  python -m e2e.cluster load-image build/image.tar dledger.io/dledger:0.1.0-0123456789ab
  python -m e2e.cluster status --json
  python -m e2e.cluster down                   stop it; what was built stays cached
  python -m e2e.cluster purge                  leave nothing: cache and packages go, too

exit codes: 0 done, 1 failed (status: not up), 2 usage, or something is missing
"""


def parser() -> argparse.ArgumentParser:
    """Return the command line's grammar."""
    top = argparse.ArgumentParser(
        prog="python -m e2e.cluster",
        description="A Kubernetes of three nodes for the end-to-end stories.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "--cluster",
        choices=KINDS,
        default="auto",
        help="local: on this machine, as root; kind: in Docker; current: kubectl's context, "
        "never created or deleted; auto (default): kind if Docker and kind are there, else local; "
        "up and doctor say which it was and why",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text, parents=[shared])

    command("up", "start the cluster; at once if it is healthy")
    command("down", "stop the cluster and delete its state")
    command("purge", "down, and remove what we put on this machine; of kind: in Docker, too")
    command("status", "say what runs").add_argument("--json", action="store_true")
    load = command("load-image", "put an image into every node that does not have it")
    load.add_argument("archive", type=Path, help="an OCI archive")
    load.add_argument("name", help="the image's full name with its tag")
    command("kubeconfig", "print the path of the administrator's kubeconfig")
    diagnose = command("diagnostics", "collect what explains a failure")
    diagnose.add_argument("directory", type=Path, help="made if it is not there")
    command("tools", "build the programs that tests without a cluster ask for; at once if there")
    command("doctor", "say what this machine has and what it lacks")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    options = parser().parse_args(argv)
    try:
        return exit_code(lambda: _run(options))
    except KeyboardInterrupt:
        print("interrupted; `up` or `down` cleans up what is half done", file=sys.stderr)
        return INTERRUPTED


def _run(options: argparse.Namespace) -> int:
    if options.command == "doctor":
        return doctor.main(options.cluster)
    if options.command == "tools":
        return _build_tools()
    cluster = open_cluster(options.cluster)
    commands: dict[str, Callable[[], object]] = {
        "up": cluster.up,
        "down": cluster.down,
        "purge": cluster.purge,
        "kubeconfig": lambda: print(cluster.kubeconfig),
        "diagnostics": lambda: cluster.diagnostics(options.directory),
        "load-image": lambda: cluster.load_image(options.archive, options.name),
    }
    if options.command == "status":
        return _status(cluster, as_json=options.json)
    commands[options.command]()
    return 0


def _build_tools() -> int:
    layout, steps = default_layout(), Steps()
    for program in golang.TEST_PROGRAMS:
        golang.ensure(layout, program, steps)
    find_kubectl(layout)
    return 0


def _status(cluster: Cluster, *, as_json: bool) -> int:
    status = cluster.status()
    print(json.dumps(status, indent=2) if as_json else describe(status))
    return 0 if status["up"] else FAILED


def describe(status: dict[str, Any]) -> str:
    """Return the status in words, one line for each thing."""
    lines = [f"{status['kind']} cluster: {'up' if status['up'] else 'not up'}"]
    lines += [f"kubeconfig  {status['kubeconfig']}"]
    for name, ready in status["nodes"].items():
        lines.append(f"{name:<11} {'Ready' if ready else 'not ready'}")
    for name, pids in status["components"].items():
        running = f"runs, pid {', '.join(map(str, pids))}" if pids else "does not run"
        lines.append(f"{name:<24} {running}")
    return "\n".join([*lines, f"state       {status['state']}", f"cache       {status['cache']}"])


if __name__ == "__main__":
    sys.exit(main())
