"""The catalogue and the code have the same reasons and Events, and the documents are up to date.

What the code can say is read from it by `ast`: the status and reason that stand beside each other,
what holds back or ends an operation or a backup, and each Event that is posted. Metrics and alerts
are compared in `test_monitoring.py`.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger_operator.api.reasons import EventReason, Reason
from dledger_operator.decisions.checks import _GRAVITY
from dledger_operator.decisions.facts import facts_of
from dledger_operator.status import backup_status, operation_status
from dledger_operator.status.status import status
from scripts.catalogue import GROUP, KINDS, SOURCE, Shown, load, main, sections
from tests.house.sources import ROOT
from tests.operator.samples import NOW, bootstrapped, converged

OPERATOR = ROOT / "operator/dledger_operator"
CATALOGUE = load()
STATUSES = {"True", "False", "Unknown"}

Told = set[tuple[str, str]]
"""Statuses and reasons, whichever the condition is."""


def _functions(*names: str) -> Iterator[ast.FunctionDef]:
    for name in names:
        tree = ast.parse((OPERATOR / f"{name}.py").read_text("utf-8"))
        yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _member(node: ast.AST, of: str) -> str | None:
    """Return the name of a member, as ``READY`` of ``Reason.READY``; None if it is none."""
    match node:
        case ast.Attribute(value=ast.Name(id=name), attr=attr) if name == of:
            return attr
    return None


def _mentioned(node: ast.AST, of: str) -> list[str]:
    found = (_member(each, of) for each in ast.walk(node))
    return [each for each in found if each]


def _beside(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Yield each status that is followed by a reason; by a variable, all reasons left over."""
    direct: list[tuple[str, str]] = []
    of_a_variable: list[str] = []
    for each in ast.walk(function):
        if not isinstance(each, ast.Tuple):
            continue
        for one, after in zip(each.elts, each.elts[1:], strict=False):
            if not (isinstance(one, ast.Constant) and one.value in STATUSES):
                continue
            if reason := _member(after, "Reason"):
                direct.append((str(one.value), reason))
            elif isinstance(after, ast.Name):
                of_a_variable.append(str(one.value))
    named = {reason for _, reason in direct}
    left = [reason for reason in _mentioned(function, "Reason") if reason not in named]
    yield from direct
    yield from ((said, reason) for said in of_a_variable for reason in left)


def _calls(name: str, functions: Iterator[ast.FunctionDef]) -> Iterator[ast.Call]:
    for function in functions:
        for each in ast.walk(function):
            match each:
                case ast.Call(func=ast.Name(id=called), args=[_, *_]) if called == name:
                    yield each


def _of_calls(name: str, said: str, *modules: str) -> Told:
    reasons = (_member(call.args[0], "Reason") for call in _calls(name, _functions(*modules)))
    return {(said, reason) for reason in reasons if reason}


def _told(*modules: str) -> Told:
    return {pair for function in _functions(*modules) for pair in _beside(function)}


def _of_groups() -> Told:
    histories = ("backup_history", "compaction_history")
    parts = ("conditions", "degraded", "scaling_status", *histories, "departure")
    of_specs = {("True", "ACCEPTED"), *(("False", reason.name) for reason in _GRAVITY)}
    return _told(*(f"status/{part}" for part in parts)) | of_specs


def _of_backups() -> Told:
    found = _told("status/backup_status") | _blocked("decisions/backups", "decisions/log_jobs")
    # A store of its own is never right later, whether it is wrong or not built yet.
    of_stores = {"INVALID_SPEC", *_named_in("decisions/checks", "store_problems")}
    return found | {("False", reason) for reason in of_stores}


def _blocked(*modules: str) -> Told:
    """Return what the Complete of an object is while no Job is made for it, or can be."""
    found = set()
    for call in _calls("BlockedReason", _functions(*modules)):
        is_final = any(each.arg == "final" for each in call.keywords)
        if reason := _member(call.args[0], "Reason"):
            found.add(("False" if is_final else "Unknown", reason))
    return found


def _named_in(module: str, function: str) -> list[str]:
    (found,) = (each for each in _functions(module) if each.name == function)
    return _mentioned(found, "Reason")


def _of_operations() -> Told:
    decided = ("decisions/operations", "decisions/forcing", "decisions/rounds")
    return (
        _told("status/operation_status")
        | _blocked("decisions/rounds", "decisions/log_jobs")
        | _of_calls("Waits", "Unknown", *decided)
        | _of_calls("Rejected", "False", *decided)
    )


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (GROUP, _of_groups()),
        ("BrokerBackup", _of_backups()),
        ("BrokerOperation", _of_operations()),
    ],
    ids=[GROUP, "BrokerBackup", "BrokerOperation"],
)
def test_each_reason_has_every_status_that_it_comes_with_and_no_other(
    kind: str, said: Told
) -> None:
    """Who looks up a reason of an operation must not find that of a group alone."""
    shown = {
        (each.status, Reason(one.name).name)
        for one in CATALOGUE.reasons
        for each in one.shown
        if each.of == kind
    }

    assert shown == said


def test_every_reason_is_there_once_in_the_order_of_the_code() -> None:
    """Those of conditions and those of Events."""
    assert [one.name for one in CATALOGUE.reasons] == list(Reason)
    assert [one.name for one in CATALOGUE.events] == list(EventReason)


def test_every_condition_is_there_in_the_order_in_which_it_is_written() -> None:
    """The other two kinds have one of their own; a status is shown of what there is."""
    written = status(facts_of(bootstrapped(), converged(bootstrapped())), now=NOW)["conditions"]

    assert [(one.name, one.of) for one in CATALOGUE.conditions] == [
        *((row["type"], GROUP) for row in written),
        (backup_status.CONDITION, "BrokerBackup"),
        (operation_status.CONDITION, "BrokerOperation"),
    ]
    known = {(one.name, one.of) for one in CATALOGUE.conditions}
    shown = {(each.condition, each.of) for one in CATALOGUE.reasons for each in one.shown}
    assert shown == known


def test_what_is_not_well_says_what_to_do() -> None:
    """Reasons that are not those of a calm group, and Events that are warnings."""
    well = {Shown(one.name, str(one.well), one.of) for one in CATALOGUE.conditions}

    assert [one.name for one in CATALOGUE.reasons if {*one.shown} - well and not one.to_do] == []
    assert [one.name for one in CATALOGUE.events if one.warning and not one.to_do] == []


def test_the_events_that_are_warnings_are_those_of_the_code() -> None:
    """`kubectl get events --field-selector type=Warning` shows them, and no others."""
    warnings, others, mentioned = set[str](), set[str](), set[str]()
    for path in sorted(OPERATOR.rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        mentioned |= set(_mentioned(tree, "EventReason"))
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            reason = _member(call.args[0], "EventReason") if call.args else None
            if reason is not None:
                is_warning = any(each.arg == "warning" for each in call.keywords)
                (warnings if is_warning else others).add(reason)

    told = {EventReason(one.name).name for one in CATALOGUE.events if one.warning}
    assert told == warnings
    assert not warnings & others
    assert mentioned == {each.name for each in EventReason}


def test_the_documents_are_those_of_the_catalogue() -> None:
    """`make catalogue` was run after the last change of it."""
    checked = subprocess.run(
        [sys.executable, "-m", "scripts.catalogue", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a place with the catalogue, the CRDs and the documents alone."""
    schemas = (f"crds/{kind.lower()}.yaml" for kind in KINDS)
    for name in ("docs/catalogue.yaml", *schemas, *sections(CATALOGUE)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_a_change_of_the_catalogue_is_shown_then_written(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was written by hand stays."""
    source, page = copy / "docs/catalogue.yaml", copy / "docs/operator.md"
    before = page.read_text("utf-8")
    was, now = "Writes are taken: a majority follows one leader.", "Writes are well."
    assert source.read_text("utf-8").count(was) == 1
    source.write_text(source.read_text("utf-8").replace(was, now), "utf-8")

    stale = main(["--check"], root=copy)
    shown = capsys.readouterr().out
    untouched = page.read_text("utf-8") == before
    written = main([], root=copy)

    assert (stale, untouched, written, main(["--check"], root=copy)) == (1, True, 0, 0)
    assert f"+- `Available` (True when all is well): {now}" in shown
    assert "-- `Available`" in shown
    assert now in page.read_text("utf-8")
    assert _by_hand(page.read_text("utf-8")) == _by_hand(before)


def test_each_field_of_a_status_is_in_the_document(copy: Path) -> None:
    """A new one comes there by `make catalogue`; one without a description is refused."""
    schema, page = copy / "crds/brokergroup.yaml", copy / "docs/operator.md"
    was = ", description: Pods that are ready."
    assert schema.read_text("utf-8").count(was) == 1
    schema.write_text(schema.read_text("utf-8").replace(was, ", description: New."), "utf-8")

    assert main([], root=copy) == 0
    assert "- `readyReplicas` (integer): New.\n" in page.read_text("utf-8")

    schema.write_text(schema.read_text("utf-8").replace(", description: New.", ""), "utf-8")
    with pytest.raises(ValueError, match=r"^readyReplicas of a status has no description"):
        main([], root=copy)


def _by_hand(page: str) -> str:
    part = r"<!-- (.*?): written by.*?-->.*?<!-- end of \1 -->"
    return re.sub(part, "", page, flags=re.DOTALL)


def test_a_page_that_lost_a_place_is_named(copy: Path) -> None:
    """Or its list would be missing without a word."""
    page = copy / "docs/runbooks.md"
    page.write_text(page.read_text("utf-8").replace("<!-- end of runbooks -->\n", ""), "utf-8")

    with pytest.raises(ValueError, match="no place for runbooks"):
        main([], root=copy)


def test_what_the_catalogue_cannot_have_is_refused(tmp_path: Path) -> None:
    """A key that is mistyped would be left out of the documents."""
    text = SOURCE.read_text("utf-8")
    for good, bad in (("    to_do: ", "    todo: "), ("Ready=True", "Ready=Yes")):
        other = tmp_path / "catalogue.yaml"
        other.write_text(text.replace(good, bad, 1), "utf-8")

        with pytest.raises((TypeError, ValueError), match=r"todo|Ready=Yes"):
            load(other)
