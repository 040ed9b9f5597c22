"""Installed variants start as the identity where they can, train, and leave the model restored."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

import attnscope
from attnscope.core.errors import RefusalError
from attnscope.core.registry import variants
from tests.hf.exchanging.treatable import FAMILIES, HEADS, LAYERS, batch_of, kept, logits, made

KEEPING = [name for name, one in variants().items() if one.card.keeps is not None]
UNFIT = {
    ("bert", "layer_scaling"),  # a post-norm model
    *((family, "hybrid_normalised") for family in ("gpt2", "llama", "qwen2", "nano")),  # which cannot be causal
}
every_family = pytest.mark.parametrize("family", FAMILIES)


def settings(name: str) -> dict[str, Any]:
    if name == "qk_clip":
        return {"max_logit": [[1.0] * HEADS] * LAYERS}
    return {"kinds": ["full"] * HEADS} if name == "mixed_heads" else {}


def registries() -> tuple[set[str], set[str]]:
    return set(AttentionInterface._global_mapping), set(AttentionMaskInterface._global_mapping)


def as_it_is(model: Any) -> tuple[Any, ...]:
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    implementation = getattr(model.config, "_attn_implementation", None)
    return list(model.state_dict()), hooks, implementation, registries(), model.training


@every_family
@pytest.mark.parametrize("name", KEEPING)
def test_variant_that_starts_as_the_identity_keeps_the_logits(family: str, name: str) -> None:
    model = kept(family)
    own, before = logits(model), as_it_is(model)
    if (family, name) in UNFIT:
        with pytest.raises(RefusalError, match="choose another"), attnscope.installed(model, name):
            pass
    else:
        with attnscope.installed(model, name, **settings(name)) as treated:
            found = logits(model)
            assert treated.layers == tuple(range(LAYERS))
        # 1e-6 of the largest logit: a dozen roundings of float32 (2^-24 each) on the way through two blocks.
        assert float((found - own).abs().max()) <= 1e-6 * max(1.0, float(own.abs().max()))
    assert torch.equal(logits(model), own)
    assert as_it_is(model) == before


@every_family
def test_variant_acts_in_the_chosen_blocks_and_heads(family: str) -> None:
    model = kept(family)
    own = logits(model)
    with attnscope.installed(model, "gated_output", blocks=[1], heads=[0, 2]) as treated:
        assert (treated.layers, treated.heads) == ((1,), (0, 2))
        assert len(treated.parameters()) == 2
        for one in treated.parameters().values():
            torch.nn.init.normal_(one, std=2.0, generator=torch.Generator().manual_seed(1))
        assert float((logits(model) - own).abs().max()) > 1e-3
    with attnscope.installed(model, "softmax_plus_one", blocks=[0]):
        assert float((logits(model) - own).abs().max()) > 1e-3
    assert torch.equal(logits(model), own)


@every_family
def test_an_exception_restores_the_model(family: str) -> None:
    model = kept(family)
    own, before = logits(model), as_it_is(model)
    for name in ("gated_output", "learned_sink", "sigma_reparam"):
        with pytest.raises(ZeroDivisionError), attnscope.installed(model, name):
            raise ZeroDivisionError
        assert as_it_is(model) == before
        assert torch.equal(logits(model), own)


@every_family
@pytest.mark.parametrize("name", ["gated_output", "learned_sink", "value_residual", "qk_norm"])
def test_installed_variant_trains(family: str, name: str) -> None:
    model = kept(family)
    model.requires_grad_(False)
    with attnscope.installed(model, name) as treated:
        parameters = list(treated.parameters().values())
        assert parameters
        assert treated.projections()
        before = [one.detach().clone() for one in parameters]
        optimiser = torch.optim.SGD(parameters, lr=1.0)
        losses = []
        for _ in range(3):
            answer = model(**batch_of(model))
            loss = getattr(answer, "logits", answer).square().mean()
            optimiser.zero_grad()
            loss.backward()
            assert all(one.grad is not None and bool(one.grad.isfinite().all()) for one in parameters)
            optimiser.step()
            losses.append(float(loss.detach()))
        assert losses[-1] < losses[0]
        assert any(not torch.equal(one, was) for one, was in zip(parameters, before, strict=True))


def test_copy_of_a_treated_model_uses_its_own_parameters() -> None:
    model = made("llama")
    with attnscope.installed(model, "gated_output") as treated:
        twin = copy.deepcopy(model)
        own = logits(twin)
        for one in treated.parameters().values():
            torch.nn.init.constant_(one, 1.0)
        assert torch.equal(logits(twin), own)
        assert not torch.equal(logits(model), own)


@pytest.mark.parametrize(
    ("family", "given", "words"),
    [
        ("llama", {"variant": "gated_outptu"}, "Did you mean 'gated_output'"),
        ("llama", {"variant": "doubly_normalised"}, "cannot be causal"),
        ("llama", {"variant": "gated_output", "blocks": [7]}, "not in block 7"),
        ("llama", {"variant": "gated_output", "layers": [1]}, "has no setting 'layers'"),
        ("llama", {"variant": "gated_output", "blocks": []}, "No block was chosen"),
        ("llama", {"variant": "gated_output", "heads": [4]}, "heads 0 to 3, not 4"),
        ("llama", {"variant": "gated_value", "heads": [3]}, "value heads 0 to 1"),
        ("llama", {"variant": "sandwich_norm", "heads": [0]}, "not on heads"),
        ("llama", {"variant": "local", "windwo": 3}, "Did you mean 'window'"),
        ("llama", {"variant": "qk_clip"}, "needs max_logit"),
        ("bert", {"variant": "layer_scaling"}, "choose another variant"),
        ("vit", {"variant": "gated_output", "stack": "decoder"}, "no stack 'decoder'"),
    ],
)
def test_unfit_variants_are_refused_and_the_model_is_unchanged(family: str, given: dict[str, Any], words: str) -> None:
    model = kept(family)
    before = as_it_is(model)
    with pytest.raises(RefusalError, match=words) as caught, attnscope.installed(model, **given):
        pass
    assert "\n" not in str(caught.value)
    assert as_it_is(model) == before


def test_second_installation_is_refused() -> None:
    model = kept("llama")
    with attnscope.installed(model, "gated_output"):
        own = list(model.state_dict())
        with (
            pytest.raises(RefusalError, match="already has gated_output installed"),
            attnscope.installed(model, "qk_norm"),
        ):
            pass
        assert list(model.state_dict()) == own
    with attnscope.installed(model, "qk_norm"):
        pass


def test_model_outside_the_registry_is_refused_or_treated() -> None:
    import transformers as hf

    torch.manual_seed(0)
    config = hf.MPNetConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
    )
    model = hf.MPNetForMaskedLM(config).eval()
    own = logits(model)
    with pytest.raises(RefusalError, match="in its own code"), attnscope.installed(model, "learned_sink"):
        pass
    with attnscope.installed(model, "sandwich_norm") as treated:  # a variant of kind block, which needs no registry
        assert treated.parameters()
    assert torch.equal(logits(model), own)


def test_options_that_change_logits_are_refused() -> None:
    """Gemma 2 caps its logits, which a variant would drop."""
    import transformers as hf

    torch.manual_seed(0)
    config = hf.Gemma2Config(
        vocab_size=60,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        intermediate_size=16,
        attn_logit_softcapping=5.0,
    )
    model = hf.Gemma2ForCausalLM(config).eval()
    with pytest.raises(RefusalError, match="kind output, block or weights"), attnscope.installed(model, "learned_sink"):
        pass
    own = logits(model)
    with attnscope.installed(model, "gated_output"):
        assert float((logits(model) - own).abs().max()) <= 1e-6 * max(1.0, float(own.abs().max()))
