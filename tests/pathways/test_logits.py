"""Logits of one block as tables of sources: a case by hand, a slow way with hooks, and every kind of block."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from attnscope.core.errors import RefusalError
from attnscope.hf.editing.freeze import freeze
from attnscope.pathways.logits import Source, entering
from attnscope.pathways.network import Network
from attnscope.pathways.written_logits import written_out_rule
from tests.pathways.logit_models import IDS, MODELS, SMALL, made


def by_hand() -> Network:
    """Two blocks on two tokens of width 2. Block 0 looks everywhere equally; queries and keys of block 1 are the
    stream.
    """

    def mixed(x: Tensor, sharpness: float) -> Tensor:
        heads = x[:, None]
        return x + F.scaled_dot_product_attention(sharpness * heads, heads, heads)[:, 0]

    blocks = (lambda x: mixed(x, 0.0), lambda x: mixed(x, 1.0))
    first = torch.eye(2, dtype=torch.float64)[None]
    second = blocks[0](first)
    third = blocks[1](second)
    return Network("by hand", (first, second, third), blocks, lambda x: x, third)


def test_two_tokens_by_hand() -> None:
    found = entering(by_hand(), 1)
    assert found.sources == (Source("embedding"), Source("biases"), Source("head", 0, 0), Source("mlp", 0))
    sides = found.sides(0)
    # The embeddings are (1, 0) and (0, 1), and the head writes (0.5, 0.5) at both tokens.
    table = sides.query_parts[:, 0] @ sides.key_parts[:, 1].T
    expected = torch.zeros(4, 4, dtype=torch.float64)
    expected[0, 2] = expected[2, 0] = expected[2, 2] = 0.5
    torch.testing.assert_close(table, expected)
    assert float(sides.query[0] @ sides.key[1]) == pytest.approx(1.5)
    # Without the head at token 1, the key is (0, 1), and the query at token 0 is as before.
    without = found.without(2, 1, 0)
    torch.testing.assert_close(without.key[1], torch.tensor([0.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(without.query[0], sides.query[0])


@pytest.mark.parametrize("name", MODELS)
def test_sources_add_up_to_the_stream_and_to_queries_and_keys(name: str) -> None:
    network = freeze(made(name), {"input_ids": IDS})
    for block in range(network.layers):
        found = entering(network, block)
        assert len(found.sources) == 2 + 5 * block
        assert found.apart < 1e-12
        for head in range(4):
            sides = found.sides(head)
            torch.testing.assert_close(sides.query_parts.sum(0), sides.query, rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(sides.key_parts.sum(0), sides.key, rtol=1e-10, atol=1e-12)


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10_000), groups=st.integers(2, 9))
def test_the_size_of_groups_does_not_matter(seed: int, groups: int) -> None:
    network = freeze(made("BERT: post-norm, biases", seed), {"input_ids": IDS})
    with pytest.MonkeyPatch.context() as patch:
        whole = entering(network, 2)
        both = whole.sides(1)
        patch.setattr("attnscope.pathways.logits.AT_ONCE", groups * network.streams[0].numel())
        parted = entering(network, 2)
        torch.testing.assert_close(parted.parts, whole.parts)
        torch.testing.assert_close(parted.sides(1).key_parts, both.key_parts)


def test_equals_a_slow_way_with_hooks_on_llama() -> None:
    """Heads are slices of the output projection, MLPs are outputs of modules, and the norm is written out."""
    model: Any = made("Llama: grouped keys, rotary")
    network = freeze(model, {"input_ids": IDS})
    found, head, size = entering(network, 2), 3, 8
    sides = found.sides(head)
    mixed, mlps = {}, {}
    for number, block in enumerate(model.model.layers):
        block.self_attn.o_proj.register_forward_pre_hook(lambda m, args, n=number: mixed.update({n: args[0]}))
        block.mlp.register_forward_hook(lambda m, args, out, n=number: mlps.update({n: out}))
    with torch.no_grad():
        model(IDS)
        writes = [model.model.embed_tokens(IDS), torch.zeros_like(mlps[0])]
        for number in range(2):
            weight = model.model.layers[number].self_attn.o_proj.weight
            for h in range(4):
                own = slice(h * size, (h + 1) * size)
                writes.append(mixed[number][..., own] @ weight[:, own].T)
            writes.append(mlps[number])
        slow = torch.stack(writes)
        torch.testing.assert_close(found.parts, slow, rtol=1e-6, atol=1e-6)  # the model's norms are float32
        layer, stream = model.model.layers[2], slow.sum(0)
        norm = layer.input_layernorm
        normed = slow * norm.weight / (stream.square().mean(-1, keepdim=True) + norm.variance_epsilon).sqrt()
        query = (normed @ layer.self_attn.q_proj.weight.T)[..., head * size : (head + 1) * size]
        key = (normed @ layer.self_attn.k_proj.weight.T)[..., head // 2 * size : (head // 2 + 1) * size]
        cos, sin = model.model.rotary_emb(stream, torch.arange(IDS.shape[1])[None])
        query, key = apply_rotary_pos_emb(query, key, cos, sin)
    torch.testing.assert_close(sides.query_parts, query[:, 0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sides.key_parts, key[:, 0], rtol=1e-5, atol=1e-5)


def test_the_rule_of_written_out_logits_is_found() -> None:
    network = freeze(made("GPT-J: parallel, written out"), {"input_ids": IDS})
    found = entering(network, 1)
    rule = written_out_rule(found, found.sides(2), 2)
    assert rule.softcap is None
    assert rule.scale == pytest.approx(8**-0.5, rel=1e-12)  # divided by the root of the head's width
    later = torch.ones(8, 8, dtype=torch.bool).triu(1)
    assert torch.equal(rule.bias, torch.zeros(8, 8, dtype=torch.float64).masked_fill(later, -torch.inf))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # the module of DeBERTa is scripted
def test_a_bias_that_reads_the_stream_is_refused() -> None:
    from transformers import DebertaV2Config, DebertaV2ForMaskedLM

    torch.manual_seed(0)
    config = DebertaV2Config(**SMALL, relative_attention=True, pos_att_type=["c2p", "p2c"], initializer_range=0.3)
    found = entering(freeze(DebertaV2ForMaskedLM(config).double().eval(), {"input_ids": IDS}), 1)
    with pytest.raises(RefusalError, match="adds something that depends on the text"):
        written_out_rule(found, found.sides(0), 0)
