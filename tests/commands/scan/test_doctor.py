"""A checkup lists what is installed and what is missing, with install commands, and whether a scan is verified."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest

import attnscope
from attnscope.commands.doctor import run as room
from attnscope.commands.doctor.record import Check, Checkup
from attnscope.core import files as cache_folder
from attnscope.core.errors import RefusalError
from tests.command import attnscope as command


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = tmp_path / "attnscope" / "capacity" / "one.json"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"x" * 2_000_000)
    return kept


@pytest.mark.usefixtures("cache")
def test_a_whole_checkup() -> None:
    found = attnscope.doctor()
    assert found.well, found.sentences()
    by_name = {(check.group, check.name): check for check in found.checks}
    assert by_name["extras", "torch"].found.startswith(f"torch {metadata.version('torch')}, transformers ")
    assert by_name["versions", "numpy"].found == metadata.version("numpy")
    assert by_name["extras", "gguf"].state == "well"  # one of the extras that tests need
    assert by_name["scan", "pocket"].found.startswith("verified, largest difference")
    assert "2.0 MB" in by_name["cache", "folder"].found
    assert ("extras", "dev") not in by_name


def test_what_is_missing_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_installed", lambda name: None if name in ("ray", "torch", "numpy") else "1.0")
    (ray,) = [check for check in room.extras() if check.name == "ray"]
    assert (ray.state, ray.found, ray.advice) == ("missing", "without ray", "pip install 'attnscope[ray]'")
    (torch,) = [check for check in room.extras() if check.name == "torch"]
    assert (torch.state, torch.found, torch.advice) == ("missing", "without torch", "pip install 'attnscope[torch]'")
    (numpy,) = [check for check in room.versions() if check.name == "numpy"]
    assert numpy.state == "ill"
    assert not Checkup((ray, numpy)).well
    assert Checkup((ray, torch)).well  # an extra is not needed


def test_a_refused_or_unverified_scan_fails_the_checkup(monkeypatch: pytest.MonkeyPatch) -> None:
    import attnscope.commands.scan.run as scanning

    def refuse(*_: object, **__: object) -> None:
        raise RefusalError("No.")

    monkeypatch.setattr(scanning, "scan", refuse)
    assert room.embedded_model() == Check("scan", "pocket", "ill", "refused", "No.")

    class Unverified:
        provenance = {"verify": {"passed": False}}  # noqa: RUF012

    monkeypatch.setattr(scanning, "scan", lambda *_, **__: Unverified())
    assert room.embedded_model().state == "ill"


def test_the_command_clears_the_cache_and_says_how_much(cache: Path) -> None:
    done = command("doctor", "--clear-cache")
    assert done.returncode == 0, done.stdout
    assert "which held 2.0 MB" in " ".join(done.stdout.split())
    assert not cache.exists()
    assert cache_folder.cache_size() == 0
    assert command("doctor", "--clear-cache").returncode == 0  # clearing twice is safe


def test_a_symlink_as_cache_folder_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("mine")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "attnscope").symlink_to(elsewhere)
    cache_folder.clear_cache()
    assert (elsewhere / "precious").read_text() == "mine"
    assert not (tmp_path / "attnscope").exists()


def test_the_command_says_what_is_wrong_and_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    sick = Checkup((Check("scan", "pocket", "ill", "not verified", "Tell us."),))
    monkeypatch.setattr(room, "doctor", lambda: sick)
    done = command("doctor")
    assert done.returncode == 1
    assert "pocket: not verified. Tell us." in done.stdout
    printed = command("doctor", "--json")
    assert printed.returncode == 1
    assert json.loads(printed.stdout) == sick.to_json()
