"""An application that sends numbered messages one by one, and says which were answered OK.

Runs in a pod, with the unmodified RocketMQ Python SDK. Each thread sends its own sequence and waits
for each answer; a send that fails is not repeated. One line of JSON twice a second says how many
each thread has sent, and which of these failed; the last line says that it is the last.

After SIGTERM it goes on for some seconds, as applications do that have something to finish: what it
sends through has to be there until it has ended.

    python numbered_sends.py 127.0.0.1:8081 demo

exit codes: 0 ended by SIGTERM; 1 it could not start
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from typing import Any, Final

os.environ.setdefault("HOME", tempfile.gettempdir())

from rocketmq import ClientConfiguration, Credentials, Message, Producer

THREADS: Final = 4
PAUSE_S: Final = 0.02
AFTER_S: Final = 2.0
PROGRESS_S: Final = 0.5


class Sender(threading.Thread):
    """Sends one sequence.

    Attributes:
        sent: How many sends have ended.
        failed: Which of them failed: number, error, and when, in Unix milliseconds.
        longest_s: The longest that one took.
    """

    def __init__(self, producer: Any, topic: str, name: str, stopped: threading.Event) -> None:
        super().__init__()
        self._producer, self._topic, self._name, self._stopped = producer, topic, name, stopped
        self.sent, self.longest_s = 0, 0.0
        self.failed: list[tuple[int, str, int]] = []

    def run(self) -> None:
        """Send until told to stop."""
        while not self._stopped.wait(PAUSE_S):
            message = Message()
            message.topic, message.body = self._topic, f"{self._name}/{self.sent}".encode()
            began_s = time.monotonic()
            try:
                self._producer.send(message)
            except Exception as error:  # noqa: BLE001 - whatever a user would see
                self.failed.append((self.sent, repr(error)[:200], time.time_ns() // 1_000_000))
            self.longest_s = max(self.longest_s, time.monotonic() - began_s)
            self.sent += 1


def main(endpoint: str, topic: str) -> int:
    """Send until SIGTERM and a little longer."""
    told, stopped = threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    run = f"{time.time_ns():x}"
    producer = Producer(ClientConfiguration(endpoint, Credentials()), (topic,))
    try:
        producer.startup()  # once: what it starts beside is there already, or is not there at all
    except Exception as error:  # noqa: BLE001 - whatever a user would see
        print(json.dumps({"run": run, "startup": repr(error)}), flush=True)
        return 1
    senders = [Sender(producer, topic, f"{run}/{n}", stopped) for n in range(THREADS)]
    for sender in senders:
        sender.start()
    while not told.wait(PROGRESS_S):
        _say(run, senders)
    time.sleep(AFTER_S)
    stopped.set()
    for sender in senders:
        sender.join()
    _say(run, senders, isLast=True)
    producer.shutdown()
    return 0


def _say(run: str, senders: list[Sender], **more: Any) -> None:
    line = {
        "run": run,
        "sent": [sender.sent for sender in senders],
        "failed": [[n, *each] for n, sender in enumerate(senders) for each in sender.failed],
        "longestS": round(max(sender.longest_s for sender in senders), 2),
        **more,
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
