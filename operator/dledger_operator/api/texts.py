"""Patterns for the texts of a spec that reach a container, a Secret's name or an address. Pure.

The CRDs have the same patterns (a test compares them); here they are checked again, for objects
that were stored before the pattern existed. A text that reaches a container's arguments has no
``$``: Kubernetes expands ``$(NAME)`` there to a variable, so to a Secret's key, and Spark
``${env:NAME}``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Shape:
    """A regular expression that a whole text has to match, and what to say if it does not."""

    pattern: str
    words: str

    def fits(self, text: str) -> bool:
        """Whether a text is empty or of this shape."""
        return not text or re.fullmatch(self.pattern, text, re.ASCII) is not None


STORE_URL: Final = Shape(
    r"[a-z][a-z0-9+.-]*://[A-Za-z0-9/][A-Za-z0-9._~!*'()+,=@%/-]*",
    "must be a URL such as s3://bucket/path",
)
FILE_URL: Final = Shape(
    r"file:///(backups|mnt|srv|var/backups)(/[A-Za-z0-9_][A-Za-z0-9._-]*)*",
    "must be below /backups, /mnt, /srv or /var/backups, such as file:///backups/orders",
)
"""A claim is mounted there: nowhere else, so that it covers none of the image's programs."""
ENDPOINT: Final = Shape(
    r"https?://([A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?",
    "must be an address such as http://s3.storage.svc:9000",
)
SECRET_NAME: Final = Shape(
    r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?",
    "must be the name of a Secret",
)
CLAIM_NAME: Final = Shape(
    SECRET_NAME.pattern,
    "must be the name of a PersistentVolumeClaim",
)
IMAGE: Final = Shape(
    r"[A-Za-z0-9][A-Za-z0-9._:/@-]*",
    "must be the name of an image",
)
GROUP_ID: Final = Shape(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}",
    "must be an id: letters, digits, '.', '_' and '-'",
)
