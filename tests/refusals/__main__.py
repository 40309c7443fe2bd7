"""Asks all servers anew: ``python -m tests.refusals [--record]``; prints what differs."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys

from tests.refusals.golden import answered, differences, record, recorded


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.refusals", description=__doc__)
    parser.add_argument("--record", action="store_true", help="write what is answered now")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    known = recorded()
    found = asyncio.run(answered())
    said = list(differences(known, found))
    print("\n\n".join(said))
    print(f"{len(found)} answers, {len(said)} not as recorded")
    if arguments.record:
        record(found)
    return 1 if said and not arguments.record else 0


if __name__ == "__main__":
    sys.exit(main())
