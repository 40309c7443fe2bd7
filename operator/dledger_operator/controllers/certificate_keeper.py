"""The certificates of one group's peers: read, decided on, issued and written to Secrets.

What it remembers may be lost: it is read again, and what has to have been so for a while is waited
for once more. Private keys are in the Secrets and in memory, and nowhere else. Used by the group's
Reconciler.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from cryptography import x509

from dledger_operator.api import names
from dledger_operator.api.reasons import EventReason
from dledger_operator.api.spec import BrokerGroup, Manifest, PeerTls
from dledger_operator.cluster import issuing
from dledger_operator.cluster.api import ApiError
from dledger_operator.cluster.cluster import Cluster
from dledger_operator.cluster.issuing import Dates, Identity, Pair
from dledger_operator.cluster.nodes import Nodes
from dledger_operator.cluster.peer_channels import Credentials
from dledger_operator.cluster.secret_store import (
    Contents,
    Read,
    authority_secret,
    contents,
    group_of,
    identity_of,
    is_client,
    place_of,
    read,
)
from dledger_operator.controllers.certificate_news import expiring, news
from dledger_operator.decisions.certificates import (
    ADMIN,
    AUTHORITY_S,
    BACKUP,
    BOTH,
    COMPACTOR,
    REQUIRED,
    Course,
    Since,
    course,
    next_mode,
)
from dledger_operator.decisions.facts import Facts
from dledger_operator.observed.certificates import Certificates
from dledger_operator.observed.observed import Observed, Ref
from dledger_operator.resources.certificates import files_of, mounts_certificates, secret
from dledger_operator.status.status import Event

log: Final = logging.getLogger(__name__)

REREAD_S: Final = 120.0
"""Secrets are not watched: what others did to one is undone within this time."""
DECIDE_S: Final = 10.0
"""How often it is looked whether the time has come for something."""
_TOLD: Final = ("ca.crt", "mode", "group")
OWN_S: Final = 86400.0
"""The operator's own certificate is in memory alone, and costs a signature: a new one each day."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What was asked of the keeper last."""

    group: BrokerGroup
    holders: tuple[str, ...]
    is_plain: bool
    all_over_tls: bool
    refused: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Memory:
    """What was read, and since when something is so, in monotonic seconds.

    *given* has the authorities that the peers' Secret was seen to trust: nodes that run go on with
    those when it is lost. *is_required*: it said that peers speak TLS alone, which is never taken
    back, whoever deletes it.
    """

    found: Read | None = None
    given: dict[str, x509.Certificate] = field(default_factory=dict)
    contents: Contents | None = None
    contents_of: tuple[tuple[str, ...], PeerTls, tuple[str, ...]] = ((), PeerTls(), ())
    contents_from: Read | None = None
    read_at_s: float = float("-inf")
    decided_at_s: float = float("-inf")
    trusted_since_s: dict[str, float] = field(default_factory=dict)
    unused_since_s: dict[str, float] = field(default_factory=dict)
    bound_since_s: float | None = None
    is_required: bool = False
    shown: tuple[bytes, object] = (b"", "")
    shown_at_s: float = float("-inf")


class CertificateKeeper:
    """Keeps the certificates of one group.

    Args:
        cluster: Reads and writes Secrets.
        nodes: Those of the group; they are asked with the operator's certificate.
        monotonic_s: A clock that runs forward.
        now: The time of day, RFC 3339.
        post: Posts an Event on the group.
        refuse: Notes what was refused and is not tried again at once.
    """

    def __init__(
        self,
        cluster: Cluster,
        nodes: Nodes,
        *,
        monotonic_s: Callable[[], float],
        now: Callable[[], str],
        post: Callable[[BrokerGroup, Event], Awaitable[None]],
        refuse: Callable[[BrokerGroup, Ref, str], None],
    ) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._monotonic_s = monotonic_s
        self._now = now
        self._post = post
        self._refuse = refuse
        self._memory = _Memory()
        self._wanted: _Wanted | None = None
        self._view = Certificates()

    async def seen(self, observed: Observed) -> Certificates:
        """Return what is known, read again if that is some time ago."""
        wanted = self._wanted
        if wanted is None:
            return self._view
        now_s, memory = self._monotonic_s(), self._memory
        if now_s - memory.read_at_s >= REREAD_S:
            try:
                await self._read(wanted)
            except ApiError as error:
                who = wanted.group.namespace, wanted.group.name
                log.warning("group %s/%s: Secrets are not read: %s", *who, error)
        if now_s - memory.decided_at_s >= DECIDE_S:
            self._decide(wanted)
        wanted = replace(wanted, all_over_tls=self._all_over_tls(wanted.group, observed))
        if self._mode(wanted) != self._view.mode and not wanted.is_plain:
            self._view = replace(self._view, due=True)
        return self._view

    async def tend(self, facts: Facts) -> bool:
        """Bring the Secrets to what they should be; False if pods cannot be made with them.

        Raises:
            ApiError: The API server does not answer.
        """
        group, observed = facts.group, facts.observed
        if not group.has_peer_tls:
            return True
        wanted = _wanted(facts, all_over_tls=self._all_over_tls(group, observed))
        self._wanted = wanted
        if group.spec.paused or (facts.problems and not facts.is_kept):
            return names.peer_tls(group.name) not in wanted.refused
        if self._memory.found is None:
            await self._read(wanted)
        try:
            return await self._write(wanted)
        finally:
            self._decide(wanted)

    def view(self) -> Certificates:
        """Return what is known after the last `tend`."""
        return self._view

    # --- reading ---------------------------------------------------------------------------------

    async def _read(self, wanted: _Wanted) -> None:
        """Read the Secrets; what the operator may not read is as if it were not there."""
        memory = self._memory
        memory.read_at_s = self._monotonic_s()
        try:
            found = await read(self._cluster, wanted.group)
        except ApiError as error:
            if not error.refused:
                raise
            self._refuse(wanted.group, ("Secret", names.authority(wanted.group.name)), str(error))
            return
        if found != memory.found:
            memory.found = found

    def _decide(self, wanted: _Wanted) -> Course | None:
        """Return what to do next, and note what is known."""
        memory = self._memory
        if memory.found is None:
            return None
        memory.decided_at_s = self._monotonic_s()
        held = self._contents(wanted, memory.found)
        step = course(
            held.held, wanted.holders, now_s=self._now_s(), since=self._since(wanted, held)
        )
        mode = _mode_of(wanted.group, memory.found)
        memory.is_required = memory.is_required or mode == REQUIRED
        self._view = Certificates(
            known=True,
            due=step.make or bool(self._changes(wanted, held, step)),
            mode=mode,
            fault=held.fault,
            expiring=expiring(wanted.holders, held, step, now_s=self._now_s()),
            lacking=tuple(filter(_is_member, held.held.lacking(wanted.holders))),
            authority_ends_s=_ends_s(held, step.signer),
            peers_end_s=min(
                (leaf.not_after_s for h, leaf in held.held.leaves.items() if _is_member(h)),
                default=0.0,
            ),
        )
        self._show(wanted, held, step, mode)
        memory.given = {each: held.known[each] for each in held.held.given if each in step.bundle}
        return step

    def _contents(self, wanted: _Wanted, found: Read) -> Contents:
        """Return what is in the Secrets, worked out only when one of them or a wish changed."""
        memory = self._memory
        of = wanted.holders, wanted.group.spec.peer_tls, tuple(memory.given)
        if memory.contents is None or memory.contents_of != of or memory.contents_from is not found:
            memory.contents = contents(wanted.group, found, wanted.holders, memory.given)
            memory.contents_of, memory.contents_from = of, found
        return memory.contents

    def _since(self, wanted: _Wanted, held: Contents) -> Since:
        memory, now_s, secrets = self._memory, self._monotonic_s(), held.held
        for since, now in (
            (memory.trusted_since_s, secrets.trusted_by_all),
            (memory.unused_since_s, secrets.unused(wanted.holders)),
        ):
            for gone in since.keys() - now:
                del since[gone]
            for each in now:
                since.setdefault(each, now_s)
        if not secrets.all_bound(wanted.holders):
            memory.bound_since_s = None
        elif memory.bound_since_s is None:
            memory.bound_since_s = now_s
        return Since(
            trusted_s={print_: now_s - at_s for print_, at_s in memory.trusted_since_s.items()},
            unused_s={print_: now_s - at_s for print_, at_s in memory.unused_since_s.items()},
            bound_s=now_s - memory.bound_since_s if memory.bound_since_s is not None else 0.0,
        )

    def _all_over_tls(self, group: BrokerGroup, observed: Observed) -> bool:
        """Whether every pod answered over TLS; one that is being made anew has not."""
        pods = _replicas(group, observed) | _asked(group)
        return bool(pods) and pods <= self._nodes.over_tls

    def _mode(self, wanted: _Wanted) -> str:
        present = REQUIRED if self._memory.is_required else self._view.mode
        return next_mode(present, is_plain=wanted.is_plain, all_over_tls=wanted.all_over_tls)

    def _words(self, wanted: _Wanted, step: Course) -> dict[str, bytes | None]:
        """Return what nodes and clients are told beside certificates; None: no such file."""
        group = group_of(wanted.group).encode() if step.is_bound else None
        return {"mode": self._mode(wanted).encode(), "group": group}

    # --- writing ---------------------------------------------------------------------------------

    async def _write(self, wanted: _Wanted) -> bool:
        """Write what is not as it should be, keys before what they signed."""
        step, name = self._decide(wanted), names.peer_tls(wanted.group.name)
        if step is not None and step.make and names.authority(wanted.group.name) in wanted.refused:
            pass  # somebody else's: no authority can be kept, but the bundles can be mended
        elif step is not None and step.make:
            if not await self._make(wanted):
                return False
            step = self._decide(wanted)
        memory = self._memory
        if step is None or memory.contents is None or memory.found is None:
            return False
        held = memory.contents
        before = memory.found
        changes = self._changes(wanted, held, step)
        if not changes:
            return name in before.files
        files = self._issued(wanted, held, step)
        for each in changes:
            if not await self._put(wanted.group, secret(wanted.group, each, files[each])):
                return False
        for event in news(wanted.group, held, step, before, changes):
            await self._post(wanted.group, event)
        return name in memory.found.files

    def _changes(self, wanted: _Wanted, held: Contents, step: Course) -> list[str]:
        """Return the Secrets that have to be written: bundles also where nobody can sign yet."""
        found, group = self._memory.found, wanted.group
        bundle = _bundle(held, step)
        if found is None or not bundle:
            return []  # no authority is known: pods wait for their Secret
        changed = {place_of(group.name, holder)[0] for holder in step.issue}
        own, told = names.authority(group.name), self._words(wanted, step)
        for name in names.own_secrets(group.name):
            files = found.files.get(name, {})
            if name == own:
                if step.forget or (name not in found.files and held.held.own):
                    changed.add(name)
            elif {key: files.get(key) for key in _TOLD} != {"ca.crt": bundle, **told}:
                changed.add(name)
        changed -= wanted.refused
        return [name for name in names.own_secrets(group.name) if name in changed]

    def _issued(
        self, wanted: _Wanted, held: Contents, step: Course
    ) -> dict[str, Mapping[str, bytes]]:
        """Return the contents of all Secrets, with new certificates where they are due."""
        group = wanted.group
        bundle = _bundle(held, step)
        files: dict[str, dict[str, bytes]] = {name: {} for name in names.own_secrets(group.name)}
        for name in names.own_secrets(group.name)[1:]:
            told = {key: text for key, text in self._words(wanted, step).items() if text}
            files[name] |= {"ca.crt": bundle, **told}
        pairs = dict(held.pairs)
        for holder in step.issue:
            signer = held.keyed[step.signer]
            pairs[holder] = issuing.issue(signer, identity_of(group, holder), self._dates(wanted))
        for holder, pair in pairs.items():
            name, certificate, key = place_of(group.name, holder)
            files[name] |= {certificate: pair.chain, key: pair.key}
        kept = [one.fingerprint for one in held.held.own if one.fingerprint not in step.forget]
        own = authority_secret(group, (held.keyed[each] for each in kept))
        return {**files, names.authority(group.name): files_of(own)}

    async def _make(self, wanted: _Wanted) -> bool:
        """Make an authority, and keep it before anything is signed by it."""
        held, group = self._memory.contents, wanted.group
        if held is None:
            return False
        made = issuing.new_authority(group.name, self._dates(wanted))
        own = [held.keyed[one.fingerprint] for one in held.held.own]
        own_name = names.authority(group.name)
        was_there = self._memory.found is not None and own_name in self._memory.found.files
        if not await self._put(group, authority_secret(group, [*own, made])):
            return False
        if held.held.trusted:
            if not was_there:
                event = Event(EventReason.CHILD_REPAIRED, f"Secret {own_name} was missing")
                await self._post(group, event)
            message = "a new authority is made; it signs once all nodes have had time to trust it"
            await self._post(group, Event(EventReason.CERTIFICATES_ROTATED, message))
        return True

    async def _put(self, group: BrokerGroup, manifest: Manifest) -> bool:
        """Write a Secret, unless somebody else did since it was read; False if it waits."""
        name, memory = manifest["metadata"]["name"], self._memory
        if memory.found is None:
            return False
        version = memory.found.versions.get(name, "")
        if version:
            manifest = {
                **manifest,
                "metadata": {**manifest["metadata"], "resourceVersion": version},
            }
        try:
            written = await self._cluster.applied(group, manifest, known=bool(version))
        except ApiError as error:
            memory.found = None
            memory.read_at_s = float("-inf")
            if version and error.status in (404, 409):
                return False  # it was changed or deleted meanwhile, and is read again
            if not error.refused:
                raise
            self._refuse(group, ("Secret", name), str(error))
            return False
        if written is None:
            return False
        files = {**memory.found.files, name: files_of(manifest)}
        versions = {**memory.found.versions, name: written["metadata"]["resourceVersion"]}
        memory.found = replace(memory.found, files=files, versions=versions)
        return True

    # --- the operator's own certificate ----------------------------------------------------------

    def _show(self, wanted: _Wanted, held: Contents, step: Course, mode: str) -> None:
        """Give the connections to nodes a certificate that these believe."""
        channels, memory = self._nodes.channels, self._memory
        bundle = _bundle(held, step)
        now_s, plain_too = self._monotonic_s(), mode == BOTH
        if not bundle or not mode or (not step.signer and channels.credentials is not None):
            return  # what it has is as good as what the nodes have
        lent = None if step.signer else _lent(held)
        shows = step.signer or (lent.chain if lent else _newest(held))
        if shows and (memory.shown != (bundle, shows) or now_s - memory.shown_at_s >= OWN_S):
            memory.shown, memory.shown_at_s = (bundle, shows), now_s
            pair = lent or issuing.issue(
                held.keyed[step.signer or _newest(held)],
                Identity("operator", group=group_of(wanted.group)),
                self._dates(wanted),
            )
            domain = names.peer_domain(wanted.group.namespace, wanted.group.name)
            channels.credentials = Credentials(bundle, pair.chain, pair.key, plain_too, domain)
        elif channels.credentials is not None and channels.credentials.plain_too != plain_too:
            channels.credentials = replace(channels.credentials, plain_too=plain_too)

    def _now_s(self) -> float:
        return datetime.fromisoformat(self._now()).timestamp()

    def _dates(self, wanted: _Wanted) -> Dates:
        """Return when a certificate of now begins and from when it counts.

        The group's beginning is the API server's time, which no clock of ours is believed against;
        neither is an authority of the group from the future.
        """
        created = wanted.group.created_at
        since_s = datetime.fromisoformat(created).timestamp() if created else self._now_s()
        own = self._memory.contents.held.own if self._memory.contents else ()
        made_s = max((one.not_after_s - AUTHORITY_S for one in own), default=since_s)
        return Dates(since_s, max(self._now_s(), since_s, made_s))


def _wanted(facts: Facts, *, all_over_tls: bool) -> _Wanted:
    group, observed = facts.group, facts.observed
    members = sorted({*_replicas(group, observed), *_asked(group), *facts.wanted})
    built = observed.children.get(("StatefulSet", group.name))
    is_plain = built is not None and (not mounts_certificates(built) or bool(facts.older))
    secrets = names.own_secrets(group.name)
    refused = frozenset(name for name in secrets if ("Secret", name) in observed.refusals)
    return _Wanted(group, (*members, BACKUP, COMPACTOR, ADMIN), is_plain, all_over_tls, refused)


def _bundle(held: Contents, step: Course) -> bytes:
    """Return what every Secret is to trust."""
    return issuing.pem(held.known[each] for each in step.bundle)


def _lent(held: Contents) -> Pair | None:
    """Return the administrator's certificate: nodes believe it while nobody can sign."""
    leaf = held.held.leaves.get(ADMIN)
    return held.pairs[ADMIN] if leaf is not None and leaf.signer else None


def _newest(held: Contents) -> str:
    """Return the authority that signs next: a node answers as soon as it trusts it."""
    return held.held.keyed[-1].fingerprint if held.held.keyed else ""


def _asked(group: BrokerGroup) -> set[str]:
    return {names.pod(group.name, ordinal) for ordinal in range(group.spec.replicas)}


def _replicas(group: BrokerGroup, observed: Observed) -> set[str]:
    return {name for name in observed.pods if names.is_replica(group.name, name)}


def _mode_of(group: BrokerGroup, found: Read) -> str:
    return found.files.get(names.peer_tls(group.name), {}).get("mode", b"").decode(errors="replace")


def _is_member(holder: str) -> bool:
    return not is_client(holder)


def _ends_s(held: Contents, signer: str) -> float:
    used = [signer] if signer else sorted(held.held.used)
    return min((issuing.ends_s(held.known[each]) for each in used), default=0.0)
