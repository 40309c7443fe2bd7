"""Every file has a room, and rooms import downwards only: the contracts of pyproject.toml bite."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.house.sources import ROOT

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
FLAT = {
    "dledger_sim": "one room by itself; nothing shipped imports it",
    "pyspark_dledger": "the name by which Spark finds the data source, and nothing else",
}
"""Packages without rooms."""


def _exhaustive() -> dict[str, dict[str, Any]]:
    """Return the layers of each package that has them, by its name."""
    return {
        container: contract
        for contract in SETTINGS["contracts"]
        if contract["type"] == "layers" and contract.get("exhaustive")
        for container in contract["containers"]
    }


def _rooms(contract: dict[str, Any]) -> list[list[str]]:
    return [layer.split(" | ") for layer in contract["layers"]]


def _linted(tmp_path: Path, package: str) -> subprocess.CompletedProcess[str]:
    """Run import-linter over an imitation of *package*, by its real contract."""
    layers = "".join(f'"{layer}", ' for layer in _exhaustive()[package]["layers"])
    (tmp_path / "pyproject.toml").write_text(
        f'[tool.importlinter]\nroot_packages = ["{package}"]\n\n[[tool.importlinter.contracts]]\n'
        f'name = "rooms"\ntype = "layers"\ncontainers = ["{package}"]\nexhaustive = true\n'
        f"layers = [{layers}]\n"
    )
    return subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )


def _imitate(tmp_path: Path, package: str) -> Path:
    """Make an empty package with a file for each room; return its folder."""
    folder = tmp_path / package
    folder.mkdir()
    for name in ("__init__", *(room for layer in _rooms(_exhaustive()[package]) for room in layer)):
        (folder / f"{name}.py").write_text("")
    return folder


def test_every_package_has_rooms_for_all_of_its_files() -> None:
    """A package that is looked at by no exhaustive contract grows as it likes."""
    assert {*_exhaustive(), *FLAT} == set(SETTINGS["root_packages"])


@pytest.mark.parametrize("package", sorted(_exhaustive()))
def test_every_file_of_a_package_stands_in_a_room(package: str) -> None:
    """And every room has something in it."""
    homes = [ROOT, *(ROOT / top for top in ("node", "operator", "pipeline"))]
    (folder,) = [home / package for home in homes if (home / package / "__init__.py").exists()]
    there = {
        path.stem
        for path in folder.iterdir()
        if path.suffix == ".py" or (path.is_dir() and any(path.glob("*.py")))
    } - {"__init__"}

    assert there == {room for layer in _rooms(_exhaustive()[package]) for room in layer}


@pytest.mark.parametrize("package", sorted(_exhaustive()))
def test_a_file_without_a_room_fails(tmp_path: Path, package: str) -> None:
    """As does an import upwards, or of a neighbour; without them the imitation passes."""
    folder = _imitate(tmp_path, package)
    passed = _linted(tmp_path, package)
    assert passed.returncode == 0, passed.stdout

    (folder / "nowhere.py").write_text("")
    assert "nowhere" in _linted(tmp_path, package).stdout
    (folder / "nowhere.py").unlink()

    layers = _rooms(_exhaustive()[package])
    low, high = layers[-1][0], layers[0][0]
    (folder / f"{low}.py").write_text(f"from {package} import {high}\n")
    assert _linted(tmp_path, package).returncode != 0
