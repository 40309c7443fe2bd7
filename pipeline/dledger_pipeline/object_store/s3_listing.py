"""A page of a listing, as S3's ListObjectsV2 answers. Pure.

The answer is a stranger's until it was read: without a document type, so that no entity grows, and
with the names below the prefix that was asked for. Used by `s3_objects` only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from xml.etree import ElementTree as ET

import pyarrow as pa

from dledger_pipeline.object_store.stored import Listed

_ROOT: Final = "ListBucketResult"


class NotAListing(ValueError):
    """The answer is something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a page has.

    Attributes:
        objects: What is below the prefix, by names without it.
        folders: The first parts of longer names, if the listing was asked to join them.
        token: What to ask the next page by; empty: this was the last.
    """

    objects: list[Listed]
    folders: list[str]
    token: str


def parse_page(body: pa.Buffer, prefix: str) -> Page:
    """Return a page of the names below *prefix*, which is empty or ends with a slash.

    Raises:
        NotAListing: It is none, or not of these names.
    """
    try:
        text = body.to_pybytes().decode()
        if "<!" in text:  # names are escaped, so this is a document type or a comment
            raise NotAListing("it has declarations")
        root = ET.fromstring(text)  # noqa: S314 - without a document type nothing grows
        if _tag(root) != _ROOT:
            raise NotAListing("another document")
        objects = [
            Listed(
                name=_below(_text(each, "Key"), prefix),
                size_bytes=int(_text(each, "Size")),
                modified_s=datetime.fromisoformat(_text(each, "LastModified")).timestamp(),
            )
            for each in _children(root, "Contents")
            if not _text(each, "Key").endswith("/")  # a folder, as consoles make them
        ]
        folders = [
            _below(_text(each, "Prefix"), prefix).removesuffix("/")
            for each in _children(root, "CommonPrefixes")
        ]
        more = _text(root, "IsTruncated") == "true"
        token = _text(root, "NextContinuationToken") if more else ""
    except (ValueError, OverflowError, ET.ParseError) as error:
        raise NotAListing("not a listing") from error
    return Page(objects=objects, folders=folders, token=token)


def _children(of: ET.Element, name: str) -> Iterator[ET.Element]:
    return (child for child in of if _tag(child) == name)


def _text(of: ET.Element, name: str) -> str:
    """Return the text of a child. Raises NotAListing if it has none."""
    for child in _children(of, name):
        return child.text or ""
    raise NotAListing(f"without {name}")


def _tag(of: ET.Element) -> str:
    return of.tag.rpartition("}")[2]


def _below(key: str, prefix: str) -> str:
    if not key.startswith(prefix):
        raise NotAListing("a name from elsewhere")
    return key[len(prefix) :]
