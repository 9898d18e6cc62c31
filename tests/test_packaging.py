"""The built wheel holds the three packages and the named configs, and nothing else; versions agree."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import routing_gym

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "routing_gym": ROOT / "routing_gym",
    "routing_baselines": ROOT / "baselines" / "routing_baselines",
    "routing_agents": ROOT / "agents" / "routing_agents",
}


def files_under(folder: Path) -> set[str]:
    """Return what belongs to a package: all but what Python compiled and git ignores."""
    paths = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {
        path.relative_to(folder).as_posix() for path in paths if path.suffix not in {".pyc", ".nbi", ".nbc"}
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Build the wheel once, with the hatchling that is here."""
    for needed in ("hatchling", "build"):
        pytest.importorskip(needed, reason=f"needs {needed}, of the dev extra, to build a wheel")
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    (path,) = out.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_three_packages_and_the_configs_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    info = f"routing_gym-{routing_gym.__version__}.dist-info"
    assert {name.partition("/")[0] for name in names} == {*PACKAGES, info}
    expected = {f"{package}/{name}" for package, folder in PACKAGES.items() for name in files_under(folder)}
    expected |= {f"routing_gym/configs/{name}" for name in files_under(ROOT / "configs")}
    assert {name for name in names if not name.startswith(info)} == expected
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert {"routing_gym/configs/cluster/default.yaml", "routing_gym/configs/cluster/training.yaml"} <= names
    assert f"{info}/licenses/LICENSE" in names


def test_the_wheel_declares_its_routers_and_its_command(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    declared = configparser.ConfigParser(delimiters=("=",))
    declared.optionxform = str
    declared.read_string(wheel.read(name).decode())
    assert declared["console_scripts"]["routing-gym"] == "routing_gym.cli:main"
    # Installed from the same pyproject, this environment has at least these.
    assert set(declared["routing_gym.policies"]) <= set(routing_gym.list_policies())
    assert set(wheel.namelist()) >= {
        f"{value.partition(':')[0].replace('.', '/')}.py"
        for value in declared["routing_gym.policies"].values()
    }


def test_an_unpacked_wheel_finds_its_own_configs(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    session = (
        "import routing_gym; from routing_gym.common.config import config_names, configs_folder;"
        "from routing_gym.cluster.config import ClusterConfig; ClusterConfig.create();"
        "print(routing_gym.__file__); print(configs_folder()); print(*config_names('cluster'))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", session],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    module, folder, names = done.stdout.splitlines()
    assert Path(module) == tmp_path / "routing_gym" / "__init__.py"
    assert Path(folder) == tmp_path / "routing_gym" / "configs"
    assert names.split() == sorted(path.stem for path in (ROOT / "configs" / "cluster").glob("*.yaml"))


def test_versions_agree() -> None:
    declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert declared
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert routing_gym.__version__ == declared[1] == citation["version"]


def test_licences_agree() -> None:
    assert 'license = "MIT"' in (ROOT / "pyproject.toml").read_text()
    assert (ROOT / "LICENSE").read_text().startswith("MIT License")
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["license"] == "MIT"
