"""A producer with the unmodified Python SDK; run as a program by `test_sidecar_sdk`.

``python sidecar_producer.py ENDPOINT TOPIC THREADS``: each thread sends its numbers, one after the
other, until a line comes on stdin. A line of JSON tells each send: thread, number, error or "".
"""

from __future__ import annotations

import json
import sys
import threading

from rocketmq import ClientConfiguration, Credentials, Message, Producer


def main(endpoint: str, topic: str, threads: int) -> None:
    """Send until told to stop."""
    producer = Producer(ClientConfiguration(endpoint, Credentials()), (topic,))
    producer.startup()
    stopped, told = threading.Event(), threading.Lock()

    def work(thread: int) -> None:
        number = 0
        while not stopped.is_set():
            number += 1
            message = Message()
            message.topic, message.body = topic, f"{thread} {number}".encode()
            error = ""
            try:
                producer.send(message)
            except Exception as failed:  # noqa: BLE001 - whatever a user would see
                error = repr(failed)
            with told:
                print(json.dumps([thread, number, error]), flush=True)

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    sys.stdin.readline()
    stopped.set()
    for worker in workers:
        worker.join()
    producer.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
