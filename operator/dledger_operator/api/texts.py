"""What the texts of a spec may look like that reach a container, a Secret's name or an address.

Pure. Each is the same rule in the CRDs (a test compares them), and again here for objects that were
stored before the rule. A text that reaches a container's arguments has no ``$``: for ``$(NAME)``
there Kubernetes puts the value of a variable, so of a Secret's key, and Spark that of its own for
``${env:NAME}``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Shape:
    """A regular expression that a whole text has to match, and the words for it."""

    pattern: str
    words: str

    def fits(self, text: str) -> bool:
        """Whether a text is empty or of this shape."""
        return not text or re.fullmatch(self.pattern, text, re.ASCII) is not None


STORE_URL: Final = Shape(
    r"[a-z][a-z0-9+.-]*://[A-Za-z0-9/][A-Za-z0-9._~!*'()+,=@%/-]*",
    "must be a URL such as s3://bucket/path",
)
ENDPOINT: Final = Shape(
    r"https?://([A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?",
    "must be an address such as http://s3.storage.svc:9000",
)
SECRET_NAME: Final = Shape(
    r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?",
    "must be the name of a Secret",
)
IMAGE: Final = Shape(
    r"[A-Za-z0-9][A-Za-z0-9._:/@-]*",
    "must be the name of an image",
)
GROUP_ID: Final = Shape(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}",
    "must be an id: letters, digits, '.', '_' and '-'",
)
