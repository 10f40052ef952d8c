"""A peer's own virtual environment: made once from pinned requirements, measured, and named by what is in it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from process import last_word

REPOSITORY = Path(__file__).resolve().parents[2]
PARTS = ("pyproject.toml", "README.md", "LICENSE", "atoll")  # what Atoll's own package is built from


class InstallError(Exception):
    """A peer cannot be installed; the message is pip's own last word."""


def environment(name: str, requirements: Path, cache: Path) -> dict[str, Any]:
    """The environment of a peer: `python`, `megabytes`, `distributions`, `versions`. Made if it is not there yet."""
    place = cache / name
    stamp, wanted = place / "installed.json", digest(name, requirements)
    if not stamp.exists() or json.loads(stamp.read_text())["digest"] != wanted:
        shutil.rmtree(place, ignore_errors=True)
        install(name, requirements, place / "venv")
        stamp.write_text(json.dumps({"digest": wanted, **measured(place / "venv")}, indent=1))
    return {"python": place / "venv" / "bin" / "python", **json.loads(stamp.read_text())}


def digest(name: str, requirements: Path) -> str:
    """Changes when the requirements, the interpreter or (for Atoll) the code does."""
    found = hashlib.sha256(f"{sys.version}\n{requirements.read_text()}".encode())
    if name == "atoll":
        for part in PARTS:
            for file in sorted(p for p in _files(REPOSITORY / part) if "__pycache__" not in p.parts):
                found.update(str(file.relative_to(REPOSITORY)).encode() + file.read_bytes())
    return found.hexdigest()


def install(name: str, requirements: Path, place: Path) -> None:
    """Make an empty environment and put the pinned distributions into it.

    torch comes first, with what it needs on this machine. The rest comes as listed, without asking for more: some
    peers' own bounds contradict each other, which a resolver refuses.
    """
    venv.create(place, clear=True, symlinks=True, with_pip=False)
    pins = requirements.read_text().splitlines()
    if torch := [line for line in pins if line.startswith("torch==")]:
        _pip(place, *torch, "--constraint", str(requirements))
    _pip(place, "--no-deps", "--requirement", str(requirements))
    if name == "atoll":
        with tempfile.TemporaryDirectory() as scratch:  # a build leaves files beside its sources
            for part in PARTS:
                copy = shutil.copytree if (REPOSITORY / part).is_dir() else shutil.copy
                copy(REPOSITORY / part, Path(scratch) / part)
            _pip(place, "--no-deps", scratch)


def _pip(place: Path, *arguments: str) -> None:
    python = place / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": ""})
    if done.returncode:
        raise InstallError(last_word(done.stderr))


def refusal(requirement: str) -> str | None:
    """Why pip does not find a distribution for this interpreter; None where it does."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, requirement]
        done = subprocess.run(command, capture_output=True, text=True)
    return refused(requirement, done.stderr) if done.returncode else None


def refused(requirement: str, output: str) -> str:
    """What pip said, in short: the Python that this version wants, or pip's last word.

    >>> refused("x==2", "ERROR: Ignored the following versions: 1 Requires-Python >=3.12; 2 Requires-Python >=3.14")
    'x==2 wants Python >=3.14'
    """
    version = requirement.partition("==")[2]
    wanted = re.search(rf"[ :;]{re.escape(version)} Requires-Python ([^;\s]+)", output) if version else None
    return f"{requirement} wants Python {wanted[1]}" if wanted else last_word(output)


def measured(place: Path) -> dict[str, Any]:
    """Size, number and versions of what an environment holds."""
    packages = next((place / "lib").glob("python*")) / "site-packages"
    code = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    listed = subprocess.run([place / "bin" / "python", "-c", code], capture_output=True, text=True, check=True)
    versions = json.loads(listed.stdout)
    return {"megabytes": round(size(packages) / 1e6), "distributions": len(versions), "versions": versions}


def size(folder: Path) -> int:
    """Bytes of the files in a folder; what links point to elsewhere does not count, and hard links count once."""
    found = [file.stat() for file in _files(folder) if not file.is_symlink()]
    return sum({(status.st_dev, status.st_ino): status.st_size for status in found}.values())


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
