"""The memory of `paths` is estimated before the work and reported, and a request that does not fit is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

import attnscope
from attnscope.commands.paths import reading as room
from attnscope.commands.paths import run as driver
from attnscope.commands.paths.reading import PathSizes
from attnscope.core.errors import RefusalError
from tests.command import offline
from tests.specimens import byte_tokenizer, tiny_llama

POCKET = PathSizes(tokens=256, layers=6, heads=4, width=128 + 304, vocabulary=1024, itemsize=8, suffixes=32, signs=4)
MEASURED = """
import resource, torch
torch.set_num_threads(1)
import attnscope
from attnscope.hf.loading.load import load
pocket = load("pocket", dtype="float64")
def peak():
    return 1024 * int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
few = {"input_ids": torch.arange(3, 7)[None]}
attnscope.paths(pocket, few)  # what is imported and made once does not follow the text
before = peak()
attnscope.paths(pocket, {"input_ids": torch.arange(3, 259)[None]})
print(peak() - before)
"""


def test_the_estimate_is_near_a_measured_peak() -> None:
    done = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, env=offline(), check=False)
    assert done.returncode == 0, done.stderr
    assert 1 / 3 < POCKET.bytes / int(done.stdout) < 3


def sizes_seen(monkeypatch: pytest.MonkeyPatch) -> list[PathSizes]:
    seen: list[PathSizes] = []
    honest = room.refuse_too_many_tokens

    def noted(sizes: PathSizes, place: torch.device) -> None:
        seen.append(sizes)
        honest(sizes, place)

    monkeypatch.setattr(driver, "refuse_too_many_tokens", noted)
    return seen


def test_sizes_are_those_of_the_model_and_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = sizes_seen(monkeypatch)
    ids = torch.arange(3, 15)[None]
    attnscope.paths("pocket", {"input_ids": ids}, mlp=False)
    attnscope.paths("pocket", {"input_ids": ids}, mlp=False, top=40, draws=0, dtype="float32")
    assert seen[0] == replace(POCKET, tokens=12)
    assert seen[1] == replace(POCKET, tokens=12, suffixes=40, signs=2, itemsize=4)


def asked(**options: Any) -> tuple[Any, list[str]]:
    stages: list[str] = []
    report = attnscope.paths(
        tiny_llama(),
        "the dog and the fox",
        tokenizer=byte_tokenizer(),
        draws=0,
        top=1,
        mlp=False,
        progress=lambda stage, *_: stages.append(stage),
        **options,
    )
    return report, stages


def test_too_large_estimate_is_refused_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = sizes_seen(monkeypatch)
    asked()
    needed = seen[0].bytes
    monkeypatch.setattr(room, "memory_left", lambda: needed // 2)
    monkeypatch.setattr(driver, "freeze", lambda *_: pytest.fail("the work began"))
    with pytest.raises(RefusalError) as refused:
        asked()
    sentence = str(refused.value)
    fitting = seen[0].tokens_that_fit(needed // 2)
    assert 1 < fitting < 20
    assert sentence.startswith("Paths of 20 tokens take about 0.0 GB")
    assert sentence.endswith(f"give a text of {fitting} tokens or fewer, or pass `dtype='float32'` for half of that.")
    assert replace(seen[0], tokens=fitting).bytes <= needed // 2 < replace(seen[0], tokens=fitting + 1).bytes
    monkeypatch.setattr(room, "memory_left", lambda: 1)
    with pytest.raises(RefusalError, match=r"are free: give a smaller model\.$"):
        asked(dtype="float32")


def test_large_estimate_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    _, stages = asked()
    assert not any("GB" in stage for stage in stages)
    monkeypatch.setattr(driver, "LARGE", 1000)
    _, stages = asked()
    assert [stage for stage in stages if "GB" in stage] == ["freezing (about 0.0 GB of memory will be needed)"]


def test_a_long_text_is_estimated_in_gigabytes() -> None:
    long = PathSizes(tokens=9000, layers=3, heads=4, width=32 + 64, vocabulary=257, itemsize=8, suffixes=32, signs=4)
    assert 3e9 < long.bytes < 2e10
    assert long.bytes > 1.9 * replace(long, itemsize=4).bytes
