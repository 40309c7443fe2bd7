"""Names of topics and consumer groups, and ids of clients. Pure: the state machine asks, too."""

from __future__ import annotations

import re
from typing import Final

from dledger.common.limits import MAX_ID_LENGTH
from dledger.errors import InvalidArgument

MAX_NAME_LENGTH: Final = 127
DEAD_LETTERS: Final = "%DLQ%"
"""How the name of the topic of a consumer group's dead letters begins; the group's own follows."""
KEPT_PREFIXES: Final = (DEAD_LETTERS, "%RETRY%")
"""RocketMQ's names of a consumer group's dead letters and retries begin so: a client that had made
one would be in the way of the group that is to have it."""
NAME: Final = re.compile(rf"[%a-zA-Z0-9_-]{{1,{MAX_NAME_LENGTH}}}")
"""The whole of a name matches this, which is the rule of the RocketMQ clients."""
SCOPE_DIGEST_BYTES: Final = 8
NO_SCOPE: Final = (
    "a client id must not end with '#' and 16 hexadecimal digits: the group reserves those"
)
_SCOPE: Final = re.compile(rf"#[0-9a-f]{{{2 * SCOPE_DIGEST_BYTES}}}\Z")


def is_name(name: str) -> bool:
    """Whether *name* may name a topic or a consumer group."""
    return NAME.fullmatch(name) is not None


def check_name(what: str, name: str) -> None:
    """Raise InvalidArgument unless *name* may be the name of a *what*."""
    if not is_name(name):
        raise InvalidArgument(
            f"{what} {name[:MAX_NAME_LENGTH]!r} must be 1 to {MAX_NAME_LENGTH} characters "
            "of letters, digits, '%', '_' and '-'"
        )


def check_may_be_made(name: str) -> None:
    """Raise InvalidArgument unless clients may make a topic of this name.

    Not part of the replicated state's rules: the broker itself makes such topics.
    """
    check_name("topic", name)
    if name.startswith(KEPT_PREFIXES):
        raise InvalidArgument(
            f"topic {name!r} cannot be made: names that begin with {' or '.join(KEPT_PREFIXES)} "
            "are kept for dead letters, which the group makes topics of by itself"
        )


def check_may_be_sent_to(name: str) -> None:
    """Raise InvalidArgument unless producers may send to a topic of this name.

    Not part of the replicated state's rules either: what is moved there is not sent.
    """
    if name.startswith(KEPT_PREFIXES):
        raise InvalidArgument(
            f"topic {name[:MAX_NAME_LENGTH]!r} takes no messages of producers: those that its "
            "group gave up are moved there, and resending one sends it to where it came from"
        )


def is_scope(client_id: str) -> bool:
    """Whether a client id has the form that is reserved for the group's own scopes."""
    return _SCOPE.search(client_id) is not None


def is_client_id(client_id: str) -> bool:
    """Whether nodes take it as the scope of idempotency keys; see `check_client_id`."""
    fits = 1 <= len(client_id) <= MAX_ID_LENGTH
    return fits and _SCOPE.search(client_id) is None


def check_client_id(client_id: str) -> None:
    """Refuse an empty or overlong client id, the scope of idempotency keys."""
    if is_client_id(client_id):
        return
    if is_scope(client_id):
        raise InvalidArgument(NO_SCOPE)
    raise InvalidArgument(
        f"client_id must have 1 to {MAX_ID_LENGTH} characters, not {len(client_id)}"
    )
