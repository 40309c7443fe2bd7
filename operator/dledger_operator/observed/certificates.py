"""What is known of a group's certificates in a round, as a frozen value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """The certificates of a group's peers.

    Attributes:
        known: Whether the Secrets were read.
        due: Whether there is something to write.
        mode: The mode in the peers' Secret; empty without one.
        fault: Why the authority that the spec names cannot be used; empty if it can, or names none.
        expiring: What ends soon and was not renewed; empty if nothing.
        lacking: The members without a certificate in the Secret: their pods cannot start.
        authority_ends_s: When the authority in use ends, in Unix seconds; 0 if that is not known.
        peers_end_s: When the first of the members' certificates ends; 0 without any.
    """

    known: bool = False
    due: bool = False
    mode: str = ""
    fault: str = ""
    expiring: str = ""
    lacking: tuple[str, ...] = ()
    authority_ends_s: float = 0.0
    peers_end_s: float = 0.0
