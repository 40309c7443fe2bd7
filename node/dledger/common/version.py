"""The version of this software, as installed."""

from importlib.metadata import version
from typing import Final

VERSION: Final = version("dledger")
