"""A bound that is shared by address when it is full: against one that counts all anew each time."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from dledger.common.shares import Entry, Share, address_of


def test_one_address_may_have_all_there_is() -> None:
    """Ten thousand polls of one Service wait, and nobody goes before the bound is full."""
    gone: list[int] = []
    share: Share[int] = Share(10_000, gone.append)
    for number in range(10_000):
        share.enter("10.0.0.1", number, line=number // 250)

    assert gone == []
    assert share.taken == share.of("10.0.0.1") == 10_000


@pytest.mark.found
def test_a_newcomer_gets_his_own_from_who_has_most() -> None:
    """Of him, the oldest goes; and as often as others come, until all have as much."""
    gone: list[str] = []
    share: Share[str] = Share(6, gone.append)
    for number in range(5):
        share.enter("crowd", f"crowd {number}")
    share.enter("small", "small 0")
    for number in range(3):
        share.enter("new", f"new {number}")

    assert gone == ["crowd 0", "crowd 1", "crowd 2"]
    assert [share.of(each) for each in ("crowd", "small", "new")] == [2, 1, 3]


def test_behind_one_address_the_connection_with_most_loses_its_own() -> None:
    """Who shares a NAT with a stranger keeps his one stream, and may open another."""
    gone: list[str] = []
    share: Share[str] = Share(10, gone.append)
    share.enter("nat", "honest", line="a")
    for number in range(9):
        share.enter("nat", f"stranger {number}", line="b")
    share.enter("nat", "honest, too", line="c")

    assert gone == ["stranger 0"]


def test_what_grows_is_the_newest_and_goes_last() -> None:
    """Of one line; so of requests that arrive, the one that has stood still longest goes."""
    gone: list[str] = []
    share: Share[str] = Share(10, gone.append)
    moves, stalls = share.enter("a", "moves", weight=2), share.enter("a", "stalls", weight=2)
    share.resize(moves, 9)
    full = share.is_full
    assert share.evict()
    share.leave(stalls)  # it has left: this does nothing

    assert gone == ["stalls"]
    assert (full, share.is_full, share.taken) == (True, False, 9)


def test_an_empty_bound_has_nobody_to_end() -> None:
    """What is larger than the bound is counted all the same, alone."""
    gone: list[str] = []
    share: Share[str] = Share(4, gone.append)
    assert not share.evict()
    first = share.enter("a", "large", weight=7)
    share.enter("b", "small")

    assert gone == ["large"]
    share.resize(first, 9)
    assert share.taken == 1


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("ipv4:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2::7", "20010db800010002"),
        ("ipv6:%5B2001:db8:1:2:ffff::1%5D", "20010db800010002"),
        ("ipv6:%5Bfe80::1%25eth0%5D", "fe80000000000000"),
        ("unix:", "unix:"),
        ("ipv6:%5Bno:address%5D", "ipv6:%5Bno:address%5D"),
        ("", ""),
    ],
)
def test_an_address_is_what_one_caller_can_choose_from(host: str, address: str) -> None:
    """Of IPv6 the first 64 bits: whoever has one of these addresses has the others, too."""
    assert address_of(host).zfill(16) == address.zfill(16)


@dataclass
class Slow:
    """The same bound, which looks at all of it each time."""

    limit: int
    items: list[tuple[str, int, int, int]] = field(default_factory=list)  # oldest first

    def weight(self, *, of: str | None = None) -> int:
        return sum(weight for host, _, __, weight in self.items if of in (None, host))

    def may_go(self, number: int) -> bool:
        """Whether an item is the oldest of a line with most of an address with most."""
        host, line, _, __ = next(item for item in self.items if item[2] == number)
        hosts, lines = Counter[str](), Counter[int]()
        for each, its_line, _, weight in self.items:
            hosts[each] += weight
            if each == host:
                lines[its_line] += weight
        oldest = next(item[2] for item in self.items if item[:2] == (host, line))
        near = 8 / 9  # a class begins so far below its end
        return (
            number == oldest
            and hosts[host] >= near * max(hosts.values())
            and lines[line] >= near * max(lines.values())
        )


@pytest.mark.parametrize("seed", range(40))
def test_whoever_goes_has_most_by_any_history(seed: int) -> None:
    """Exact for numbers up to eight, and within an eighth for all others."""
    rng = random.Random(seed)
    slow = Slow(limit=rng.choice((5, 40, 3_000)))
    entries: dict[int, Entry[int]] = {}

    def end(number: int) -> None:
        assert slow.may_go(number)
        slow.items = [item for item in slow.items if item[2] != number]
        del entries[number]

    share: Share[int] = Share(slow.limit, end)
    hosts, largest = [f"h{number}" for number in range(rng.choice((2, 9)))], slow.limit // 4 + 1
    for number in range(600):
        match rng.choice(("enter", "enter", "enter", "leave", "resize")):
            case "enter":
                host, line, weight = rng.choice(hosts), rng.randrange(3), rng.randint(1, largest)
                entry = share.enter(host, number, line=line, weight=weight)
                slow.items.append((host, line, number, weight))
                entries[number] = entry
            case "leave" if entries:
                gone = rng.choice(list(entries))
                share.leave(entries.pop(gone))
                slow.items = [item for item in slow.items if item[2] != gone]
            case "resize" if entries:
                changed, weight = rng.choice(list(entries)), rng.randint(1, largest)
                share.resize(entries[changed], weight)
                (item,) = (each for each in slow.items if each[2] == changed)
                slow.items.remove(item)
                slow.items.append((*item[:3], weight))
                while share.is_full:
                    assert share.evict()
        assert share.taken == slow.weight() <= slow.limit
        assert all(share.of(host) == slow.weight(of=host) for host in hosts)
    for entry in entries.values():
        share.leave(entry)
    assert share.taken == 0
    assert not share.evict()
