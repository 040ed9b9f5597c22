"""All commands name weights that are NaN or infinite, whether or not a text uses them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import attnscope
from attnscope.core.errors import RefusalError
from attnscope.hf.loading.in_memory import broken_weights
from attnscope.hf.loading.load import load
from attnscope.hf.tapping.observed import observed_pattern
from tests.hardening.test_arguments import refused
from tests.specimens import TEXT, save_specimen, tiny_llama

EMBEDDING, UNUSED = "model.embed_tokens.weight", 200  # a byte that no English text has
QUERY = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_specimen(tmp_path_factory.mktemp("good") / "llama")


def with_weight(good: Path, to: Path, name: str, change: object) -> Path:
    folder = Path(shutil.copytree(good, to / "llama"))
    tensors = load_file(folder / "model.safetensors")
    tensors[name] = change(tensors[name])  # type: ignore[operator]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def broken_at(row: int, value: float) -> object:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone()
        tensor[row, 0] = value
        return tensor

    return change


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool])
def test_integer_weights_are_refused(good: Path, tmp_path: Path, kind: torch.dtype) -> None:
    folder = with_weight(good, tmp_path, QUERY, lambda tensor: tensor.to(kind))
    with pytest.raises(RefusalError, match=f"{QUERY} of llama are stored as"):
        load(folder)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_floating_weights_of_all_sizes_are_accepted(good: Path, tmp_path: Path, kind: torch.dtype) -> None:
    assert load(with_weight(good, tmp_path, QUERY, lambda tensor: tensor.to(kind))).parameters


def test_integer_masks_beside_the_weights_are_accepted(good: Path, tmp_path: Path) -> None:
    folder = with_weight(good, tmp_path, QUERY, lambda tensor: tensor)
    tensors = load_file(folder / "model.safetensors")
    tensors |= {"h.0.attn.bias": torch.ones(1, 1, 4, 4, dtype=torch.uint8), "position_ids": torch.arange(4)}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert load(folder).parameters


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(("name", "row"), [(EMBEDDING, UNUSED), (QUERY, 0)])
def test_a_broken_weight_is_named(good: Path, tmp_path: Path, name: str, row: int, value: float) -> None:
    folder = with_weight(good, tmp_path, name, broken_at(row, value))
    loaded = load(folder, dtype="float64")
    for ask in (
        lambda: attnscope.paths(loaded, "A text."),
        lambda: attnscope.collapse(loaded, [TEXT], samples=2),
        lambda: observed_pattern(loaded, "A text.", block=0, head=0, k=2),
    ):
        with pytest.raises(RefusalError, match=f"The weights {name} of llama hold NaN or infinite numbers"):
            ask()


def test_compile_refuses_broken_weights(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = with_weight(good, tmp_path, EMBEDDING, broken_at(UNUSED, float("nan")))
    monkeypatch.chdir(tmp_path)
    assert EMBEDDING in refused("compile", "--model", str(folder), "--text", "A text.")
    assert not (tmp_path / "head.safetensors").exists()


def test_scan_continues_and_names_the_broken_weight(good: Path, tmp_path: Path) -> None:
    folder = with_weight(good, tmp_path, EMBEDDING, broken_at(UNUSED, float("nan")))
    survey = attnscope.scan(str(folder), [TEXT], samples=2, max_tokens=16, measures="entropy")
    worst, *_ = attnscope.diagnose(survey)
    assert (worst.kind, worst.severity) == ("nonfinite", "wrong")
    assert EMBEDDING in worst.sentence
    attnscope.report(survey, tmp_path / "report.html")
    assert EMBEDDING in (tmp_path / "report.html").read_text()


def test_large_sums_of_sound_weights_are_not_broken() -> None:
    model = tiny_llama()
    with torch.no_grad():
        model.get_input_embeddings().weight.fill_(torch.finfo(torch.float32).max)
    assert broken_weights(model) == ()
