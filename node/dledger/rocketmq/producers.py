"""Which clients send transactions to a topic, as far as this node was told since it leads.

A producer is known by the id with which it calls. Its Settings may name its topics, but they follow
a new connection late, or never.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

_TOPICS: Final = 1_024
_CLIENTS: Final = 64
"""Of one topic: those who were heard of last."""


class Producers:
    """Those of each topic."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()

    def note(self, topic: str, client_id: str) -> None:
        """Note that a client works with transactions of a topic."""
        clients = self._of.get(topic)
        if clients is None:
            clients = self._of[topic] = OrderedDict()
        clients[client_id] = None
        clients.move_to_end(client_id)
        self._of.move_to_end(topic)
        if len(clients) > _CLIENTS:
            clients.popitem(last=False)
        if len(self._of) > _TOPICS:
            self._of.popitem(last=False)

    def of(self, topic: str) -> Sequence[str]:
        """Return the clients of a topic, who was heard of last first."""
        return list(reversed(self._of.get(topic, ())))
