"""Tag filters: ``*``, or tags joined by ``||``; and the codes that queues store for tags."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from dledger.errors import InvalidArgument

NO_TAG = 0
MAX_TAGS = 256
_SHORT = 127
"""Characters of a tag that is remembered."""


@lru_cache(maxsize=4096)
def tag_code(tag: bytes) -> int:
    """Return the 64-bit code of a UTF-8 tag; `NO_TAG` for none. Codes are on disk: never change."""
    return int.from_bytes(blake2b(tag, digest_size=8).digest(), "little") or 1 if tag else NO_TAG


def parse_tags(expression: str) -> tuple[str, ...] | None:
    """Return the tags that a filter expression names, sorted; None if it matches everything.

    Raises:
        InvalidArgument: An empty tag between bars, or too many tags.
    """
    if expression.strip() in {"", "*"}:
        return None
    tags = {tag.strip() for tag in expression.split("||")}
    if "" in tags or any("|" in tag for tag in tags):
        raise InvalidArgument(f"filter {expression[:200]!r} must be '*' or tags joined by '||'")
    if len(tags) > MAX_TAGS:
        raise InvalidArgument(f"a filter names at most {MAX_TAGS} tags, not {len(tags)}")
    return None if "*" in tags else tuple(sorted(tags))


def tag_codes(tags: tuple[str, ...] | None) -> frozenset[int] | None:
    """Return the codes of *tags*; None: every message matches."""
    if tags is None:
        return None
    if len(tags) == 1 and len(tags[0]) <= _SHORT:
        return _codes_of_one(tags[0])
    return frozenset(map(_code_of, tags))


@lru_cache(maxsize=4096)
def _codes_of_one(tag: str) -> frozenset[int]:
    """Return what nearly all filters have, which each poll and each RECEIVE asks for."""
    return frozenset((_code_of(tag),))


def _code_of(tag: str) -> int:
    """Return the code of a tag in a filter; lone surrogates, which JSON allows, are encoded too."""
    return tag_code(tag.encode("utf-8", "surrogatepass"))
