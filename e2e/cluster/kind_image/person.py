"""Runs the command as somebody who is not root: what most people's kind is like.

He may use this Docker, as a member of the group `docker` may elsewhere, and has a cache of his
own. What that would fetch from the network, which is not there, he is given copies of: our cache
is root's, and closed to him.
"""

from __future__ import annotations

import os
import pwd
import shutil
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import golang
from e2e.cluster.errors import MissingPrerequisite
from e2e.cluster.kind_image import daemon
from e2e.cluster.kind_image.places import Places
from e2e.cluster.layout import default_layout

_SOCKET_MODE = 0o660


@dataclass(frozen=True, slots=True)
class Person:
    """A user of this machine."""

    name: str
    uid: int
    gid: int
    home: Path


def find(name: str, checkout: Path) -> Person:
    """Return the user who is to run a command in *checkout*.

    Raises:
        MissingPrerequisite: there is none, or it is root, or the checkout is not the user's.
    """
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise MissingPrerequisite(f"no user {name}: useradd --create-home {name}") from None
    if not found.pw_uid:
        raise MissingPrerequisite("--user root is what it does without")
    if checkout.stat().st_uid != found.pw_uid:
        raise MissingPrerequisite(
            f"{checkout} is not {name}'s, who could write nothing there: clone it anew, and "
            f"chown -R {name} the clone"
        )
    return Person(name, found.pw_uid, found.pw_gid, Path(found.pw_dir))


def let(person: Person, places: Places) -> None:
    """Let the user ask this Docker, and have the programs that our cache has."""
    os.chown(places.socket, -1, person.gid)
    places.socket.chmod(_SOCKET_MODE)
    theirs = default_layout(environment(person, {}))
    _make_directory(theirs.binaries, person)
    for program in (golang.HELM, golang.KUBECTL, golang.VERSITYGW, golang.PROMETHEUS):
        own, target = golang.built(places.layout, program), golang.built(theirs, program)
        if own.exists() and not target.exists():
            shutil.copy2(own, target)
            os.chown(target, person.uid, person.gid)


def _make_directory(path: Path, person: Person) -> None:
    if not path.exists():
        _make_directory(path.parent, person)
        path.mkdir()
        os.chown(path, person.uid, person.gid)


def environment(person: Person, ours: dict[str, str]) -> dict[str, str]:
    """Return *ours* with what says whose it is; nothing that names a directory of root's."""
    closed = ("XDG_", "DOCKER_CONFIG", "DLEDGER_E2E_STATE")
    kept = {name: value for name, value in ours.items() if not name.startswith(closed)}
    named = {"HOME": str(person.home), "USER": person.name, "LOGNAME": person.name}
    return {**kept, **named}


def inside(person: Person, *command: str) -> list[str]:
    """Return a command that runs another one as the user, where this Docker's cluster answers."""
    return daemon.inside(*command, uid=person.uid, gid=person.gid)
