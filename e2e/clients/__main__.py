"""``make clients``: the official clients, unmodified, against `dledger dev` groups of real nodes.

Six parts: cases, which are written once for all languages, and the programs of docs/clients.md
(`program_…`); a follower that is dead or frozen; odd messages beside good ones; answers that are
swallowed between nodes and client; the leader killed every five seconds under writers and consumers
of all types of messages; and producers that go on through a sidecar (`dledger spool run`) while the
whole group is away, in five ways.

    make clients
    make clients CLIENTS_ARGS="--languages node,rust --only push,bodies"
    make clients CLIENTS_ARGS="--only failover --types FIFO,DELAY --seconds 30 --json"
    make clients CLIENTS_ARGS="--only spool --outages killed,frozen --outage-s 20"

It needs, beside Python: Node.js with npm, Rust with cargo, a JDK 17 with Maven, Go; what is missing
is said, the rest runs. Drivers are built once, below ~/.cache/dledger-e2e.

exit codes: 0 all is as it has to be; 1 not; 2 something was not measured, or wrong usage
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

from e2e.bench import machine
from e2e.clients import away, programs
from e2e.clients.builds import MissingTool, ensure
from e2e.clients.cases import CASES, WITH_TLS, Case
from e2e.clients.drivers import ClientFailed
from e2e.clients.failover import failover
from e2e.clients.judging import Figures, Spooled, lines
from e2e.clients.loads import TYPES
from e2e.clients.poison import poison, with_old_log
from e2e.clients.sdks import SDKS
from e2e.clients.spool import COLD_START, SPOOL_CASES, can_run, cold_start, outage
from e2e.clients.stage import CaseFailed, Stage, TlsGroup, with_tls
from e2e.clients.swallowed import WALL_HOST, swallowed, walled
from e2e.clients.table import (
    CaseVerdict,
    Result,
    exit_code,
    failover_table,
    spool_table,
    table,
    verdict,
)
from e2e.cluster.errors import ClusterError, MissingPrerequisite
from e2e.cluster.layout import default_layout
from e2e.harness import command as harness
from e2e.harness.checks import Check, failed
from e2e.harness.checks import table as table_of_lines
from e2e.harness.ports import HOST
from e2e.harness.waiting import HarnessError

_RESULTS: Final = machine.ROOT / "build" / "clients"
_FAILOVER: Final = "failover"
_SWALLOWED: Final = "swallowed"
_POISON: Final = "poison"
_SPOOL: Final = "spool"
_ALONE: Final = (_POISON, _SWALLOWED, _FAILOVER, _SPOOL)
_BESIDE: Final = {**CASES, **programs.CASES}
PARTS: Final = (*_BESIDE, *away.CASES, *_ALONE)
_CASE_S: Final = 480.0
_AT_ONCE: Final = 2
"""Cases at once: most of their time they wait."""


@dataclass(slots=True)
class Found:
    """What a run has found so far."""

    results: list[Result]
    lines: list[Check]
    figures: dict[str, tuple[Figures, int]]  # by language and type of topic
    spooled: dict[tuple[str, str], Spooled]

    def add(self, result: Result) -> None:
        """Keep a result and say it."""
        self.results.append(result)
        print(f"  {result}", flush=True)


async def one(name: str, case: Case, stage: Stage) -> Result:
    """Run a case to its end."""
    began_s, error = time.monotonic(), ""
    try:
        async with asyncio.timeout(_CASE_S):
            await case(stage)
    except (
        CaseFailed,
        ClientFailed,
        HarnessError,
        AssertionError,
        ValueError,
        IndexError,
    ) as raised:
        error = str(raised) or type(raised).__name__
    except TimeoutError:
        error = f"not done in {_CASE_S:.0f} s"
    sdk = stage.sdk
    seen, remark = verdict(sdk.gaps.get(name, ""), error, sdk.chances.get(name, ""))
    return Result(
        case=name, language=stage.language, tls=stage.tls, verdict=seen, remark=remark,
        seconds=time.monotonic() - began_s,
    )  # fmt: skip


def _stage(language: str, command: Sequence[str], at: TlsGroup, work: Path, *, tls: bool) -> Stage:
    return Stage(language=language, sdk=SDKS[language], command=command, at=at, tls=tls, work=work)


async def _cases(
    names: Sequence[str], commands: Mapping[str, Sequence[str]], work: Path, found: Found
) -> None:
    """Run the cases of all languages at one group, then those that take a node away."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def run(name: str, stage: Stage) -> None:
        async with places:
            found.add(await one(name, _BESIDE[name], stage))

    async with with_tls(work / "group") as at:
        await asyncio.gather(
            *(
                run(name, _stage(language, command, at, work, tls=tls))
                for language, command in commands.items()
                for tls in (False, True)
                for name in names
                if name in _BESIDE and (not tls or name in WITH_TLS)
            )
        )
        for language, command in commands.items():
            for name in [each for each in names if each in away.CASES]:
                for tls in (False, True):
                    stage = _stage(language, command, at, work, tls=tls)
                    found.add(await one(name, away.CASES[name], stage))


async def _run_poison(commands: Mapping[str, Sequence[str]], work: Path, found: Found) -> None:
    async with with_old_log(work / _POISON, commands) as at:
        for language, command in commands.items():
            found.add(await one(_POISON, poison, _stage(language, command, at, work, tls=False)))


async def _swallowed(commands: Mapping[str, Sequence[str]], work: Path, found: Found) -> None:
    for language, command in commands.items():
        settings = f"advertise_host={WALL_HOST}", f"peer_host={HOST}"
        async with (
            with_tls(work / f"{_SWALLOWED}-{language}", *settings) as at,
            walled(at) as walls,
        ):
            stage = _stage(language, command, at, work, tls=False)
            found.add(await one(_SWALLOWED, partial(swallowed, walls=walls), stage))


async def _failovers(
    commands: Mapping[str, Sequence[str]],
    types: Sequence[str],
    seconds: float,
    work: Path,
    found: Found,
) -> None:
    for language, command in commands.items():
        kinds = [kind for kind in types if kind not in SDKS[language].lacks]
        print(f"  {language}: the leader is killed for {seconds:.0f} s", flush=True)
        try:
            async with with_tls(work / f"failover-{language}") as at:
                stage = _stage(language, command, at, work, tls=False)
                figures, kills = await failover(stage, kinds, seconds)
        except (ClientFailed, CaseFailed, AssertionError, HarnessError) as error:
            found.lines.append(failed(f"{language}: failover", error))
        else:
            for kind, seen in figures.items():
                found.figures[f"{language} {kind}"] = seen, kills
                found.lines += lines(f"{language} {kind}", seen)


async def _run_spool(
    cases: Sequence[str],
    commands: Mapping[str, Sequence[str]],
    seconds: float,
    work: Path,
    found: Found,
) -> None:
    """Run all languages beside each other through one outage after the other."""
    asked = {language: each for language, each in commands.items() if can_run(language)}
    for name in cases if asked else ():
        print(f"  {name}: {', '.join(asked)}, each through a sidecar", flush=True)
        began_s, error, lack = time.monotonic(), "", ""
        seen: Mapping[str, Spooled | CaseFailed] = {}
        try:
            if name == COLD_START:
                seen = await cold_start(asked, work / f"{_SPOOL}-{name}")
            else:
                seen = await outage(name, asked, seconds, work / f"{_SPOOL}-{name}")
        except MissingPrerequisite as missing:
            lack = str(missing)
        except (ClientFailed, AssertionError, HarnessError, ClusterError) as failed_run:
            error = str(failed_run)
        for language in asked:
            one = seen.get(language)
            if isinstance(one, Spooled):
                found.spooled[name, language] = one
            judged, remark = verdict(
                "", one.amiss() if isinstance(one, Spooled) else error or str(one)
            )
            if lack:
                judged, remark = CaseVerdict.NOT_MEASURED, lack
            found.add(
                Result(
                    case=f"{_SPOOL}: {name}", language=language, tls=False, verdict=judged,
                    remark=remark, seconds=time.monotonic() - began_s,
                )
            )  # fmt: skip


def _commands(languages: Sequence[str], found: Found) -> dict[str, Sequence[str]]:
    """Build the drivers; what cannot be built is not measured."""
    layout = default_layout()
    layout.cache.mkdir(parents=True, exist_ok=True)
    commands: dict[str, Sequence[str]] = {}
    for language in languages:
        print(f"[build] {language}: {SDKS[language].version}", flush=True)
        try:
            commands[language] = ensure(layout, language)
        except (MissingTool, ClusterError) as error:
            found.add(
                Result(
                    case="all", language=language, tls=False, verdict=CaseVerdict.NOT_MEASURED,
                    remark=str(error),
                )
            )  # fmt: skip
    return commands


def _write(found: Found, path: Path, at: str) -> str:
    return harness.write(
        path, at, found.lines, commit=machine.commit(),
        results=[asdict(each) | {"verdict": each.verdict.value} for each in found.results],
        failover={
            name: asdict(figures) | {"kills": kills}
            for name, (figures, kills) in found.figures.items()
        },
        spool=[
            asdict(figures) | {"case": case, "language": language}
            for (case, language), figures in found.spooled.items()
        ],
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = harness.parser("python -m e2e.clients", __doc__, PARTS, _RESULTS)
    parser.add_argument("--languages", default=",".join(SDKS), help=f"{', '.join(SDKS)} (all)")
    parser.add_argument("--types", default=",".join(TYPES), help=f"{', '.join(TYPES)} (all)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of kills a language (60)")
    parser.add_argument("--outage-s", type=float, default=60.0, help="each of spool's lasts (60)")
    parser.add_argument(
        "--outages", default=",".join(SPOOL_CASES), help=f"of {', '.join(SPOOL_CASES)} (all)"
    )
    parser.add_argument("--json", action="store_true", help="print clients.json at the end")
    return parser


async def _run(
    names: Sequence[str], languages: Sequence[str], args: argparse.Namespace, work: Path
) -> Found:
    found = Found([], [], {}, {})
    commands = _commands(languages, found)
    if commands and set(names) - set(_ALONE):
        await _cases(names, commands, work, found)
    if commands and _POISON in names:
        await _run_poison(commands, work, found)
    if _SWALLOWED in names:
        await _swallowed(commands, work, found)
    if _FAILOVER in names:
        await _failovers(commands, args.types, args.seconds, work, found)
    if _SPOOL in names:
        await _run_spool(args.outages, commands, args.outage_s, work, found)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts, print the tables, write them as JSON; return the exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    names = harness.chosen(parser, args.only, PARTS)
    languages = harness.chosen(parser, args.languages, list(SDKS))
    args.types = harness.chosen(parser, args.types, TYPES)
    args.outages = harness.chosen(parser, args.outages, SPOOL_CASES)
    at, path = harness.now(), args.out / "clients.json"
    with tempfile.TemporaryDirectory(prefix="clients-", dir=args.data) as work:
        found = asyncio.run(_run(names, languages, args, Path(work)))
    text = _write(found, path, at)
    if found.results:
        print(table(found.results, languages))
    if found.figures:
        print(failover_table(found.figures))
    if found.spooled:
        print(spool_table(found.spooled))
    if found.lines:
        print(table_of_lines(found.lines))
    print(text if args.json else path)
    return exit_code(found.results, found.lines)


if __name__ == "__main__":
    sys.exit(main())
