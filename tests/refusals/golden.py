"""The recorded answers: a file for each service, where the same answer of several is said once.

::

    SendMessage:
      'body: empty':
      - at: leader; follower of native, door
        says: |-
          SendMessageResponse { status { ... } }
          OK

A place without servers is that place on all of them.
"""

from __future__ import annotations

import asyncio
import difflib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

from dledger.server.config import GRPC
from tests.refusals import worlds
from tests.refusals.worlds import SERVERS

FOLDER: Final = Path(__file__).parent / "golden"
HOW: Final = "python -m tests.refusals --record"
_HEAD: Final = f"# What nodes answer to what they refuse; written by `{HOW}`. Read the diff.\n"
Where: TypeAlias = tuple[str, str, str, str]
"""RPC, refusal, server, place."""
Recorded: TypeAlias = Mapping[Where, str]


async def answered() -> dict[Where, str]:
    """Return all answers, made anew."""
    held = asyncio.gather(*(_all_of(server, (worlds.held_requests,)) for server in SERVERS))
    found: dict[Where, str] = {}
    for server in SERVERS:
        found |= await _all_of(server, worlds.WORLDS)
    for of_peers in worlds.OF_PEER_PORTS:
        found |= placed(GRPC, await of_peers())
    for each in await held:
        found |= each
    return found


async def _all_of(server: str, those: Iterable[worlds.World]) -> dict[Where, str]:
    found: worlds.Answers = {}
    for world in those:
        found |= await world(server)
    return placed(server, found)


def placed(server: str, answers: worlds.Answers) -> dict[Where, str]:
    """Return the answers of one server as they are recorded."""
    return {(rpc, refusal, server, place): says for (rpc, refusal, place), says in answers.items()}


def recorded() -> dict[Where, str]:
    """Return what the files say."""
    known: dict[Where, str] = {}
    for file in sorted(FOLDER.glob("*.yaml")):
        for rpc, refusals in yaml.load(file.read_text(), yaml.CSafeLoader).items():
            for refusal, answers in refusals.items():
                for answer in answers:
                    for server, place in _places(answer["at"]):
                        known[rpc, refusal, server, place] = answer["says"]
    return known


def record(answers: Recorded) -> None:
    """Write the files."""
    files: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for rpc, refusals in sorted(_by_rpc(answers).items()):
        files[_file_of(rpc)][rpc] = {
            refusal: [
                {"at": _said_of(where), "says": says}
                for says, where in sorted(of_each.items(), key=lambda one: min(one[1]))
            ]
            for refusal, of_each in sorted(refusals.items())
        }
    FOLDER.mkdir(exist_ok=True)
    for file in FOLDER.glob("*.yaml"):
        file.unlink()
    for name, rpcs in files.items():
        text = yaml.dump(rpcs, Dumper=_Dumper, width=1 << 16, allow_unicode=True, sort_keys=False)
        (FOLDER / f"{name}.yaml").write_text(_HEAD + text)


def differences(known: Recorded, found: Recorded) -> Iterator[str]:
    """Yield for each answer that is not as it was recorded what it is of, and both."""
    for where in sorted(known.keys() | found.keys()):
        before, now = known.get(where), found.get(where)
        if before == now:
            continue
        rpc, refusal, server, place = where
        said = f"{rpc}, {refusal!r}, on {server} at the {place}"
        if now is None:
            yield f"{said}: recorded, and asked no longer"
        elif before is None:
            yield f"{said}: not recorded:\n{now}"
        else:
            lines = difflib.ndiff(before.splitlines(), now.splitlines())
            yield "\n".join((f"{said}:", *(line for line in lines if line[0] != "?")))


def _by_rpc(answers: Recorded) -> dict[str, Any]:
    rpcs: defaultdict[str, Any] = defaultdict(lambda: defaultdict(lambda: defaultdict(set)))
    for (rpc, refusal, server, place), says in answers.items():
        rpcs[rpc][refusal][says].add((_PLACES.index(place), SERVERS.index(server)))
    return rpcs


_PLACES: Final = (
    worlds.LEADER,
    worlds.FOLLOWER,
    worlds.PEER_PORT,
    worlds.PEER_PORT_ELSEWHERE,
)


def _said_of(where: Iterable[tuple[int, int]]) -> str:
    """Return places by their names, with the servers if it is not all of them."""
    by_place: defaultdict[int, list[int]] = defaultdict(list)
    for place, server in sorted(where):
        by_place[place].append(server)
    return "; ".join(
        _PLACES[place]
        if len(servers) == len(SERVERS)
        else f"{_PLACES[place]} of {', '.join(SERVERS[each] for each in servers)}"
        for place, servers in by_place.items()
    )


def _places(said: str) -> Iterator[tuple[str, str]]:
    for part in said.split("; "):
        place, _, servers = part.partition(" of ")
        for server in servers.split(", ") if servers else SERVERS:
            yield server, place


def _file_of(rpc: str) -> str:
    if rpc.startswith("/"):
        return "no_method"
    return rpc.partition("/")[0] if "/" in rpc else "MessagingService"


class _Dumper(yaml.SafeDumper):
    """Writes what has several lines as several lines."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
