"""What others made is named: by a hash where it is fetched, by its licence where it is shipped."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
import yaml

from dledger.rpc.pb.dledger_pb2_grpc import GRPC_GENERATED_VERSION
from e2e.cluster import image, wheels

ROOT = Path(__file__).resolve().parents[2]
NOTICE = (ROOT / "NOTICE").read_text()
LEAVE_OUT = """
import importlib, pkgutil, sys
from importlib.machinery import PathFinder
from importlib.metadata import distribution

packages, left_out = sys.argv[1].split(), sys.argv[2].split()
missing = {str(file.locate()) for name in left_out for file in distribution(name).files}

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
    print("whole")
"""
)


@pytest.fixture(scope="module")
def lock() -> dict[str, object]:
    """The locked packages."""
    return tomllib.loads((ROOT / "uv.lock").read_text())


@pytest.mark.parametrize(
    ("extras", "packages"),
    [
        (wheels.NODE_EXTRAS, "dledger dledger_operator"),
        (wheels.SPARK_EXTRAS, "dledger dledger_pipeline"),
    ],
    ids=["node", "spark"],
)
def test_an_image_has_all_that_its_programs_import(
    lock: dict[str, object], extras: tuple[str, ...], packages: str
) -> None:
    """Without what only the client library needs whose stubs the node uses."""
    left_out = wheels.needed_only_by({wheels.STUBS}, extras, lock)

    run = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, packages, " ".join(left_out)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert {"grpcio-tools", "opentelemetry-sdk"} <= set(left_out)
    assert (run.returncode, run.stdout) == (0, "whole\n"), run.stderr


def test_the_client_imports_with_its_extra_alone(lock: dict[str, object]) -> None:
    """An application that only sends wants neither uvloop nor TLS for servers, nor Spark."""
    installed = {each.metadata["Name"] for each in distributions()}
    left_out = (wheels.needed_by(("dev",), lock) - wheels.needed_by(("client",), lock)) & installed

    run = subprocess.run(
        [sys.executable, "-c", f"{LEAVE_OUT}\nimport dledger.client", "", " ".join(left_out)],
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
        for which, extras in (("node", wheels.NODE_EXTRAS), ("spark", wheels.SPARK_EXTRAS))
        for package in wheels.needed_by(extras, lock)
    }

    rows = re.findall(r"^([a-z0-9-]+) +(node spark|node|spark) +\S", NOTICE, re.MULTILINE)

    assert {(package, which) for package, images in rows for which in images.split()} == wanted


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
