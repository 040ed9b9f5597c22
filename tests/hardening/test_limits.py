"""Huge requests are refused at once with what they would need, and no work is started."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import attnscope
from attnscope.core.errors import RefusalError
from attnscope.hf.loading import placing as room
from attnscope.hf.loading.load import load
from attnscope.hf.loading.memory import memory_left
from tests.hardening.test_arguments import refused
from tests.hf.families import FAMILIES, Family

SMALL = {
    "llama": {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "vocab_size": 64},
    "gpt2": {"n_embd": 32, "n_head": 4, "vocab_size": 64},
    "bert": {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "vocab_size": 64},
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4, "vocab_size": 64},
    "gemma2": {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "head_dim": 8, "vocab_size": 64},
}


def written(folder: Path, **settings: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(settings))
    return folder / "config.json"


@pytest.mark.parametrize(
    ("kind", "layers"),
    [("llama", "num_hidden_layers"), ("gpt2", "n_layer"), ("bert", "num_hidden_layers"), ("t5", "num_layers")],
)
def test_a_million_blocks_are_refused(tmp_path: Path, kind: str, layers: str) -> None:
    path = written(tmp_path, model_type=kind, **SMALL[kind], **{layers: 10**6})
    began = time.monotonic()
    with pytest.raises(RefusalError, match=r"[12],000,000 blocks"):
        load(path, random_init=True)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(("kind", "layers"), [("llama", 600), ("t5", 600), ("gemma2", 600)])
def test_deep_models_are_counted_without_being_built(kind: str, layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = transformers.CONFIG_MAPPING[kind](**SMALL[kind], num_hidden_layers=layers)
    cls = transformers.models.auto.modeling_auto.MODEL_MAPPING[type(config)]
    reckoned = room._parameters(cls, config)
    monkeypatch.setattr(room, "DEEP", 10**9)
    assert reckoned == room._parameters(cls, config)


def test_wide_models_say_what_they_would_take(tmp_path: Path) -> None:
    path = written(tmp_path, **{"model_type": "llama", **SMALL["llama"], "hidden_size": 2**20})
    with pytest.raises(RefusalError, match=r"parameters, which take [\d,]+ GB, and only [\d,]+ GB of memory are free"):
        load(path, random_init=True)


def test_a_configuration_without_sizes_is_one_of_seven_billion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "memory_left", lambda: 10**10)
    with pytest.raises(RefusalError, match="6,738,415,616 parameters, which take 27 GB, and only 10 GB"):
        load(written(tmp_path, model_type="llama"), random_init=True)


def test_counting_changes_neither_the_random_state_nor_the_configuration() -> None:
    config = transformers.LlamaConfig(**SMALL["llama"], num_hidden_layers=2)
    before = config.to_dict()
    torch.manual_seed(0)
    room.refuse_what_memory_cannot_hold(transformers.LlamaForCausalLM, config, torch.float32, "x")
    drawn = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(1))
    assert config.to_dict() == before


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # the module of DeBERTa is scripted
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_family_can_be_counted(family: Family) -> None:
    """The parameters counted on the meta device equal those of the model, for every family."""
    model = family.build()
    if not isinstance(model, transformers.PreTrainedModel):
        pytest.skip("not built from a configuration")
    assert room._count(type(model), model.config) == sum(p.numel() for p in model.parameters())


def test_available_memory_is_known() -> None:
    assert 10**8 < memory_left() < 1 << 62


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("paths", "pocket", "A text.", "--draws", "100000000"), "--draws 100000"),
        (("paths", "pocket", "A text.", "--top", "100000000"), "--top 10000"),
        (("collapse", "pocket", "--random-init", "--seeds", "1000000"), "--seeds 1000"),
        (("collapse", "pocket", "--random-init", "--seeds", str(2**70)), "--seeds 1000"),
        (("capacity", "-n", "8", "-k", "2", "--seeds", "999999999999"), "--seeds 1000"),
        (("reproduce", "dong2021", "--seeds", "999999999999"), "--seeds 1000"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, tuple) else "",
)
def test_huge_counts_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert says in refused(*words)
    assert not list(tmp_path.iterdir())


def test_huge_numbers_of_random_tokens_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, model_type="llama", **SMALL["llama"], num_hidden_layers=1)
    with pytest.raises(RefusalError, match="random tokens"):
        attnscope.scan(str(path), random_init=True, samples=10**12)
