"""Archives, tags and the build of Go programs."""

from __future__ import annotations

import io
import json
import re
import shutil
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from e2e.cluster import docker, golang, image, lock, oci, wheels
from e2e.cluster.errors import CommandFailed, MissingPrerequisite
from e2e.cluster.layout import Layout
from e2e.cluster.steps import Steps

RECIPES = (image.NODE, image.SPARK, image.WORKLOAD)
LISTING = """\
REF               TYPE DIGEST      SIZE  PLATFORMS   LABELS
dledger.io/x:1-ab oci  sha256:12ab 1 MiB linux/amd64 io.cri-containerd.image=managed
"""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An archive with one program."""
    path = tmp_path / "image.tar"
    path.write_bytes(oci.archive("example.org/x:1", b"program", machine="x86_64"))
    return path


def test_the_same_program_gives_the_same_archive(archive: Path) -> None:
    """So a node never loads what it has."""
    assert oci.archive("example.org/x:1", b"program", machine="x86_64") == archive.read_bytes()


def test_every_reference_in_an_archive_leads_to_a_blob_of_that_digest(archive: Path) -> None:
    """Index to manifest, manifest to configuration and layers."""
    with tarfile.open(archive) as opened:
        files = {each.name: opened.extractfile(each) for each in opened}
        read = {name: file.read() for name, file in files.items() if file is not None}
    index = json.loads(read["index.json"])
    manifest = json.loads(read[f"blobs/sha256/{index['manifests'][0]['digest'][7:]}"])

    for each in (*index["manifests"], manifest["config"], *manifest["layers"]):
        blob = read[f"blobs/sha256/{each['digest'][7:]}"]
        assert oci.Blob("", blob).digest == each["digest"]
        assert len(blob) == each["size"]


def test_a_thin_archive_keeps_its_index_and_drops_what_the_node_has(archive: Path) -> None:
    """The importer finds the rest among its own blobs."""
    every = oci.blobs(archive)
    present = set(sorted(every)[:2])
    thin = archive.with_name("thin.tar")

    oci.write_without(archive, present, thin)

    assert oci.blobs(thin) == every - present
    assert oci.manifest_digest(thin) == oci.manifest_digest(archive)


def test_an_archive_without_an_index_has_no_digest_to_compare(tmp_path: Path) -> None:
    """Such as Docker's older ones: they are loaded each time."""
    path = tmp_path / "old.tar"
    with tarfile.open(path, "w") as opened:
        opened.addfile(tarfile.TarInfo("manifest.json"), io.BytesIO())

    assert oci.manifest_digest(path) is None


def test_a_digest_is_found_by_the_whole_name() -> None:
    """One tag may be the beginning of another."""
    assert oci.listed_digest(LISTING, "dledger.io/x:1-ab") == "sha256:12ab"
    assert oci.listed_digest(LISTING, "dledger.io/x:1-a") is None
    assert oci.listed_digest("", "dledger.io/x:1-ab") is None


@pytest.fixture
def by_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """Docker builds, in a checkout of which only the builds' directory is used."""
    monkeypatch.setenv(docker.BUILDER_ENV, docker.DOCKER)
    monkeypatch.setattr(wheels, "ROOT", tmp_path)
    monkeypatch.setattr(docker, "images", lambda _: [])
    made = image.Image("dledger.io/x:1-ab", tmp_path / "build" / "images" / "dledger-1-ab.tar")
    monkeypatch.setattr(image, "describe", lambda *_: made)
    monkeypatch.setattr(image, "docker_base", lambda _: "python:3.11")
    monkeypatch.setattr(image, "_wheel_of_settled_sources", lambda *_: made)
    monkeypatch.setattr(wheels, "make_dependencies", lambda _: "abc")
    return Layout(state=tmp_path, run=tmp_path, cache=tmp_path / "cache")


RECIPE = image.Recipe(
    repository="dledger.io/dledger",
    files=("Dockerfile",),
    base=image.NODE.base,
    make_dependencies=lambda _: "abc",
)


def test_images_are_built_in_docker_by_one_checkout_at_a_time(
    by_docker: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each forgets what others built: between another's build and its export that would end it."""
    held: list[bool] = []

    def build(*argv: str | Path, **_: object) -> str:
        held.append(lock.used_elsewhere(by_docker.cache / "docker.lock"))
        if "save" in argv:
            Path(argv[argv.index("--output") + 1]).touch()
        return ""

    monkeypatch.setattr(image, "run", build)
    images = wheels.ROOT / "build" / "images"
    images.mkdir(parents=True)
    (images / "dledger-0-killed.partial").touch()

    image.build(RECIPE, by_docker)

    assert held == [True, True]
    assert [each.name for each in images.iterdir()] == ["dledger-1-ab.tar"]


def test_a_base_that_cannot_be_pulled_is_told_with_the_other_way(
    by_docker: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a user's words, with Docker's behind them; any other failure is as Docker tells it."""
    said = f"ERROR: failed to solve: python:3.11: {image.NOT_PULLED[0]} for docker.io/library"

    def fail(*argv: str, **_: object) -> str:
        raise CommandFailed(argv, 1, said)

    monkeypatch.setattr(image, "run", fail)

    with pytest.raises(MissingPrerequisite, match=f"python:3.11.*{image.BASE_ENV}(.|\n)*ERROR"):
        image.build(RECIPE, by_docker)
    said = "no space left on device"
    with pytest.raises(CommandFailed, match="no space left"):
        image.build(RECIPE, by_docker)


def test_the_tag_changes_with_any_source_file(tmp_path: Path) -> None:
    """With its content as with its name, and with what it is based on."""
    path = tmp_path / "a.py"
    path.write_text("one")
    before = wheels.content_hash([path], "base", root=tmp_path)

    path.write_text("two")
    after = wheels.content_hash([path], "base", root=tmp_path)
    moved = path.rename(tmp_path / "b.py")

    assert len({before, after, wheels.content_hash([moved], "base", root=tmp_path)}) == 3
    assert wheels.content_hash([moved], "other", root=tmp_path) != wheels.content_hash(
        [moved], "base", root=tmp_path
    )


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_tag_changes_with_the_choice_of_packages(recipe: image.Recipe, tmp_path: Path) -> None:
    """Else an archive with other packages would be taken for this one."""
    for name in (*wheels.METADATA_FILES, *recipe.files, wheels.CHOICE):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(wheels.ROOT / name, tmp_path / name)
    before = image.describe(recipe, "base:1", tmp_path)

    (tmp_path / wheels.CHOICE).write_text("another choice")

    assert image.describe(recipe, "base:1", tmp_path).name != before.name


def test_sources_are_those_of_the_wheel_without_bytecode(tmp_path: Path) -> None:
    """Running the code must not change the tag."""
    (tmp_path / "pkg" / "__pycache__").mkdir(parents=True)
    (tmp_path / "pkg" / "a.py").touch()
    (tmp_path / "pkg" / "__pycache__" / "a.cpython-311.pyc").touch()
    pyproject = {"tool": {"hatch": {"build": {"targets": {"wheel": {"packages": ["pkg"]}}}}}}

    assert wheels.sources(pyproject, root=tmp_path) == [tmp_path / "pkg" / "a.py"]


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_image_is_never_latest_and_lies_in_the_build_directory(recipe: image.Recipe) -> None:
    """Kubernetes would pull ``latest`` from a registry that is not there."""
    described = image.describe(recipe, "base:1")

    repository, _, tag = described.name.partition(":")
    assert repository == recipe.repository
    assert tag.startswith(wheels.project()["project"]["version"])
    assert described.archive.is_relative_to(wheels.ROOT / "build")


def test_the_images_differ_in_name_base_and_archive() -> None:
    """None takes another's place, nor forgets another's archives as its own older ones."""
    node, *others = (image.describe(each, "base:1") for each in RECIPES)

    assert len({each.repository for each in RECIPES}) == len(RECIPES)
    assert image.NODE.base.name != image.SPARK.base.name
    assert not any(each.archive.match(f"{image.NODE.stem}-[0-9]*.tar") for each in others)
    assert node.archive.match(f"{image.NODE.stem}-[0-9]*.tar")


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_argument_of_a_dockerfile_is_given(recipe: image.Recipe) -> None:
    """A default would hide a change from a builder that does not look into mounts."""
    dockerfile = (wheels.ROOT / recipe.files[0]).read_text()
    declared = {
        line.split()[1].partition("=")[0] for line in dockerfile.splitlines() if "ARG " in line[:4]
    }
    given = image.build_arguments(recipe, "base:1", "abc", "dledger.io/dledger:1-def")

    assert {word.partition("=")[0] for word in given[1::2]} == declared


@pytest.mark.parametrize("recipe", RECIPES)
def test_whatever_a_dockerfile_takes_from_the_project_is_let_in(recipe: image.Recipe) -> None:
    """All else is kept out of the build by .dockerignore."""
    dockerfile = (wheels.ROOT / recipe.files[0]).read_text()
    allowed = tuple(
        line[1:] for line in (wheels.ROOT / ".dockerignore").read_text().splitlines() if "!" in line
    )
    mounted = re.findall(r"source=([^,\s]+)", dockerfile)
    copied = re.findall(r"^COPY (\S+)", dockerfile, re.MULTILINE)

    assert mounted
    assert copied == list(recipe.files[1:])
    assert all(path.startswith(allowed) for path in (*mounted, *copied))


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("go version go1.24.4 linux/amd64", (1, 24)),
        ("go version go1.26 linux/arm64", (1, 26)),
        ("bash: go: command not found", None),
    ],
)
def test_gos_version_is_read_from_what_it_prints(
    text: str, version: tuple[int, int] | None
) -> None:
    """Numbers compare as numbers: 1.9 is older than 1.24."""
    assert golang.parse_go_version(text) == version


def test_kubernetes_is_told_the_version_its_module_requires() -> None:
    """Else it reports v0.0.0, and kubelet and API server refuse each other's skew."""
    go_mod = (golang.MODULES / "kubernetes" / "go.mod").read_text()
    flags = golang.linker_flags(golang.KUBERNETES, go_mod)

    assert f"gitVersion={golang.required_version(go_mod, 'k8s.io/kubernetes')}" in flags
    assert "gitMinor=34" in flags


def test_programs_of_one_module_are_cached_apart() -> None:
    """Kubectl and the control plane come from the same files."""
    assert golang.key(golang.KUBECTL) != golang.key(golang.KUBERNETES)


@pytest.mark.e2e
def test_a_program_is_built_once_by_whoever_asks_first(tmp_path: Path) -> None:
    """Two makes at once would each compile every package of it."""
    layout = Layout(state=tmp_path / "state", run=tmp_path / "run", cache=tmp_path / "cache")
    said = io.StringIO()

    def ensure(_: int) -> Path:
        return golang.ensure(layout, golang.PAUSE, Steps(said))

    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(ensure, range(4)))

    assert said.getvalue().count("start  build pause") == 1
    assert [each.exists() for each in paths] == [True]
    assert (layout.binaries / "pause").resolve() in paths
    assert "build-pause.log" in said.getvalue()
    assert (layout.cache / "build-pause.log").exists()
