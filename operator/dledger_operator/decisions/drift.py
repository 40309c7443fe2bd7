"""How a child differs from what it should be, and who made it so. Pure; asked by plans.

A child's spec is wholly the group's: what others change in it, remove from it or add to it is
undone. What the API server fills in is not theirs, and nobody owns it; so an addition is told from
a default by the owners of fields (``metadata.managedFields``, in the form of Kubernetes'
structured-merge-diff). Labels, annotations and finalizers of others stay, and so does a wish to
restart.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dledger_operator.api import names, quantity
from dledger_operator.api.spec import Json, Manifest

_NOT_OURS: Final = frozenset({"apiVersion", "kind", "metadata", "status"})
"""Roots of a manifest that are not the group's alone; ours in metadata are compared by value."""
_WISHES: Final = frozenset({f"spec.template.metadata.annotations[{names.RESTARTED_AT}]"})
"""What ``kubectl rollout restart`` writes: it asks for something, and breaks nothing."""
_OWNERS: Final = "metadata.ownerReferences"
"""An object without them is adopted, which is no repair."""
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Drift:
    """A field that is not as it should be.

    Attributes:
        path: Such as ``spec.selector[oops]``.
        writer: The field manager that owns it; empty if the API server does not tell.
    """

    path: str
    writer: str = ""

    def __str__(self) -> str:
        """Return both, for an Event."""
        return f"{self.path} (by {self.writer})" if self.writer else self.path


def drifts(present: Manifest, wanted: Manifest) -> tuple[Drift, ...]:
    """Return what others added to a child, or changed or removed in it; by path."""
    paths = differences(present, wanted)
    changed = {path: Drift(path) for path in paths if not path.startswith(_OWNERS)}
    for entry in present["metadata"].get("managedFields") or ():
        if entry["manager"] == names.MANAGER:
            continue
        for path in _owned(entry["fieldsV1"], present, wanted, ""):
            changed[path] = Drift(path, entry["manager"])
    return tuple(changed[path] for path in sorted(changed))


def correction(present: Manifest, wanted: Manifest) -> Manifest:
    """Return the merge patch (RFC 7396) that undoes what others did to a child's spec.

    It fits the version of the object that was seen only. Lists are replaced as a whole.
    """
    patch = _patch(present, wanted, "", additions(present, wanted))
    metadata = wanted["metadata"]
    kept = {key: metadata[key] for key in ("labels", "annotations") if key in metadata}
    version = present["metadata"].get("resourceVersion", "")
    return {**patch, "metadata": {**kept, "resourceVersion": version}}


def additions(present: Manifest, wanted: Manifest) -> frozenset[str]:
    """Return the paths that somebody owns, our own corrections included, and that are not wanted.

    A field with another value than the wanted one counts, too.
    """
    entries = present["metadata"].get("managedFields") or ()
    return frozenset(
        path for entry in entries for path in _owned(entry["fieldsV1"], present, wanted, "")
    )


def others_fields(metadata: Json) -> list[Manifest]:
    """Return the entries of managedFields that `drifts` and `correction` read; most have none.

    That is without what we applied ourselves, statuses, and metadata: they are large.
    """
    found = []
    for entry in metadata.get("managedFields") or ():
        is_applied_by_us = entry.get("manager") == names.MANAGER and entry["operation"] == "Apply"
        if is_applied_by_us or entry.get("subresource") == "status":
            continue
        fields = entry.get("fieldsV1") or {}
        kept = {key: fields[key] for key in fields if key.removeprefix("f:") not in _NOT_OURS}
        if kept:
            found.append({"manager": str(entry.get("manager") or ""), "fieldsV1": kept})
    return found


def includes(present: Any, wanted: Any) -> bool:
    """Whether *present* has everything that *wanted* asks for; see `differences`."""
    return next(differences(present, wanted), None) is None


def differences(present: Any, wanted: Any, path: str = "") -> Iterator[str]:
    """Yield the paths at which *present* does not have what *wanted* asks for.

    Maps may have more keys, since the API server fills in defaults; lists have the same length.
    Quantities compare by value: the API server rewrites ``1000m`` as ``1``.
    """
    if present == wanted:  # as most are, in whole or in parts, and Python tells at once
        return
    if isinstance(wanted, Mapping):
        if not isinstance(present, Mapping):
            yield path
            return
        for key, value in wanted.items():
            yield from differences(present.get(key), value, _key(path, key))
    elif isinstance(wanted, list | tuple):
        if not isinstance(present, list | tuple) or len(present) != len(wanted):
            yield path
            return
        for at, (one, other) in enumerate(zip(present, wanted, strict=True)):
            yield from differences(one, other, f"{path}[{at}]")
    elif not _same(present, wanted):
        yield path


def _same(present: Any, wanted: Any) -> bool:
    if present == wanted or (present is None and wanted == ""):
        return True  # it leaves out empty texts; but what is false may be true by default
    return isinstance(present, str) and quantity.same(present, wanted)


def _owned(fields: Json, present: Any, wanted: Any, path: str) -> Iterator[str]:
    """Yield the outermost paths of *fields* that are there and not wanted; see `additions`."""
    for key, below in fields.items():
        if key == ".":
            continue
        one, other = _below(present, key), _below(wanted, key)
        at = _told(path, key, present)
        if one is _MISSING or at in _WISHES:
            continue
        if other is _MISSING:
            yield at
        elif any(each != "." for each in below):
            yield from _owned(below, one, other, at)
        elif not (includes(one, other) and includes(other, one)):
            yield at  # owned as a whole, as selectors are


def _below(value: Any, key: str) -> Any:
    """Return the part of a value that a key of fieldsV1 names."""
    kind, _, name = key.partition(":")
    if kind == "f":
        return value.get(name, _MISSING) if isinstance(value, Mapping) else _MISSING
    at = _place(value, kind, name)
    return _MISSING if at is None else value[at]


def _place(value: Any, kind: str, name: str) -> int | None:
    """Return which item of a list is meant: by its keys, its value, or its place.

    A wanted item may lack a key that has a default.
    """
    if not isinstance(value, Sequence) or isinstance(value, str):
        return None
    said = json.loads(name)
    if kind == "i":
        return said if said < len(value) else None
    for at, item in enumerate(value):
        if kind == "v" and item == said:
            return at
        if kind == "k" and isinstance(item, Mapping):
            given = {key: item[key] for key in said if key in item}
            if given and all(said[key] == given[key] for key in given):
                return at
    return None


def _told(path: str, key: str, present: Any) -> str:
    kind, _, name = key.partition(":")
    return _key(path, name) if kind == "f" else f"{path}[{_place(present, kind, name)}]"


def _key(path: str, key: str) -> str:
    if not key.isidentifier():
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def _is_below(path: str, other: str) -> bool:
    return path == other or path.startswith((f"{other}.", f"{other}["))


def _patch(present: Json, wanted: Json, path: str, owned: frozenset[str]) -> Manifest:
    """Return the keys of a map to set, or to remove (None): those in *owned*, or below one."""
    patch: Manifest = {}
    is_whole = any(_is_below(path, each) for each in owned)
    for key, value in wanted.items():
        at, there = _key(path, key), present.get(key)
        if not path and key in _NOT_OURS:
            continue
        if isinstance(value, Mapping) and isinstance(there, Mapping):
            if below := _patch(there, value, at, owned):
                patch[key] = below
        elif not includes(there, value) or any(_is_below(each, at) for each in owned):
            patch[key] = value
    gone = (k for k in present if k not in wanted and (is_whole or _key(path, k) in owned))
    return patch | dict.fromkeys(gone)
