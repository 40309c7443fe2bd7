"""Copy on write: what a snapshot refers to is never changed again.

A snapshot is of one moment, and is written by a thread while the loop goes on. To copy the state
would stop the loop for seconds once there are many queues, groups and clients; so a snapshot takes
references to its parts and begins a new *edition* of the state. A part (a queue, a client's ids, a
group, what it did with a queue) says of which edition it is. Who is about to change one of an
earlier edition puts a copy in its place, and changes that. So each part is copied once for a
snapshot, when it is first changed, and parts that rest are not copied at all.
"""

from __future__ import annotations


class Edition:
    """Which edition of the state is being made; one object for all of it."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0

    def end(self) -> None:
        """Leave all parts as they are: a snapshot refers to them."""
        self.number += 1
