"""What a node asks about each request before it serves it: limits of rate, shares, rights.

A rule is one object, added in one place, `server.wiring.rules`; it sees each request at each port
of the node, whichever server, service or form of call that came by. None of them stands in the
pipeline itself. Called by `pipeline`, and for each batch of a producer's stream by
`services.producing`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from dledger.calls.caller import Caller
from dledger.errors import DledgerError

Leave: TypeAlias = Callable[[], None]
"""Gives back what a rule let a request have. Called once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a rule sees of a request.

    Attributes:
        method: Its label, as in the metrics: ``SendMessage``, ``Ledger/Append``.
        caller: Who asks. A request through a follower is asked about there, and again at the leader
            as `Caller.forwarded`; whose it is are then the follower's words.
        calls: How many calls it is: those of a door process's batch come together; of a stream, the
            call is asked about when it opens, and what comes in it has 0.
        messages: How many messages of a producer it carries.
        size_bytes: Their size, as they came; 0 where a stream opens, and where nothing is read.
        again: Whether these calls were counted before, in a batch that was not carried out. A share
            is to be held again; a rate has them already.
    """

    method: str
    caller: Caller
    calls: int = 1
    messages: int = 0
    size_bytes: int = 0
    again: bool = False


class Rule(Protocol):
    """One rule. It must not wait."""

    def admit(self, ask: Ask) -> Leave | None:
        """Let a request pass, or raise a DledgerError, which refuses it.

        Returns:
            What is called when the request is over, answered or given up; None: nothing is.
        """

    def refused(self, ask: Ask, error: DledgerError) -> None:
        """Note that a request was refused here: by a rule, or by what came behind them."""


class Asked:
    """What the rules said of one request.

    Args:
        rules: All rules.
        method: The method's label.
        caller: Who asks.
    """

    __slots__ = ("_leaves", "_rules", "admitted", "ask")

    def __init__(self, rules: Sequence[Rule], method: str, caller: Caller) -> None:
        self._rules, self._leaves = rules, list[Leave]()
        self.ask = Ask(method=method, caller=caller)
        self.admitted = False

    def admit(
        self, *, calls: int = 1, messages: int = 0, size_bytes: int = 0, again: bool = False
    ) -> None:
        """Ask all rules. Raises the first refusal."""
        self.ask = replace(
            self.ask, calls=calls, messages=messages, size_bytes=size_bytes, again=again
        )
        self.admitted = True
        for rule in self._rules:
            leave = rule.admit(self.ask)
            if leave is not None:
                self._leaves.append(leave)

    def tell_refusal(self, error: DledgerError) -> None:
        """Tell all rules that the request was refused."""
        for rule in self._rules:
            rule.refused(self.ask, error)

    def leave(self) -> None:
        """Give back what the rules let it have; more than once does nothing."""
        leaves, self._leaves = self._leaves, []
        for leave in leaves:
            leave()
