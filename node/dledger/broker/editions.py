"""Copy on write: a part of the state that a snapshot refers to is never changed again.

A snapshot shows the state at one moment, but a thread writes it while the event loop continues.
Copying the whole state would stop the loop for seconds once there are many queues, groups and
clients. So a snapshot takes references to the parts and starts a new *edition* of the state. Each
part (a queue, a client's ids, a group, its deliveries of a queue) knows the edition it belongs to.
Code that is about to change a part of an earlier edition replaces it by a copy and changes that. So
a part is copied at most once per snapshot, when it is first changed, and idle parts never are.
"""

from __future__ import annotations


class Edition:
    """The number of the current edition; one object, shared by the whole state."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0

    def end(self) -> None:
        """Start a new edition: from now on existing parts are copied before they are changed."""
        self.number += 1
