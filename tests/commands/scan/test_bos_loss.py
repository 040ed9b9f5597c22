"""A hand-made model that depends on BOS: a scan measures its loss with and without BOS, and a finding reports it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import attnscope
from attnscope.commands.scan import observer as module
from attnscope.commands.scan.observer import bos_loss
from attnscope.commands.scan.run import scan
from attnscope.core.errors import RefusalError
from attnscope.hf.loading.in_memory import in_memory
from attnscope.hf.loading.load import batches_for
from attnscope.hf.loading.options import Sampling
from tests.specimens import TEXT, byte_tokenizer, tiny_llama

SEESAW = "ab" * 400
ALWAYS, TEXT_ONLY, OF_BOS, OF_A, OF_B, NOISE = range(6)  # channels of the stream


def sinking_model(noise: float = 30.0) -> LlamaForCausalLM:
    """Return a model that predicts b after a and a after b if its one head can attend to BOS; otherwise the head adds
    `noise`.

    All queries are one vector, which matches the key of BOS only, in the slowest pair of the rotation. The value of
    every token but BOS writes into a channel that favours z.
    """
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=128,
        bos_token_id=0,
    )
    model = LlamaForCausalLM(config).eval()
    a, b, z = byte_tokenizer(adds_bos=False)("abz")["input_ids"]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.zero_()
        embedding = model.model.embed_tokens.weight
        embedding[:, ALWAYS] = 1
        embedding[1:, TEXT_ONLY] = 1
        embedding[0, OF_BOS] = 1
        embedding[a, OF_A] = embedding[b, OF_B] = 1
        attention: Any = model.model.layers[0].self_attn
        slowest = 7  # of the pairs (i, i + 8); it rotates by 64 x 10000^(-7/8) = 0.02 over a window
        attention.q_proj.weight[slowest, ALWAYS] = 10
        attention.k_proj.weight[slowest, OF_BOS] = 10
        attention.v_proj.weight[0, TEXT_ONLY] = 1
        attention.o_proj.weight[NOISE, 0] = noise
        head = model.lm_head.weight
        head[b, OF_A] = head[a, OF_B] = head[z, NOISE] = 5
    return model


def _scan(model: LlamaForCausalLM, **options: Any) -> Any:
    tokenizer = byte_tokenizer(adds_bos=False)
    return scan(model, [SEESAW], tokenizer=tokenizer, samples=4, max_tokens=32, measures="sink_mass", **options)


def test_a_model_that_needs_bos_has_a_finding() -> None:
    survey = _scan(sinking_model())
    bos = survey.provenance["bos"]
    assert (bos["begins"], bos["loss_windows"]) == (False, 4)
    assert bos["loss_with"] < 0.5
    assert bos["loss_without"] > 2
    (finding,) = [found for found in attnscope.diagnose(survey) if found.kind == "missing_bos"]
    assert finding.severity == "wrong"
    assert "--bos yes" in finding.advice
    assert finding.value == bos["loss_without"] - bos["loss_with"]
    put = _scan(sinking_model(), bos="yes")
    assert put.provenance["bos"] == {"begins": True, "token": "<bos>", "why": "--bos yes"}
    assert "missing_bos" not in {found.kind for found in attnscope.diagnose(put)}
    assert put.values("sink_mass").item() > 0.9
    assert survey.values("sink_mass").item() < 0.3


def test_a_model_that_works_without_bos_has_no_finding() -> None:
    survey = _scan(sinking_model(noise=0.0))
    bos = survey.provenance["bos"]
    # Attention writes nothing here, so both losses are equal.
    assert bos["loss_with"] == pytest.approx(bos["loss_without"], abs=1e-5)
    assert "missing_bos" not in {found.kind for found in attnscope.diagnose(survey)}


def test_the_loss_is_that_of_the_model_on_the_same_tokens() -> None:
    model = tiny_llama()
    loaded = in_memory(model, byte_tokenizer())
    prepared = batches_for(loaded, [TEXT], Sampling(samples=2, max_tokens=20, bos="no"))
    found = bos_loss(loaded, prepared)
    ids = prepared.batches[0].inputs["input_ids"]
    put = torch.cat([torch.zeros(2, 1, dtype=torch.long), ids], dim=1)
    with torch.no_grad():
        without = model(ids, labels=ids).loss
        labels = put.clone()
        labels[:, 1] = -100  # without BOS, the first token of the text has no context
        with_bos = model(put, labels=labels).loss
    assert found["loss_without"] == pytest.approx(float(without), rel=1e-5)
    assert found["loss_with"] == pytest.approx(float(with_bos), rel=1e-5)


def test_the_bos_loss_runs_few_forwards() -> None:
    model, read = tiny_llama(), []
    loaded = in_memory(model, byte_tokenizer())
    model.register_forward_pre_hook(lambda _, args, kwargs: read.append(kwargs["input_ids"].shape), with_kwargs=True)
    for samples, tokens in ((9, 64), (1, 8)):
        read.clear()
        bos_loss(loaded, batches_for(loaded, [TEXT], Sampling(samples=samples, max_tokens=tokens, bos="no")))
        assert len(read) == 2 * min(samples, module.WINDOWS)
        assert max(shape[1] for shape in read) == min(tokens + 1, module.TOKENS)
        assert all(shape[0] == 1 for shape in read)
    read.clear()
    assert bos_loss(loaded, batches_for(loaded, [TEXT], Sampling(samples=2, max_tokens=16))) == {}
    assert not read


def test_an_unknown_answer_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(RefusalError, match="`bos=` cannot be 'maybe'"):
        scan("no such model", bos="maybe")
