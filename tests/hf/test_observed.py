"""Observed patterns are the largest entries of the model's own attention weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.hf.loading.in_memory import in_memory
from attnscope.hf.tapping.observed import observed_pattern
from attnscope.papers.models.nano import Config, Nano
from tests.hf.families import FAMILIES
from tests.specimens import byte_tokenizer, tiny_llama, tiny_t5


def family(name: str) -> nn.Module:
    return next(f for f in FAMILIES if f.name == name).model()


def ids(tokens: int, rows: int = 1) -> Tensor:
    return torch.randint(3, 60, (rows, tokens), generator=torch.Generator().manual_seed(0))


def maps(model: Any, batch: dict[str, Tensor]) -> np.ndarray:
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return model(**batch, output_attentions=True).attentions


@pytest.mark.parametrize("name", ["Llama", "BERT", "Gemma2", "Mistral"])
def test_pattern_is_the_top_k_of_eager_attention(name: str) -> None:
    """The reference is eager attention, for grouped keys, both directions, capped logits and a window."""
    model, batch, k = family(name), {"input_ids": ids(11)}, 3
    pattern = observed_pattern(model, batch, block=1, head=2, k=k)
    own = maps(model, batch)[1][0, 2].double().numpy()
    assert pattern.causal == (name != "BERT")
    assert pattern.n == pattern.n_keys == 11
    for row in range(11):
        there = np.flatnonzero(pattern.dense()[row])
        assert len(there) == (min(k, row + 1) if pattern.causal else k)
        best = np.argsort(own[row])[::-1][: len(there)]
        assert set(there) == set(best)
        np.testing.assert_allclose(pattern.dense()[row, there], own[row, there] / own[row, there].sum(), atol=1e-5)


def test_top_k_of_all_keys_is_the_whole_row() -> None:
    model = Nano(Config(vocab_size=64, width=32, heads=4, layers=2), seed=2).eval()
    pattern = observed_pattern(model, {"input_ids": ids(6)}, block=0, head=3, k=6)
    assert not pattern.causal
    assert pattern.counts.tolist() == [6] * 6


def test_text_is_read_with_the_tokenizer() -> None:
    loaded = in_memory(tiny_llama(), byte_tokenizer(), name="tiny")
    pattern = observed_pattern(loaded, "A dog.", block=0, head=1, k=2)
    assert pattern.n == 7  # one token for every byte, and BOS
    assert pattern.name == "tiny, block 0, head 1, top 2"
    again = observed_pattern(tiny_llama(), "A dog.", block=0, head=1, k=2, tokenizer=byte_tokenizer())
    assert np.array_equal(pattern.dense(), again.dense())


def test_padding_is_left_out() -> None:
    model = family("Llama")
    whole = observed_pattern(model, {"input_ids": ids(8)}, block=1, head=0, k=2)
    padded = {"input_ids": torch.cat([ids(8), ids(3)], dim=1), "attention_mask": torch.tensor([[1] * 8 + [0] * 3])}
    np.testing.assert_allclose(observed_pattern(model, padded, block=1, head=0, k=2).dense(), whole.dense(), atol=1e-6)


def test_two_stacks_need_a_name() -> None:
    model, tokenizer = tiny_t5(), byte_tokenizer()
    with pytest.raises(RefusalError, match="stacks encoder, decoder"):
        observed_pattern(model, "A dog.", block=0, head=0, k=2, tokenizer=tokenizer)
    decoder = observed_pattern(model, "A dog.", block=0, head=0, k=2, tokenizer=tokenizer, stack="decoder")
    encoder = observed_pattern(model, "A dog.", block=0, head=0, k=2, tokenizer=tokenizer, stack="encoder")
    assert (decoder.causal, encoder.causal) == (True, False)


@pytest.mark.parametrize(
    ("batch", "options", "sentence"),
    [
        ({"input_ids": ids(5)}, {"block": 2}, "attends in blocks 0-1, not in block 2"),
        ({"input_ids": ids(5)}, {"block": -1}, "not in block -1"),
        ({"input_ids": ids(5)}, {"head": 4}, "has heads 0 to 3, not 4"),
        ({"input_ids": ids(5)}, {"k": 6}, "no query has 6 keys: pass a k of 5 or less"),
        ({"input_ids": ids(5)}, {"k": 0}, "k of 1 or more"),
        ({"input_ids": ids(1)}, {"k": 1}, "single token"),
        ({"input_ids": ids(5, rows=2)}, {}, "2 sequences"),
        ({"input_ids": ids(5)}, {"stack": "modle"}, "no stack 'modle' .* Did you mean 'model'"),
        ("A dog.", {}, "has no tokenizer"),
    ],
)
def test_what_cannot_be_observed_is_refused(batch: Any, options: dict[str, Any], sentence: str) -> None:
    model = Nano(Config(vocab_size=64, width=32, heads=4, layers=2, causal=True)).eval()
    with pytest.raises(RefusalError, match=sentence):
        observed_pattern(model, batch, **{"block": 0, "head": 0, "k": 2, **options})


def test_texts_beyond_the_positions_are_refused() -> None:
    with pytest.raises(RefusalError, match="101 tokens and LlamaForCausalLM reads 64 at most"):
        observed_pattern(tiny_llama(), "x" * 100, block=0, head=0, k=2, tokenizer=byte_tokenizer())
