"""``dledger-pipeline erase``: its own options, and what it is run with.

The key is on the command line and in calls to the leader, and in nothing that is printed.
"""

from __future__ import annotations

import argparse
from typing import Any, Final

from dledger_pipeline.jobs.erase import EraseRequest, erase
from dledger_pipeline.jobs.result import Result
from dledger_pipeline.object_store.store import Store

HELP: Final = "erase all messages that a key ever had, also those that only backups have"


def add_erase_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that no other command has."""
    parser.add_argument("--topic", required=True, metavar="NAME", help="a compacted topic")
    parser.add_argument("--key", required=True, help="exactly this key")
    parser.add_argument(
        "--dry-run", action="store_true", help="only say how many there are; nothing is erased"
    )


def run_erase(args: argparse.Namespace, store: Store, **more: Any) -> Result:
    """Run the job; *more* are the fields of its request that other commands have, too."""
    request = EraseRequest(
        endpoints=args.endpoint,
        store=store,
        topic=args.topic,
        key=args.key,
        dry_run=args.dry_run,
        bytes_per_s=args.rate * 1e6,
        **more,
    )
    return erase(request, args.progress)
