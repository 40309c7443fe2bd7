"""What others made is named: by a hash where it is fetched, by its licence where it is shipped."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import tarfile
import tomllib
from importlib.metadata import distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from dledger.rpc.pb.dledger_pb2_grpc import GRPC_GENERATED_VERSION
from e2e.cluster import image, wheels

ROOT = Path(__file__).resolve().parents[2]
LIBNGHTTP2 = {
    "09b995aa65b8a397de652fd7a9b3877d6d1e24c10d2effc36204a3f37aa73440": (1, 70, 0),
}
"""What a source of ngh2 carries, by its hash in the lock: `project(nghttp2 VERSION ...)` of its
`vendor/nghttp2/CMakeLists.txt` (`pip download --no-binary :all: ngh2`). Built into the extension,
it tells its version nowhere."""
LEAST_LIBNGHTTP2 = (1, 70, 0)
"""The first without CVE-2026-58055; 1.68.1 is the first without CVE-2026-27135."""
NOTICE = (ROOT / "NOTICE").read_text()
LEAVE_OUT = """
import importlib, pkgutil, sys
from importlib.machinery import PathFinder
from importlib.metadata import distribution

packages, carried, left_out = (words.split() for words in sys.argv[1:])


def files(name):
    return {str(file.locate()) for file in distribution(name).files}


missing = set().union(*map(files, left_out))

class LeftOut:
    def find_spec(self, name, path=None, target=None):
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.origin in missing:
            raise ModuleNotFoundError(f"{name} is not in the image")

sys.meta_path.insert(0, LeftOut())
"""
IMPORT_ALL = (
    LEAVE_OUT
    + """
for package in packages:
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if not module.name.endswith(".__main__"):
            importlib.import_module(module.name)
try:
    import grpc_tools
except ModuleNotFoundError:
    imported = {getattr(module, "__file__", None) for module in sys.modules.values()}
    print(*(name for name in carried if files(name).isdisjoint(imported)))
"""
)
LATER = {"pycparser": "cffi.cparser", "tzdata": "zoneinfo._common"}
NODE_LATER = {**LATER, "click": "kopf.cli"}
SPARK_LATER = {
    **LATER,
    "pandas": "pyspark.sql.pandas.types",
    "pytz": "pandas",
}
"""What no import of our modules leads to, and the module of the same image that imports it. What
tables of the extra `export` need is imported here, too."""


@pytest.fixture(scope="module")
def lock() -> dict[str, object]:
    """The locked packages."""
    return tomllib.loads((ROOT / "uv.lock").read_text())


def unimported(packages: str, carried: set[str], left_out: set[str]) -> set[str]:
    """Import all of our packages without what is left out; return what of the carried was idle."""
    listed = (" ".join(sorted(names)) for names in (carried, left_out))
    command = [sys.executable, "-c", IMPORT_ALL, packages, *listed]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout, "grpc_tools was not left out"
    return set(run.stdout.split())


@pytest.mark.parametrize(
    ("extras", "packages", "later"),
    [
        (wheels.NODE_EXTRAS, "dledger dledger_operator", NODE_LATER),
        (wheels.SPARK_EXTRAS, "dledger dledger_pipeline", SPARK_LATER),
    ],
    ids=["node", "spark"],
)
def test_an_image_has_what_its_programs_import_and_no_more(
    lock: dict[str, object], extras: tuple[str, ...], packages: str, later: dict[str, str]
) -> None:
    """Without what only the client library needs whose stubs the node uses."""
    carried, left_out = wheels.needed_by(extras, lock), wheels.added_by_sdk(extras, lock)

    idle = unimported(packages, carried, left_out)

    assert {"grpcio-tools", "opentelemetry-sdk"} <= left_out
    assert idle == later.keys()


def test_what_is_imported_later_is_named_by_the_module_that_does() -> None:
    """A reason that no longer holds would keep a package for nothing."""
    for package, module in {**NODE_LATER, **SPARK_LATER}.items():
        spec = find_spec(module)
        assert spec
        assert spec.origin
        name = package.removeprefix("python-")
        assert re.search(rf"(import|from|\W){name}\b", Path(spec.origin).read_text()), package


def test_the_client_imports_with_its_extra_alone(lock: dict[str, object]) -> None:
    """An application that only sends wants neither uvloop nor TLS for servers, nor Spark."""
    installed = {each.metadata["Name"] for each in distributions()}
    left_out = (wheels.needed_by(("dev",), lock) - wheels.needed_by(("client",), lock)) & installed

    run = subprocess.run(
        [sys.executable, "-c", f"{LEAVE_OUT}\nimport dledger.client", "", "", " ".join(left_out)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert {"cryptography", "kopf", "pyspark", "uvloop"} <= left_out
    assert run.returncode == 0, run.stderr


def test_the_client_takes_any_grpc_that_the_generated_stubs_take() -> None:
    """Applications bring their own: no upper bound; older ones than the stubs' do not import."""
    extras = wheels.project()["project"]["optional-dependencies"]

    assert f"grpcio>={GRPC_GENERATED_VERSION}" in extras["client"]


def test_every_package_of_the_images_stands_in_notice(lock: dict[str, object]) -> None:
    """With the image that has it, and a licence."""
    wanted = {
        (package, which)
        for which, packages in (
            ("node", wheels.needed_by(wheels.NODE_EXTRAS, lock)),
            ("spark", wheels.needed_by(wheels.SPARK_EXTRAS, lock)),
            ("workload", wheels.added_by_sdk(wheels.NODE_EXTRAS, lock)),
        )
        for package in packages
    }

    rows = re.findall(r"^([a-z0-9-]+) +(node spark|node|spark|workload) +\S", NOTICE, re.MULTILINE)

    assert {(package, which) for package, images in rows for which in images.split()} == wanted


@pytest.mark.found
def test_notice_says_which_libnghttp2_the_images_carry(lock: Any) -> None:
    """Found: A10. Who reads of a hole in it must be able to tell; none that is known is in ours."""
    (locked,) = (each for each in lock["package"] if each["name"] == "ngh2")
    hashed = locked["sdist"]["hash"].removeprefix("sha256:")

    assert hashed in LIBNGHTTP2, "another ngh2: look which libnghttp2 it carries"
    carried = LIBNGHTTP2[hashed]

    assert carried >= LEAST_LIBNGHTTP2
    assert f"libnghttp2 {'.'.join(map(str, carried))}, which" in " ".join(NOTICE.split())


def test_libnghttp2_is_inside_of_the_locked_package(lock: Any) -> None:
    """Not the machine's, whose version would be another matter."""
    (locked,) = (each for each in lock["package"] if each["name"] == "ngh2")
    spec = find_spec("ngh2._core")

    assert version("ngh2") == locked["version"]
    assert spec
    assert spec.origin
    assert hasattr(ctypes.CDLL(spec.origin), "nghttp2_option_set_glitch_rate_limit")
    assert b"libnghttp2.so" not in Path(spec.origin).read_bytes()


@pytest.mark.parametrize("recipe", [image.NODE, image.SPARK], ids=["node", "spark"])
def test_a_base_is_named_by_its_digest(recipe: image.Recipe) -> None:
    """A tag may be another image tomorrow."""
    assert re.fullmatch(r"[a-z0-9./:-]+@sha256:[0-9a-f]{64}", image.docker_base(recipe))


def test_actions_are_named_by_their_commit() -> None:
    """A tag of somebody else's repository can be moved."""
    for workflow in (ROOT / ".github" / "workflows").iterdir():
        used = re.findall(r"uses: (\S+)", workflow.read_text())

        assert used
        assert [name for name in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", name)] == []


def test_uv_itself_is_installed_by_hash() -> None:
    """It installs all the rest by the hashes of the lock."""
    pinned = (ROOT / "scripts" / "uv.txt").read_text()

    assert re.search(r"^uv==\S+ \\\n    --hash=sha256:[0-9a-f]{64}", pinned, re.MULTILINE)
    assert "--require-hashes" in (ROOT / "scripts" / "setup.sh").read_text()


def test_every_python_that_we_name_is_tried() -> None:
    """By the workflow, whose matrix is the list of the classifiers."""
    named = [
        each.rpartition(" ")[2]
        for each in wheels.project()["project"]["classifiers"]
        if re.search(r":: 3\.\d+$", each)
    ]
    workflow = yaml.safe_load((ROOT / ".github/workflows/python.yaml").read_text())

    assert workflow["jobs"]["unit"]["strategy"]["matrix"]["python"] == named


def test_the_source_distribution_has_what_is_shipped_and_no_tests(tmp_path: Path) -> None:
    """Found: "node" in its list took tests/node, too."""
    command = [wheels.uv(), "build", "--quiet", "--sdist", "--out-dir", str(tmp_path), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    tops = {name.partition("/")[0] for name in names}
    assert {"node", "operator", "pipeline", "charts", "docs", "pyproject.toml"} <= tops
    assert not tops & {"tests", "e2e", "bench", "scripts"}
    assert not any(name.startswith("node/dledger_sim/") for name in names)
    assert "charts/dledger-operator/crds/brokergroup.yaml" in names
