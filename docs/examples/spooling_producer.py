"""Sends a numbered message a second, whether the group is there or not.

python docs/examples/spooling_producer.py 127.0.0.1:18081 ./spool
"""

import asyncio
import sys

from dledger.client import SpoolingProducer


async def main(addresses: str, directory: str) -> None:
    """Send until interrupted; what is spooled then is replayed by the next run."""
    async with SpoolingProducer(addresses.split(","), directory, report=print) as producer:
        for number in range(1_000_000):
            result = await producer.send("orders", b"order %d" % number)
            where = "spooled" if result.spooled else f"queue {result.queue_id}:{result.offset}"
            print(result.message_id, where, f"waiting: {producer.counters().depth}", flush=True)
            await asyncio.sleep(1)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
