"""What a machine lacks is said before there is a cluster, by its kind; and which kind it is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from e2e.cluster import choose, docker, doctor, image, kind, network, tools
from e2e.cluster.errors import CommandFailed, MissingPrerequisite
from e2e.cluster.layout import Layout

DISK = SimpleNamespace(free=12 * doctor.GIB)


@pytest.mark.parametrize(
    ("client", "plugin", "expected"),
    [
        ("28.2.2", "", False),
        ("28.2.2", "github.com/docker/buildx v0.24.0 abc", True),
        ("23.0.1", "", False),
        ("20.10.24+dfsg1", "", True),
    ],
)
def test_a_docker_that_cannot_build_is_known_before_there_is_a_cluster(
    client: str, plugin: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since 23 a client has BuildKit by a plugin, which distributions package apart."""

    def answer(*argv: str, **_: object) -> str:
        if "buildx" in argv and not plugin:
            raise CommandFailed(argv, 1, "docker: unknown command: docker buildx")
        return plugin if "buildx" in argv else client

    monkeypatch.setattr(docker, "run", answer)
    monkeypatch.setattr(kind, "run", lambda *_, **__: "kind v0.33.0 go1.26 linux/amd64")
    monkeypatch.setattr("shutil.which", lambda *_, **__: "/usr/bin/there")
    monkeypatch.delenv(docker.BUILDER_ENV, raising=False)

    assert docker.builds() is expected
    if expected:
        kind.require_tools()
    else:
        with pytest.raises(MissingPrerequisite, match="buildx"):
            kind.require_tools()
    monkeypatch.setenv(docker.BUILDER_ENV, docker.BUILDAH)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    kind.require_tools()


def test_a_builder_that_cannot_be_had_is_known_before_there_is_a_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Making one takes minutes, and Spark's image is asked for last."""
    monkeypatch.setenv(docker.BUILDER_ENV, docker.BUILDAH)
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    with pytest.raises(MissingPrerequisite, match="root"):
        image.require_builder()

    monkeypatch.setenv(image.SPARK_BASE_ENV, "mirror.example.com/java:17")
    with pytest.raises(MissingPrerequisite, match="debootstrap"):
        image.require_builder()


@pytest.mark.parametrize(
    ("code", "said", "told"),
    [
        (1, "permission denied while trying to connect to the Docker daemon socket", "usermod"),
        (1, "Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", "start it"),
        (None, "", "within 10 s"),
    ],
)
def test_a_docker_that_is_not_to_be_had_is_told_with_whose_fault_it_is(
    code: int | None, said: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To start a daemon that runs helps nobody who may not use it."""

    def fail(*argv: str, **_: object) -> str:
        raise CommandFailed(argv, code, said)

    monkeypatch.setattr(docker, "run", fail)
    monkeypatch.setattr(kind, "run", lambda *_, **__: "kind v0.33.0 go1.26 linux/amd64")
    monkeypatch.setattr("shutil.which", lambda *_, **__: "/usr/bin/there")

    assert told in docker.find_trouble()
    assert told in choose.automatic()[1]
    with pytest.raises(MissingPrerequisite, match=told):
        kind.require_tools()


@pytest.mark.parametrize(("said", "told"), [("v0.20.0", "Kubernetes before 1.29"), ("v0.33.0", "")])
def test_a_kind_that_is_too_old_is_told(
    said: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its nodes would come up, and the operator fail on them in words of its own."""
    monkeypatch.setattr("shutil.which", lambda *_, **__: "/usr/bin/there")
    monkeypatch.setattr(kind, "run", lambda *_, **__: f"kind {said} go1.26 linux/amd64")

    assert bool(kind.find_trouble()) is bool(told)
    assert told in kind.find_trouble()


def test_doctor_looks_at_what_that_kind_of_cluster_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user without root, on a machine with routes of Docker's: nothing is missing for kind."""
    layout = Layout(state=tmp_path, run=tmp_path, cache=tmp_path)
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    monkeypatch.setattr("shutil.which", lambda *_, **__: "/usr/bin/there")
    monkeypatch.setattr(docker, "find_trouble", str)
    monkeypatch.setattr(docker, "has", lambda name: name == "mine:1")
    monkeypatch.setenv(kind.NODE_IMAGE_ENV, "mine:1")
    monkeypatch.setattr(kind, "find_trouble", str)
    monkeypatch.setattr(docker, "builds", lambda: True)
    monkeypatch.setattr(docker, "keeps", lambda: tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: DISK)
    monkeypatch.setattr(doctor, "run", lambda *_, **__: "go1.26")
    monkeypatch.setattr(network, "foreign_routes", lambda: ["10.96.0.0/16"])
    monkeypatch.delenv(docker.BUILDER_ENV, raising=False)

    monkeypatch.setattr(tools, "run", lambda *_, **__: '"gitVersion": "v1.34.0"')

    found = {each.what: each for each in doctor.findings(layout)}

    assert "means kind here: kind is installed" in found["auto"].detail
    assert [each.what for each in found.values() if each.fatal and not each.ok] == []
    assert not {"root", "addresses"} & found.keys()
    assert [found[name].detail for name in ("helm", "kubectl")] == ["/usr/bin/there"] * 2
    assert "12 GiB free at" in found["disk"].detail
    assert found["nodes' image"].ok
    monkeypatch.setattr(docker, "builds", lambda: False)
    local = {each.what: each for each in doctor.findings(layout, "local")}
    assert not local["Docker's BuildKit"].ok
    assert not local["root"].ok
    assert not local["addresses"].ok


def test_doctor_misses_what_kind_cannot_do_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A builder among it, which would fail only after a cluster had been made."""
    layout = Layout(state=tmp_path, run=tmp_path, cache=tmp_path)
    monkeypatch.setattr(docker, "find_trouble", str)
    monkeypatch.setattr(docker, "keeps", lambda: None)
    monkeypatch.setattr(docker, "builds", lambda: False)
    monkeypatch.delenv(docker.BUILDER_ENV, raising=False)

    missing = [each for each in doctor.findings(layout, "kind") if each.fatal and not each.ok]

    assert "Docker's BuildKit" in [each.what for each in missing]


def test_auto_says_what_it_took_and_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else it is seen by the names of nodes, if at all."""
    monkeypatch.setattr(docker, "find_trouble", lambda: "no Docker daemon answers")
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/kind")

    choose.open_cluster("auto")

    said = capsys.readouterr().err
    assert "--cluster auto takes local: kind is installed, but no Docker daemon answers" in said


def test_a_builder_and_a_base_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no registry answers, or another one than the Dockerfile's has to be asked."""
    monkeypatch.setattr(docker, "answers", lambda: True)
    base = "mirror.example.com/python:3.11"

    assert docker.builder({}) == docker.DOCKER
    assert docker.builder({docker.BUILDER_ENV: "buildah"}) == docker.BUILDAH
    with pytest.raises(MissingPrerequisite, match="'kaniko'"):
        docker.builder({docker.BUILDER_ENV: "kaniko"})
    assert image.docker_base(image.NODE).startswith("python:3.11-slim-bookworm@sha256:")
    monkeypatch.setenv(image.BASE_ENV, base)
    assert [image.docker_base(each) for each in (image.NODE, image.SPARK)] == [base, base]
    monkeypatch.setenv(image.SPARK_BASE_ENV, f"{base}-java")
    assert [image.docker_base(each) for each in (image.NODE, image.SPARK)] == [base, f"{base}-java"]
    with pytest.raises(MissingPrerequisite, match="debootstrap"):
        image.buildahs_base(image.NODE)
