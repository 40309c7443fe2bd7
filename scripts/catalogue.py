"""Write the lists of conditions, reasons, Events, metrics, alerts and status fields into documents.

docs/catalogue.yaml has them, and crds/ the fields of statuses; `make catalogue` writes them between
the comments that name their source in docs/operator.md, docs/monitoring.md and docs/runbooks.md.
The rest of these pages is written by hand. With ``--check`` nothing is written, and what differs is
shown.

exit codes: 0 the documents are up to date (now), 1 with --check: they are not
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from scripts.wrap_docs import wrapped

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCE: Final = ROOT / "docs/catalogue.yaml"
GROUP: Final = "BrokerGroup"
KINDS: Final = (GROUP, "BrokerBackup", "BrokerOperation")
_STATUS: Final = "status of a "
BEGIN: Final = "<!-- {}: written by make catalogue from {} -->"
END: Final = "<!-- end of {} -->"
_GLUE: Final = "\N{NO-BREAK SPACE}"
_TO_DO: Final = f"**To{_GLUE}do:**"
_SHOWN: Final = re.compile(r"(\w+)=(True|False|Unknown)(?: of a (Broker\w+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition of one kind of object, and its status when all is well."""

    name: str
    of: str = GROUP
    well: bool
    means: str


@dataclass(frozen=True, slots=True)
class Shown:
    """A status of a condition, of one kind of object."""

    condition: str
    status: str
    of: str

    @classmethod
    def parse(cls, text: str) -> Shown:
        """Read ``Ready=True``, or ``Complete=False of a BrokerBackup``. Raises ValueError."""
        found = _SHOWN.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is no status of a condition, such as Ready=True")
        return cls(found[1], found[2], found[3] or GROUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why conditions have a status; `shown` has all that may have this reason."""

    name: str
    shown: tuple[Shown, ...]
    means: str
    to_do: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What an Event reports, and whether it is a warning."""

    name: str
    warning: bool = False
    when: str
    to_do: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric by the name that queries use; `reading` goes on after its name."""

    name: str
    type: str
    labels: tuple[str, ...] = ()
    means: str
    to_do: str = ""
    reading: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alert of the chart, in one line, and its runbook; `more` are subsections."""

    name: str
    severity: str
    when: str
    means: str
    cause: str
    to_do: str
    more: str = ""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All of it, in the order of the file."""

    conditions: tuple[Condition, ...]
    reasons: tuple[Reason, ...]
    events: tuple[Event, ...]
    metrics: dict[str, tuple[Metric, ...]]
    """Of ``nodes``, of the ``operator``, and of the ``runs`` of its Jobs."""
    alerts: tuple[Alert, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusField:
    """A field of a status, such as ``members[].role``; *parts* are fields in it of plain names."""

    path: str
    type: str
    means: str
    parts: tuple[str, ...] = ()


def status_fields(kind: str, root: Path = ROOT) -> tuple[StatusField, ...]:
    """Return the fields of a kind's status as its CRD has them, in its order."""
    crd: dict[str, Any] = yaml.safe_load((root / _crd(kind)).read_text("utf-8"))
    (version,) = crd["spec"]["versions"]
    return tuple(_fields_in(version["schema"]["openAPIV3Schema"]["properties"]["status"], ""))


def _crd(kind: str) -> str:
    return f"crds/{kind.lower()}.yaml"


def _fields_in(schema: dict[str, Any], path: str) -> Iterator[StatusField]:
    for name, found in schema["properties"].items():
        inner = found["items"] if found["type"] == "array" else found
        below: dict[str, Any] = inner.get("properties", {})
        described = any("description" in each for each in below.values())
        if "description" not in found:
            raise ValueError(f"{path}{name} of a status has no description in its CRD")
        yield StatusField(
            path=f"{path}{name}",
            type=found["type"],
            means=found["description"],
            parts=() if described else tuple(below),
        )
        if described:
            yield from _fields_in(inner, f"{path}{name}{'[]' * (inner is not found)}.")


def load(source: Path = SOURCE) -> Catalogue:
    """Read the catalogue. Raises TypeError or ValueError for what it cannot have."""
    told: dict[str, Any] = yaml.safe_load(source.read_text("utf-8"))
    return Catalogue(
        conditions=tuple(Condition(**row) for row in told["conditions"]),
        reasons=tuple(
            Reason(**row | {"shown": tuple(map(Shown.parse, row["shown"]))})
            for row in told["reasons"]
        ),
        events=tuple(Event(**row) for row in told["events"]),
        metrics={
            of: tuple(Metric(**row | {"labels": tuple(row.get("labels", ()))}) for row in rows)
            for of, rows in told["metrics"].items()
        },
        alerts=tuple(Alert(**row) for row in told["alerts"]),
    )


def sections(told: Catalogue, root: Path = ROOT) -> dict[str, dict[str, str]]:
    """Return what is written: by page, then by the name that its comments have."""
    return {
        "docs/operator.md": {
            **{f"{_STATUS}{kind}": _status(status_fields(kind, root)) for kind in KINDS},
            "conditions": _conditions(told),
            "reasons": _lines(map(_reason, told.reasons)),
            "events": _lines(map(_event, told.events)),
        },
        "docs/monitoring.md": {
            **{f"metrics of {of}": _metrics(rows) for of, rows in told.metrics.items()},
            "alerts": _lines(
                f"- [{one.name}](runbooks.md#{one.name.lower()}), {one.severity}: {one.when}"
                for one in told.alerts
            ),
        },
        "docs/runbooks.md": {"runbooks": "\n\n".join(map(_runbook, told.alerts))},
    }


def filled(page: str, parts: dict[str, str]) -> str:
    """Return a page with its written parts made anew. Raises ValueError without their comments."""
    for name, text in parts.items():
        begin, end = BEGIN.format(name, _source(name)), END.format(name)
        before, found, rest = page.partition(f"{begin}\n")
        _, closed, after = rest.partition(f"{end}\n")
        if not (found and closed):
            raise ValueError(f"no place for {name}: {begin} and {end} on lines of their own")
        written = wrapped(text, refill=True).replace(_GLUE, " ")
        page = f"{before}{found}{written}\n{closed}{after}"
    return page


def main(arguments: Sequence[str] | None = None, *, root: Path = ROOT) -> int:
    """Write the documents, or show what differs; return the exit code."""
    parser = argparse.ArgumentParser(prog="make catalogue", description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, show what differs")
    check = parser.parse_args(arguments).check
    is_stale = False
    for name, parts in sections(load(root / "docs/catalogue.yaml"), root).items():
        page = root / name
        text = page.read_text("utf-8")
        if (better := filled(text, parts)) == text:
            continue
        is_stale = True
        if check:
            print("\n".join(_difference(name, text, better)))
        else:
            page.write_text(better, "utf-8")
            print(name)
    return int(check and is_stale)


def _source(name: str) -> str:
    """Return which file a written part comes from."""
    kind = name.removeprefix(_STATUS)
    return _crd(kind) if kind != name else "docs/catalogue.yaml"


def _status(found: Sequence[StatusField]) -> str:
    return _lines(map(_status_field, found))


def _status_field(one: StatusField) -> str:
    parts = f" Of each: {', '.join(f'`{part}`' for part in one.parts)}." if one.parts else ""
    if one.type == "object":
        parts = parts.replace(" Of each:", " It has")
    return f"- `{one.path}` ({one.type}): {one.means}{parts}"


def _conditions(told: Catalogue) -> str:
    return _lines(_condition(one, told.reasons) for one in told.conditions)


def _condition(one: Condition, reasons: Sequence[Reason]) -> str:
    of = "" if one.of == GROUP else f" of a {one.of}"
    by_status = []
    for status in ("True", "False", "Unknown"):
        names = [r.name for r in reasons if Shown(one.name, status, one.of) in r.shown]
        if names:
            by_status.append(f"*{status}*: {', '.join(f'`{name}`' for name in names)}")
    return f"- `{one.name}`{of} ({one.well} when all is well): {one.means} {'; '.join(by_status)}."


def _reason(one: Reason) -> str:
    kinds = dict.fromkeys(shown.of for shown in one.shown)
    shown = "; ".join(_shown_of(kind, one.shown) for kind in kinds)
    return f"- `{one.name}` ({shown}): {_advised(one.means, one.to_do)}"


def _shown_of(kind: str, shown: Sequence[Shown]) -> str:
    said = ", ".join(f"{each.condition}={each.status}" for each in shown if each.of == kind)
    return said if kind == GROUP else f"{said} of a {kind}"


def _event(one: Event) -> str:
    warning = " (Warning)" if one.warning else ""
    return f"- `{one.name}`{warning}: {_advised(one.when, one.to_do)}"


def _metrics(rows: Sequence[Metric]) -> str:
    """Return the list, and behind it what needs more than a line."""
    readings = [f"**`{one.name}`** {one.reading}" for one in rows if one.reading]
    return "\n\n".join([_lines(map(_metric, rows)), *readings])


def _metric(one: Metric) -> str:
    labels = "; " + ", ".join(f"`{label}`" for label in one.labels) if one.labels else ""
    return f"- `{one.name}` ({one.type}{labels}): {_advised(one.means, one.to_do)}"


def _advised(text: str, to_do: str) -> str:
    if not to_do:
        return text
    return f"{text.removesuffix('.')}. {_TO_DO} {to_do}"


def _runbook(one: Alert) -> str:
    parts = [
        f"## {one.name}\n**What it means.** {one.means.strip()}",
        f"**Likely cause.** {one.cause.strip()}",
        f"**What to do.**\n{one.to_do.strip()}",
        one.more.strip(),
    ]
    return "\n\n".join(filter(None, parts))


def _lines(items: Iterator[str] | Sequence[str]) -> str:
    return "\n".join(items)


def _difference(name: str, text: str, better: str) -> Iterator[str]:
    """Yield what `make catalogue` would change in a page."""
    lines = text.splitlines(), better.splitlines()
    return difflib.unified_diff(*lines, name, f"{name} by make catalogue", lineterm="")


if __name__ == "__main__":
    sys.exit(main())
