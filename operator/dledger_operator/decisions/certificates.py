"""Which certificates to issue, which authority signs them, which are trusted. Pure.

An authority is replaced in two phases, so that at every moment each node trusts the authority of
every certificate in use: first all bundles get the new one; when that has been so for long enough
(`SETTLE_S`), certificates are signed by it; when no certificate of the old one is left, and that
has been so for long enough again, its key is forgotten, and then the bundles lose it. Every step
follows from what the Secrets hold, so it may be interrupted anywhere. How long something has been
so is measured by a clock that only runs forward and begins anew with the process: then it waits
longer, never less, whatever the time of day jumps to.

The bundles are written first, always, and also into a Secret in which nobody can have a certificate
yet: a phase must not wait for the next one. A node that finds no certificate goes on with the one
it has, and one that starts waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

DAY_S: Final = 86400.0
AUTHORITY_S: Final = 730 * DAY_S
"""Life of an authority of our own: two years."""
LEAF_S: Final = 90 * DAY_S
"""Life of a certificate."""
RENEW_S: Final = LEAF_S / 3
"""With less left, a certificate is issued again."""
ROTATE_S: Final = 2 * LEAF_S
"""With less left, an authority is replaced: certificates of it would be cut short by its end."""
EXPIRING_S: Final = 14 * DAY_S
"""With less left, renewing must have failed for half of the time there was for it."""
SETTLE_S: Final = 600.0
"""After it is written, a Secret is in every running pod: kubelets take a minute or two."""
URGENT_S: Final = 120.0
"""The same where somebody waits for a certificate: a kubelet that works takes 90 s at most."""

BACKUP: Final = "backup"
COMPACTOR: Final = "compactor"
ADMIN: Final = "admin"
"""Holders of certificates besides the members, and their roles."""

REQUIRED: Final = "required"
BOTH: Final = "both"
"""Values of the peers' Secret's ``mode``: peers speak TLS alone, or plain text, too."""


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority whose key there is.

    Attributes:
        fingerprint: SHA-256 of its certificate, in hex.
        not_after_s: Its end, in Unix seconds.
    """

    fingerprint: str
    not_after_s: float


@dataclass(frozen=True, slots=True)
class Leaf:
    """A certificate with its key.

    Attributes:
        signer: Fingerprint of the authority that signed it; empty if it is none that is known.
        not_after_s: Its end, in Unix seconds.
        is_bound: Whether it says whose it is; those of before are issued again.
    """

    signer: str
    not_after_s: float
    is_bound: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the Secrets of one group hold; what is damaged in them counts as missing.

    Attributes:
        own: The authorities in the operator's own Secret, oldest first.
        external: The authority that the spec names instead, if it can be used.
        is_external: Whether the spec names one.
        bundles: What each Secret with certificates trusts: fingerprints, by the Secret's name;
            that of the peers is always among them.
        leaves: The certificates of members and of others, by holder.
        given: What the peers' Secret trusts, and was seen to trust before.
        is_bound: Whether nodes were told to believe no certificate that does not say whose it is.
    """

    own: tuple[Authority, ...] = ()
    external: Authority | None = None
    is_external: bool = False
    bundles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    leaves: Mapping[str, Leaf] = field(default_factory=dict)
    given: tuple[str, ...] = ()
    is_bound: bool = False

    @property
    def keyed(self) -> tuple[Authority, ...]:
        """The authorities that can sign, oldest first."""
        known = {one.fingerprint for one in self.own}
        external = self.external
        return self.own + ((external,) if external and external.fingerprint not in known else ())

    @property
    def trusted(self) -> tuple[str, ...]:
        """The fingerprints that any Secret trusts, or the peers' did, in order."""
        now = (each for bundle in self.bundles.values() for each in bundle)
        return tuple(dict.fromkeys((*now, *self.given)))

    @property
    def trusted_by_all(self) -> frozenset[str]:
        """The fingerprints that every Secret trusts."""
        bundles = [frozenset(bundle) for bundle in self.bundles.values()]
        return frozenset.intersection(*bundles) if bundles else frozenset()

    @property
    def used(self) -> frozenset[str]:
        """The authorities that signed a certificate there is."""
        return frozenset(leaf.signer for leaf in self.leaves.values() if leaf.signer)

    @property
    def known_to_nodes(self) -> frozenset[str]:
        """The authorities that running nodes are known to trust: certificates in use are of them.

        What is in the peers' Secret decides. Without it, others show what was in use if they are
        at one, and members were given nothing else: one of these Secrets may be another group's.
        """
        of_members = {
            leaf.signer
            for holder, leaf in self.leaves.items()
            if leaf.signer and holder not in (BACKUP, ADMIN)
        }
        is_plausible = len(self.used) == 1 and self.used >= {*self.given}
        return frozenset(of_members or (self.used if is_plausible else ()))

    def lacking(self, holders: Iterable[str]) -> tuple[str, ...]:
        """Return who has no certificate that anybody could verify."""
        return tuple(h for h in holders if h not in self.leaves or not self.leaves[h].signer)

    def all_bound(self, holders: Iterable[str]) -> bool:
        """Whether every holder has a certificate that says whose it is."""
        holders = tuple(holders)
        return not self.lacking(holders) and all(self.leaves[h].is_bound for h in holders)

    def unused(self, holders: Iterable[str]) -> frozenset[str]:
        """Return the authorities that nobody needs, if every holder has a certificate.

        Who has none in the Secret may go on with one of any authority.
        """
        if self.lacking(holders):
            return frozenset()
        own = (one.fingerprint for one in self.keyed)
        return frozenset({*self.trusted, *own} - self.used)


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    """For how many seconds something was seen to be so, by fingerprint; absent: not at all.

    Attributes:
        trusted_s: Every Secret trusts it.
        unused_s: Every holder has a certificate, and none is of it (`Held.unused`).
        bound_s: Every certificate says whose it is.
    """

    trusted_s: Mapping[str, float] = field(default_factory=dict)
    unused_s: Mapping[str, float] = field(default_factory=dict)
    bound_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What to do next.

    Attributes:
        make: Make a new authority, keep it, and decide again.
        forget: The own authorities whose keys are needed no more.
        bundle: What every Secret is to trust: fingerprints, in order.
        issue: The holders that get a new certificate.
        signer: Who signs them, and the operator's own; empty if nobody can yet.
        is_rotating: Whether certificates are on their way to another authority.
        is_bound: Whether nodes are told to believe no certificate that does not say whose it is.
    """

    make: bool = False
    forget: tuple[str, ...] = ()
    bundle: tuple[str, ...] = ()
    issue: tuple[str, ...] = ()
    signer: str = ""
    is_rotating: bool = False
    is_bound: bool = False


def course(held: Held, holders: Iterable[str], *, now_s: float, since: Since) -> Course:
    """Return what to do next.

    Args:
        held: What the Secrets hold.
        holders: Who has to have a certificate.
        now_s: The time of day, in Unix seconds; it may jump.
        since: What was seen for how long.
    """
    holders = tuple(holders)
    target = _target(held, now_s)
    if target is None and not held.is_external:
        return Course(make=True, bundle=held.trusted, is_bound=held.is_bound)
    is_urgent = any(leaf.not_after_s <= now_s for leaf in held.leaves.values())
    is_urgent = is_urgent or bool(held.lacking(holders))
    signer = _signer(held, target, since, now_s=now_s, is_urgent=is_urgent)
    issue = tuple(
        holder
        for holder in holders
        if signer and _is_due(held.leaves.get(holder), signer, target, now_s)
    )
    wanted = target.fingerprint if target else ""
    is_whole = target is not None and held.used <= {wanted} and not issue
    idle = {
        each
        for each in {*held.trusted, *(one.fingerprint for one in held.own)}
        if is_whole
        and each != wanted
        and wanted in held.trusted_by_all
        and since.unused_s.get(each, 0.0) >= SETTLE_S
    }
    keyed = tuple(one.fingerprint for one in held.keyed)
    # A key goes first: what is signed once more by an authority that a bundle lost is not trusted.
    gone = idle - set(keyed)
    known = dict.fromkeys((*held.trusted, *keyed))
    return Course(
        forget=tuple(one.fingerprint for one in held.own if one.fingerprint in idle),
        bundle=tuple(each for each in known if each not in gone),
        issue=issue,
        signer=signer.fingerprint if signer else "",
        is_rotating=target is not None and bool(held.used - {wanted}),
        # Certificates of before are read until each node has taken its new one.
        is_bound=held.is_bound or not held.trusted or since.bound_s >= SETTLE_S,
    )


def _target(held: Held, now_s: float) -> Authority | None:
    """Return the authority that is to sign everything in the end; None if it has to be made."""
    if held.is_external:
        return held.external
    lasting = [one for one in held.own if one.not_after_s - now_s > ROTATE_S]
    return lasting[-1] if lasting else None


def _signer(
    held: Held, target: Authority | None, since: Since, *, now_s: float, is_urgent: bool
) -> Authority | None:
    """Return who may sign now: an authority that every running node trusts already.

    *is_urgent*: somebody has no certificate, or one that has ended, and can only gain.
    """
    keyed = [one for one in held.keyed if one.not_after_s > now_s]
    if target is not None and _is_settled(held, target, since, SETTLE_S):
        return target
    for one in reversed(keyed):
        if one.fingerprint in held.known_to_nodes:
            return one
    if not held.trusted and held.keyed[:1] == tuple(keyed[:1]):
        # Nothing runs; or the one that all had before. If that has ended, by a clock that may be
        # wrong, nodes may go on with it, and have to hear of the next one first.
        return keyed[0] if keyed else None
    settle_s = URGENT_S if is_urgent else SETTLE_S
    return next((one for one in reversed(keyed) if _is_settled(held, one, since, settle_s)), None)


def _is_settled(held: Held, one: Authority, since: Since, settle_s: float) -> bool:
    """Whether every node trusts an authority: it was trusted before anything was signed by it."""
    print_ = one.fingerprint
    return print_ in held.known_to_nodes or since.trusted_s.get(print_, 0.0) >= settle_s


def _is_due(leaf: Leaf | None, signer: Authority, target: Authority | None, now_s: float) -> bool:
    """Whether a holder gets a certificate of *signer* now."""
    if leaf is None or not leaf.signer or not leaf.is_bound:
        return True
    if leaf.signer != signer.fingerprint:
        return signer == target
    gained_s = min(now_s + LEAF_S, signer.not_after_s) - leaf.not_after_s
    return leaf.not_after_s - now_s < RENEW_S and gained_s >= DAY_S


def next_mode(present: str, *, is_plain: bool, all_over_tls: bool) -> str:
    """Return the peers' mode: both while there are pods that may be plain, never back to that.

    Args:
        present: What the Secret says, or said when it was seen last; empty without one, or without
            this key. What is none of ours says as little.
        is_plain: Whether pods run, or are made, without certificates.
        all_over_tls: Whether every member runs with certificates and answered over TLS.
    """
    if present == REQUIRED or (present != BOTH and not is_plain):
        return REQUIRED
    return REQUIRED if all_over_tls and not is_plain else BOTH
