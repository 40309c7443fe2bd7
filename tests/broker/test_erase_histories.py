"""Random histories of topics of which messages are erased, equal to the model of REKEEP's.

Beside its steps: erased are messages in the log, in blocks, held by a group; what is gone already,
or not there yet; twice, and late.
"""

from __future__ import annotations

import os
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.broker.erase import Erase
from dledger.broker.results import Erased
from dledger.errors import DledgerError
from tests.broker.test_rekeep_histories import STEPS, World, play

_HISTORIES: Final = int(os.environ.get("ERASE_HISTORIES", "40"))


class ErasingWorld(World):
    """As its base, with messages that are erased, and what is remembered of them."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.erases: list[Erase] = []
        self.remembered: list[tuple[int, str, int]] = []

    def erase(self) -> None:
        """A leader has found some of what is there, or another one had, some time ago."""
        if self.erases and self.rng.random() < 0.2:
            self._erase(self.rng.choice(self.erases))
            return
        for topic in self.state.topics.keeping_longer():
            queue_id = self.rng.randrange(topic.queues)
            end = self.state.topics.queue(topic.name, queue_id).end + 3
            share = self.rng.choice((0.1, 0.4, 0.9))
            offsets = tuple(o for o in range(end) if self.rng.random() < share)
            if offsets:
                command = Erase(
                    generation=topic.generation, queue_id=queue_id, first_entry=1, offsets=offsets
                )
                self.erases.append(command)
                self._erase(command)

    def _erase(self, command: Erase) -> None:
        before = self.state.topics.canonical()
        (result,) = self.commit(command.encode())
        found = [n for n, t in self.topics.items() if t.generation == command.generation]
        if not found or not self.topics[found[0]].is_compacted:
            assert isinstance(result, DledgerError), result
            assert self.state.topics.canonical() == before
            return
        rows = self.topics[found[0]].rows[command.queue_id]
        gone = rows.keys() & set(command.offsets)
        for offset in gone:
            del rows[offset]
        assert result == Erased(len(gone), self.index)
        if gone:
            self.remembered.append((self.index, found[0], len(gone)))

    def check(self) -> None:
        super().check()
        found = [(each.entry, each.topic, each.messages) for each in self.state.erasures]
        assert found == [each for each in self.remembered if each[0] > self.state.first_index]


@settings(max_examples=_HISTORIES, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(20, 90), st.sampled_from((2, 3, 1024)))
def test_histories_with_erased_messages_equal_the_model(seed: int, steps: int, sealed: int) -> None:
    """What was erased is nowhere again, on any node, and everything else is as it was."""
    with pytest.MonkeyPatch.context() as patch:
        play(ErasingWorld(seed), (*STEPS, "erase", "erase"), patch, steps=steps, sealed=sealed)
