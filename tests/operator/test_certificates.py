"""Which certificates are issued, by whom, and whom nodes trust: decided, driven and interrupted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dledger_operator.decisions.certificates import (
    AUTHORITY_S,
    BOTH,
    DAY_S,
    LEAF_S,
    REQUIRED,
    ROTATE_S,
    SETTLE_S,
    URGENT_S,
    Authority,
    Course,
    Held,
    Leaf,
    Since,
    course,
    next_mode,
)

NOW_S = 1_900_000_000.0
MEMBERS = ("orders-0", "orders-1", "orders-2")
CLIENTS = ("backup", "admin")
PEERS = "peers"
SECRETS = (PEERS, *CLIENTS)


@dataclass
class Process:
    """What one operator process has seen, by a clock that runs forward."""

    trusted_since_s: dict[str, float] = field(default_factory=dict)
    unused_since_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Sees:
    """What a node, or a client, has of a Secret: whom it trusts, and who signed its certificate."""

    trusts: frozenset[str]
    signer: str
    at_s: float


class Rotations(RuleBasedStateMachine):
    """Secrets, operators and nodes: interrupted anywhere, with a clock that jumps."""

    def __init__(self) -> None:
        super().__init__()
        self.own: list[Authority] = []
        self.external: Authority | None = None
        self.trusted: dict[str, tuple[str, ...]] = {}
        self.leaves: dict[str, Leaf] = {}
        self.process = Process()
        self.runs_s = 0.0
        self.wall_s = NOW_S
        self.made = 0
        self.seen: dict[str, Sees] = {}
        self.rounds(writes=99)

    # --- what the operator does ------------------------------------------------------------------

    def _held(self) -> Held:
        return Held(
            own=tuple(self.own),
            external=self.external,
            is_external=self.external is not None,
            bundles={PEERS: (), **self.trusted},
            leaves=dict(self.leaves),
        )

    def _since(self, held: Held) -> Since:
        for since, now in (
            (self.process.trusted_since_s, held.trusted_by_all),
            (self.process.unused_since_s, held.unused((*MEMBERS, *CLIENTS))),
        ):
            for gone in since.keys() - now:
                del since[gone]
            for each in now:
                since.setdefault(each, self.runs_s)
        return Since(
            trusted_s={p: self.runs_s - at for p, at in self.process.trusted_since_s.items()},
            unused_s={p: self.runs_s - at for p, at in self.process.unused_since_s.items()},
        )

    def _course(self) -> Course:
        held = self._held()
        return course(held, (*MEMBERS, *CLIENTS), now_s=self.wall_s, since=self._since(held))

    @rule(writes=st.integers(min_value=0, max_value=6))
    def rounds(self, writes: int) -> None:
        """Do a round; the operator dies after so many writes."""
        step = self._course()
        if step.make:
            if writes == 0:
                return
            self._make()
            writes -= 1
            step = self._course()
        assert not step.make
        if step.forget and writes > 0:
            self.own = [one for one in self.own if one.fingerprint not in step.forget]
            writes -= 1
        for secret in SECRETS:
            if writes <= 0:
                return
            changed = self._write(secret, step)
            writes -= changed

    def _make(self) -> None:
        self.made += 1
        self.own.append(Authority(f"own-{self.made}", self.wall_s + AUTHORITY_S))

    def _write(self, secret: str, step: Course) -> bool:
        holders = MEMBERS if secret == PEERS else (secret,)
        before = self.trusted.get(secret), {h: self.leaves.get(h) for h in holders}
        ends_s = {one.fingerprint: one.not_after_s for one in self._held().keyed}
        self.trusted[secret] = step.bundle
        for holder in holders:
            if holder in step.issue:
                end_s = min(self.wall_s + LEAF_S, ends_s[step.signer])
                self.leaves[holder] = Leaf(step.signer, end_s)
        return before != (self.trusted[secret], {h: self.leaves.get(h) for h in holders})

    @rule()
    def restarts(self) -> None:
        """Another process goes on; what this one saw is forgotten."""
        self.process = Process()

    # --- what happens to it ----------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1.0, 60.0, 300.0, SETTLE_S + 200]))
    def time_passes(self, seconds: float) -> None:
        """Time passes; each node has what was written a while ago by then."""
        self.runs_s += seconds
        self.wall_s += seconds
        for holder in (*MEMBERS, *CLIENTS):
            if self.seen.get(holder) is None or self.runs_s - self.seen[holder].at_s > URGENT_S / 2:
                self.refreshes(holder)

    @rule(days=st.sampled_from([-4000.0, -400.0, -1.0, 1.0, 61.0, 400.0, 800.0, 4000.0]))
    def the_clock_jumps(self, days: float) -> None:
        """The time of day is another."""
        self.wall_s += days * DAY_S

    @rule(holder=st.sampled_from((*MEMBERS, *CLIENTS)))
    def refreshes(self, holder: str) -> None:
        """A kubelet projects the Secret as it is; a damaged pair leaves the one in use."""
        secret = holder if holder in CLIENTS else PEERS
        if secret not in self.trusted:
            return
        trusts, leaf = frozenset(self.trusted[secret]), self.leaves.get(holder)
        before = self.seen.get(holder)
        if leaf is not None:
            self.seen[holder] = Sees(trusts, leaf.signer, self.runs_s)
        elif before is not None:
            self.seen[holder] = Sees(trusts, before.signer, self.runs_s)

    @rule(holder=st.sampled_from((*MEMBERS, *CLIENTS)))
    def a_certificate_is_damaged(self, holder: str) -> None:
        """Its holder goes on with the one it has."""
        self.leaves.pop(holder, None)

    @precondition(lambda self: self._is_steady())
    @rule(which=st.sets(st.sampled_from(("ca", *SECRETS)), min_size=1, max_size=3))
    def secrets_are_deleted(self, which: set[str]) -> None:
        """Nodes go on with what they have; while one is left, somebody knows their authority."""
        if "ca" in which:
            self.own = []
        for secret in which - {"ca"}:
            del self.trusted[secret]
            for holder in MEMBERS if secret == PEERS else (secret,):
                self.leaves.pop(holder, None)

    @precondition(lambda self: self._is_steady())
    @rule(uses=st.booleans())
    def the_spec_names_another_authority(self, uses: bool) -> None:
        """Somebody else's, a new one of theirs, or the operator's own again."""
        self.made += 1
        end_s = self.wall_s + AUTHORITY_S
        self.external = Authority(f"theirs-{self.made}", end_s) if uses else None

    def _is_steady(self) -> bool:
        """Whether every key of a certificate in use is there, and nothing else is under way."""
        held = self._held()
        everyone = {*MEMBERS, *CLIENTS}
        signers = {leaf.signer for leaf in self.leaves.values()}
        return (
            self.leaves.keys() == everyone
            and set(self.trusted) == set(SECRETS)
            and len(signers) == 1
            and all(set(bundle) == signers for bundle in self.trusted.values())
            and {one.fingerprint for one in held.keyed} == signers
        )

    # --- what holds ------------------------------------------------------------------------------

    @invariant()
    def everyone_trusts_every_certificate_in_use(self) -> None:
        """Of nodes and clients, whatever they have seen last."""
        for one in self.seen.values():
            for other in self.seen.values():
                assert other.signer in one.trusts, (one, other)

    @invariant()
    def what_is_in_use_is_trusted_by_every_secret(self) -> None:
        """So that a pod that starts now is trusted and trusts."""
        for leaf in self.leaves.values():
            for bundle in self.trusted.values():
                assert leaf.signer in bundle

    def teardown(self) -> None:
        """With a clock that is right, everything comes to one authority, and rests."""
        for _ in range(12):
            self.rounds(99)
            self.time_passes(SETTLE_S + 200)
            self.everyone_trusts_every_certificate_in_use()
        assert self._is_steady()
        step = self._course()
        assert (step.make, step.forget, step.issue) == (False, (), ())
        assert step.bundle == self.trusted[PEERS]


TestRotations = Rotations.TestCase
TestRotations.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)


def _steady(left_s: float = LEAF_S, authority_s: float = AUTHORITY_S) -> Held:
    leaf = Leaf("a", NOW_S + left_s)
    return Held(
        own=(Authority("a", NOW_S + authority_s),),
        bundles=dict.fromkeys(SECRETS, ("a",)),
        leaves=dict.fromkeys((*MEMBERS, *CLIENTS), leaf),
    )


def _next(held: Held, since: Since | None = None) -> Course:
    return course(held, (*MEMBERS, *CLIENTS), now_s=NOW_S, since=since or Since())


def test_a_new_group_gets_everything_at_once() -> None:
    """No node trusts anything yet, so nobody has to be waited for."""
    assert _next(Held()).make

    step = _next(Held(own=(Authority("a", NOW_S + AUTHORITY_S),)))

    assert (step.signer, step.issue) == ("a", (*MEMBERS, *CLIENTS))
    assert step.bundle == ("a",)


def test_an_authority_that_has_ended_by_one_clock_may_be_what_all_nodes_trust() -> None:
    """Found by the rotations above: its Secret was all that was left when the clock leapt."""
    ended, new = Authority("a", NOW_S - DAY_S), Authority("b", NOW_S + AUTHORITY_S)

    step = _next(Held(own=(ended, new)))
    later = _next(
        Held(own=(ended, new), bundles=dict.fromkeys(SECRETS, step.bundle)),
        Since(trusted_s={"a": URGENT_S, "b": URGENT_S}),
    )

    assert (step.signer, step.bundle) == ("", ("a", "b"))
    assert later.signer == "b"


def test_a_certificate_is_renewed_when_a_third_of_its_life_is_left() -> None:
    """By the same authority."""
    assert _next(_steady(LEAF_S / 3 + 1)).issue == ()

    step = _next(_steady(LEAF_S / 3 - 1))

    assert (step.signer, step.issue) == ("a", (*MEMBERS, *CLIENTS))


def test_a_certificate_that_its_authority_cuts_short_is_not_renewed_again_and_again() -> None:
    """A foreign authority may live no longer than a certificate."""
    held = _steady(20 * DAY_S)
    short = replace(held, own=(), external=Authority("a", NOW_S + 20 * DAY_S), is_external=True)

    assert _next(short).issue == ()


def test_a_new_member_gets_a_certificate_of_the_authority_in_use() -> None:
    """Also from an operator that has just started."""
    held = _steady()
    step = course(held, (*MEMBERS, "orders-3"), now_s=NOW_S, since=Since())

    assert (step.signer, step.issue) == ("a", ("orders-3",))


def test_an_authority_is_replaced_before_its_end_and_first_only_trusted() -> None:
    """Certificates are signed by the new one once it has been trusted for long enough."""
    assert not _next(_steady(authority_s=ROTATE_S + 1)).make
    old = _steady(authority_s=ROTATE_S - 1)
    assert _next(old).make
    both = replace(old, own=(*old.own, Authority("b", NOW_S + AUTHORITY_S)))

    first = _next(both)

    assert (first.bundle, first.issue, first.forget) == (("a", "b"), (), ())
    told = replace(both, bundles=dict.fromkeys(SECRETS, ("a", "b")))
    assert _next(told, Since(trusted_s={"b": SETTLE_S - 1})).issue == ()
    second = _next(told, Since(trusted_s={"b": SETTLE_S}))
    assert (second.signer, second.issue) == ("b", (*MEMBERS, *CLIENTS))
    assert (second.bundle, second.is_rotating) == (("a", "b"), True)


def test_an_authority_that_cannot_be_used_leaves_the_certificates_in_use() -> None:
    """Nothing is made in its place."""
    step = _next(replace(_steady(), own=(), is_external=True))

    assert (step.make, step.issue, step.forget, step.bundle) == (False, (), (), ("a",))


def test_who_has_no_certificate_waits_for_a_new_authority_no_longer_than_kubelets_take() -> None:
    """The old one's key is lost with the peers' Secret; bundles have the new one meanwhile."""
    left = {each: Leaf("a", NOW_S + LEAF_S) for each in CLIENTS}
    lost = Held(
        own=(Authority("b", NOW_S + AUTHORITY_S),),
        bundles=dict.fromkeys(SECRETS, ("a", "b")),
        leaves=left,
        given=("a", "b"),
    )

    waits = _next(lost, Since(trusted_s={"b": URGENT_S - 1}))
    signs = _next(lost, Since(trusted_s={"b": URGENT_S}))

    assert (waits.signer, waits.issue, waits.bundle) == ("", (), ("a", "b"))
    assert (signs.signer, signs.issue) == ("b", (*MEMBERS, *CLIENTS))


def test_an_authority_that_has_ended_is_replaced_as_one_that_is_lost() -> None:
    """The operator was away for too long: nobody believes anybody; kubelets alone are awaited."""
    ended = _steady(left_s=-1, authority_s=-1)
    assert _next(ended).make

    both = replace(
        ended,
        own=(*ended.own, Authority("b", NOW_S + AUTHORITY_S)),
        bundles=dict.fromkeys(SECRETS, ("a", "b")),
    )

    assert _next(both, Since(trusted_s={"b": URGENT_S - 1})).signer == ""
    step = _next(both, Since(trusted_s={"b": URGENT_S}))
    assert (step.signer, step.issue) == ("b", (*MEMBERS, *CLIENTS))


def test_certificates_that_have_ended_are_renewed_at_once() -> None:
    """Their authority holds; it takes no node's answer to write them."""
    step = _next(_steady(left_s=-1))

    assert (step.signer, step.issue) == ("a", (*MEMBERS, *CLIENTS))


def test_a_certificate_of_somebody_elses_shows_nothing_of_what_members_trust() -> None:
    """The Secrets of two groups were mixed up; members were given another authority."""
    mixed = Held(
        own=(Authority("x", NOW_S + AUTHORITY_S),),
        bundles={PEERS: (), "admin": ("x",)},
        leaves={"admin": Leaf("x", NOW_S + LEAF_S)},
    )

    assert _next(mixed).signer == "x"
    assert _next(replace(mixed, given=("a",))).signer == ""


def test_peers_speak_tls_alone_once_all_do_and_never_less_again() -> None:
    """A new group does from the beginning."""
    assert next_mode("", is_plain=False, all_over_tls=False) == REQUIRED
    assert next_mode("", is_plain=True, all_over_tls=False) == BOTH
    assert next_mode(BOTH, is_plain=False, all_over_tls=False) == BOTH
    assert next_mode(BOTH, is_plain=True, all_over_tls=True) == BOTH
    assert next_mode(BOTH, is_plain=False, all_over_tls=True) == REQUIRED
    assert next_mode(REQUIRED, is_plain=True, all_over_tls=False) == REQUIRED
    assert next_mode("BEGIN NOTHING", is_plain=False, all_over_tls=False) == REQUIRED
