"""The last spec that was acted on, kept beside the group: what is cared for while one is refused.

A ControllerRevision, as StatefulSets keep their templates in: its data can never be changed. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dledger_operator.api import names
from dledger_operator.api.spec import BrokerGroup, Json, Manifest
from dledger_operator.resources.common import digest, metadata

KIND: Final = "ControllerRevision"


def accepted_revision(group: BrokerGroup, *, image: str) -> Manifest:
    """Return the object that keeps the spec of *group*, named after its contents.

    *image* is the one its nodes run while the spec names none; empty if it always named one.
    """
    data = {"spec": group.raw_spec, "image": image}
    return {
        "apiVersion": "apps/v1",
        "kind": KIND,
        "metadata": metadata(group, names.accepted(group.name, digest(data))),
        "data": data,
        "revision": group.generation,
    }


def accepted_spec(children: Iterable[Manifest]) -> Json | None:
    """Return the newest spec that was kept; None if none was."""
    spec: Json | None = _newest(children).get("spec")
    return spec


def accepted_image(children: Iterable[Manifest]) -> str | None:
    """Return the image that was recorded with it; None without a record."""
    newest = _newest(children)
    return str(newest["image"]) if "image" in newest else None


def _newest(children: Iterable[Manifest]) -> Json:
    kept = [child for child in children if child["kind"] == KIND]
    newest = max(kept, key=lambda child: int(child["revision"]), default=None)
    data: Json = newest["data"] if newest else {}
    return data
