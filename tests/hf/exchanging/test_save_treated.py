"""A saved treated model loads with attnscope as it was, and transformers alone refuses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import attnscope
from attnscope.core.errors import RefusalError
from attnscope.core.registry import variants
from attnscope.hf.loading.load import load
from tests.hf.exchanging.treatable import HEADS, LAYERS, SIZES, kept, logits

SIDECAR = "attnscope.json"


def stirred(treated: Any) -> None:
    """Move the variant's parameters away from their initial values."""
    for number, one in enumerate(treated.parameters().values()):
        noise = torch.randn(one.shape, generator=torch.Generator().manual_seed(number))
        with torch.no_grad():
            one.add_(0.3 * noise.to(one))


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    folder, tokenizer = tmp_path_factory.mktemp("treated") / "gated", load("pocket").tokenizer
    assert tokenizer is not None
    torch.manual_seed(0)
    config = hf.LlamaConfig(vocab_size=len(tokenizer), num_key_value_heads=2, **SIZES)
    model = hf.LlamaForCausalLM(config).eval()
    with attnscope.installed(model, "gated_output", blocks=[1], how="headwise") as treated:
        stirred(treated)
        attnscope.save_treated(model, folder, tokenizer=tokenizer)
        return folder, logits(model)


@pytest.fixture
def copied(gated: tuple[Path, torch.Tensor], tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(gated[0], tmp_path / "copy"))


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
@pytest.mark.parametrize("name", ["gated_output", "learned_sink", "value_residual", "sandwich_norm", "sigma_reparam"])
def test_loaded_model_equals_saved_model(family: str, name: str, tmp_path: Path) -> None:
    model = kept(family)
    heads = [0, 2] if name in ("gated_output", "learned_sink") else None
    with attnscope.installed(model, name, heads=heads) as treated:
        stirred(treated)
        wanted = logits(model)
        attnscope.save_treated(model, tmp_path / "saved")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["saved"]
    loaded = load(tmp_path / "saved")
    assert torch.equal(logits(loaded.model), wanted)
    assert loaded.provenance["treated"]["variant"] == name
    assert not torch.equal(logits(model), wanted)


def test_every_variant_that_adds_tensors_can_be_saved_and_loaded(tmp_path: Path) -> None:
    model = kept("llama")
    for name, one in variants().items():
        if not one.card.causal or not one.card.trains or name in ("mixed_heads",):
            continue
        with attnscope.installed(model, name) as treated:
            attnscope.save_treated(model, tmp_path / name)
            names = set(treated.parameters())
        sidecar = json.loads((tmp_path / name / SIDECAR).read_text())
        assert sidecar["variant"] == name
        assert names <= set(sidecar["parameters"])


def test_sidecar_holds_the_recipe(gated: tuple[Path, torch.Tensor]) -> None:
    said = json.loads((gated[0] / SIDECAR).read_text())
    assert (said["variant"], said["layers"], said["heads"]) == ("gated_output", [1], None)
    assert said["settings"] == {"how": "headwise"}
    assert said["attnscope"] == attnscope.__version__
    assert all(".attnscope_gated_output." in name for name in said["parameters"])


def test_transformers_alone_refuses_the_folder_and_says_why(gated: tuple[Path, torch.Tensor]) -> None:
    with pytest.raises(ValueError, match="attnscope_treated"):
        hf.AutoModelForCausalLM.from_pretrained(gated[0])
    with pytest.raises(Exception, match="attnscope replaced the attention"):
        hf.LlamaForCausalLM.from_pretrained(gated[0])
    with pytest.raises(OSError, match="no file named"):  # even with the right configuration
        hf.LlamaForCausalLM.from_pretrained(gated[0], config=hf.LlamaConfig(vocab_size=60, **SIZES))


def test_variant_of_weights_only_is_saved_as_an_ordinary_model(tmp_path: Path) -> None:
    model = kept("gpt2")
    largest = {layer: [3.0, 1.0, 3.0, 0.5] for layer in range(LAYERS)}
    with attnscope.installed(model, "qk_clip", max_logit=largest, threshold=1.0):
        wanted = logits(model)
        attnscope.save_treated(model, tmp_path / "clipped")
    assert not torch.equal(logits(model), wanted)
    assert torch.equal(logits(hf.GPT2LMHeadModel.from_pretrained(tmp_path / "clipped").eval()), wanted)
    loaded = load(tmp_path / "clipped")
    assert torch.equal(logits(loaded.model), wanted)
    assert loaded.provenance["treated"]["variant"] == "qk_clip"


def test_scan_collapse_and_paths_see_the_treated_model(gated: tuple[Path, torch.Tensor]) -> None:
    folder, wanted = gated
    text = ["The rabbit took a watch out of its pocket and ran down the hole before anyone could see it go. " * 3]
    survey = attnscope.scan(
        folder, text, max_tokens=12, samples=4, measures=["entropy", "sink_mass", "head_contribution"]
    )
    assert survey.provenance["model"]["treated"]["variant"] == "gated_output"
    assert survey.values("entropy").shape == (LAYERS, HEADS)
    collapsed = attnscope.collapse(folder, text, max_tokens=12, samples=2)
    assert collapsed.to_json()["provenance"]["model"]["treated"]["variant"] == "gated_output"
    told = attnscope.paths(folder, "The rabbit took a watch", draws=0, top=1)
    assert told.difference < 1e-4
    assert torch.equal(logits(load(folder).model), wanted)


def test_treated_model_without_a_tokenizer_notes_random_tokens(copied: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (copied / name).unlink(missing_ok=True)
    survey = attnscope.scan(copied, max_tokens=8, samples=2, measures=["entropy"])
    assert any("without its tokenizer and read random tokens" in note for note in survey.provenance["notes"])


def test_a_treated_model_is_not_treated_again(gated: tuple[Path, torch.Tensor]) -> None:
    with pytest.raises(RefusalError, match="already has gated_output installed"):
        attnscope.treat(gated[0], remedy="qk_norm", steps=1, samples=4, max_tokens=12)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "version 2 of its format"),
        ({"format": "other"}, "was not written by save_treated"),
        ({"variant": "gated_outptu"}, "gated_outptu"),
        ({"layers": "many"}, "damaged"),
        ({"parameters": {}}, "lists other tensors"),
    ],
)
def test_unusable_sidecar_is_refused(copied: Path, change: dict[str, Any], words: str) -> None:
    said = json.loads((copied / SIDECAR).read_text())
    (copied / SIDECAR).write_text(json.dumps({**said, **change}))
    with pytest.raises(RefusalError, match=words):
        load(copied)


def test_a_missing_sidecar_changed_weights_and_missing_weights_are_refused(copied: Path) -> None:
    weights = copied / "treated.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(RefusalError, match="does not have the hash"):
        load(copied)
    weights.unlink()
    with pytest.raises(RefusalError, match="are missing"):
        load(copied)
    weights.write_bytes(whole)
    (copied / SIDECAR).unlink()
    with pytest.raises(RefusalError, match=r"attnscope.json is missing"):
        load(copied)


def test_refused_saving_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = kept("llama")
    with pytest.raises(RefusalError, match="has no variant installed"):
        attnscope.save_treated(model, tmp_path / "plain")
    nano = kept("nano")
    with attnscope.installed(nano, "gated_output"), pytest.raises(RefusalError, match="not a transformers model"):
        attnscope.save_treated(nano, tmp_path / "nano")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("mine")
    with attnscope.installed(model, "gated_output"):
        with pytest.raises(RefusalError, match="not an empty folder"):
            attnscope.save_treated(model, tmp_path / "there")
        full = OSError(28, "No space left on device")

        def no_room(*_: Any, **__: Any) -> None:
            raise full

        monkeypatch.setattr("attnscope.hf.installed.save_file", no_room)
        with pytest.raises(RefusalError, match=r"No space left on device\): choose another folder, or free space"):
            attnscope.save_treated(model, tmp_path / "full")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["there"]
    assert (tmp_path / "there" / "file").read_text() == "mine"
