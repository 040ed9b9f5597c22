"""The nano model does what its settings say, the tap reads it, and every variant can be its attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import attnscope
from attnscope.core.errors import RefusalError
from attnscope.core.variant import Size, Variant
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.tapping.verify import verify
from attnscope.papers.models.nano import Config, Nano, exchanged, visible_keys
from tests.variants.calls import SETTINGS, attending


def small(**settings: Any) -> Config:
    return Config(**{"vocab_size": 20, "width": 12, "heads": 3, "layers": 2, "max_tokens": 16, **settings})


def ids(tokens: int = 7, rows: int = 2) -> Tensor:
    return torch.randint(0, 20, (rows, tokens), generator=torch.Generator().manual_seed(0))


def written_out(model: Nano, stream: Tensor, causal: bool) -> Tensor:
    """Return the output from the equations, one head at a time, without the model's own forward."""
    config, state = model.config, model.state_dict()

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ state[f"{name}.weight"].T + state.get(f"{name}.bias", torch.zeros(()))

    def norm(name: str, x: Tensor) -> Tensor:
        if config.norm == "none":
            return x
        gain = state[f"{name}.weight"]
        if config.norm_kind == "rms":
            return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * gain + state[f"{name}.bias"]

    def attend(name: str, x: Tensor) -> Tensor:
        queries, keys, values = (linear(f"{name}.{part}", x) for part in ("query", "key", "value"))
        mixed = []
        for head in range(config.heads):
            mine = slice(head * config.dim, (head + 1) * config.dim)
            logits = queries[..., mine] @ keys[..., mine].transpose(1, 2) / config.dim**0.5
            if causal:
                hidden = torch.ones(logits.shape[-2:]).triu(1).bool()
                logits = logits.masked_fill(hidden, -torch.inf)
            mixed.append(logits.softmax(-1) @ values[..., mine])
        return linear(f"{name}.output", torch.cat(mixed, dim=-1))

    def mlp(name: str, x: Tensor) -> Tensor:
        return linear(f"{name}.2", getattr(F, config.activation)(linear(f"{name}.0", x)))

    second = config.skip if config.mlp_skip is None else config.mlp_skip
    for layer in range(config.layers):
        block = f"blocks.{layer}"
        for part, function, skip in (("attention", attend, config.skip), ("mlp", mlp, second)):
            if part == "mlp" and config.mlp is None:
                continue
            read = norm(f"{block}.{part}_norm", stream) if config.norm == "pre" else stream
            stream = skip * stream + config.branch * function(f"{block}.{part}", read)
            stream = norm(f"{block}.{part}_norm", stream) if config.norm == "post" else stream
    return linear("output", norm("last_norm", stream) if config.norm == "pre" else stream)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"norm": "post", "mlp": 20, "causal": True},
        {"norm": "none", "mlp": 20, "activation": "relu", "skip": 0.0, "mlp_skip": 1.0},
        {"norm": "pre", "norm_kind": "rms", "mlp": 20, "activation": "silu", "biases": False},
        {"norm": "post", "norm_kind": "rms", "skip": 0.5, "branch": 0.25, "positions": "none"},
        {"head_width": 5, "causal": True, "skip": False, "initial": 0.02},
    ],
)
def test_forward_pass_equals_its_equations(settings: dict[str, Any]) -> None:
    model = Nano(small(**settings), seed=3).double()
    with torch.no_grad():
        for parameter in model.parameters():  # fresh biases are zero and fresh gains one, which would hide mistakes
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
        stream = model.embedding(ids())
        if model.positions is not None:
            stream = stream + model.positions.weight[:7]
        expected = written_out(model, stream, model.config.causal)
        torch.testing.assert_close(model(ids()), expected, atol=1e-12, rtol=1e-12)


def test_vectors_go_through_a_perceptron() -> None:
    config = Config(inputs=2, inputs_hidden=8, out=3, width=12, heads=3, layers=1, positions="none")
    model, points = Nano(config).double(), torch.randn(2, 7, 2, dtype=torch.float64)
    state = model.state_dict()
    hidden = F.gelu(points @ state["embedding.0.weight"].T + state["embedding.0.bias"])
    stream = hidden @ state["embedding.2.weight"].T + state["embedding.2.bias"]
    torch.testing.assert_close(model(vectors=points), written_out(model, stream, False), atol=1e-12, rtol=1e-12)
    order = torch.randperm(7)
    torch.testing.assert_close(model(vectors=points[:, order]), model(vectors=points)[:, order])  # no positions


def test_weights_depend_on_the_seed_and_not_on_the_global_generator() -> None:
    before = torch.get_rng_state()
    one, again, other = Nano(small(), seed=1), Nano(small(), seed=1), Nano(small(), seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one(ids()), again(ids()))
    assert not torch.equal(one(ids()), other(ids()))


def test_fresh_weights_have_the_requested_spread() -> None:
    asked = Nano(small(width=120, initial=0.02)).blocks[0].get_parameter("attention.query.weight").detach()
    usual = Nano(small(width=120)).blocks[0].get_parameter("attention.query.weight").detach()
    assert float(asked.std()) == pytest.approx(0.02, rel=0.05)
    assert float(usual.std()) == pytest.approx(120**-0.5, rel=0.05)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("causal", [False, True])
def test_padding_changes_nothing_for_real_tokens(side: str, causal: bool) -> None:
    model = Nano(small(causal=causal, positions="none"))
    mask = torch.ones(2, 10, dtype=torch.long)
    real = slice(3, None) if side == "left" else slice(0, 7)
    mask[:, : 3 if side == "left" else None] = 0 if side == "left" else 1
    if side == "right":
        mask[:, 7:] = 0
    padded = torch.zeros(2, 10, dtype=torch.long)
    padded[:, real] = ids()
    logits = model(padded, attention_mask=mask)
    assert bool(logits.isfinite().all())
    torch.testing.assert_close(logits[:, real], model(ids()), atol=1e-5, rtol=1e-5)


def test_causal_models_do_not_look_ahead() -> None:
    model, other = Nano(small(causal=True)), ids().clone()
    other[:, 4:] = 0
    torch.testing.assert_close(model(ids())[:, :4], model(other)[:, :4])
    assert visible_keys(4, False, None, torch.device("cpu")) is None


def test_attention_can_be_exchanged() -> None:
    def uniform(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        return value.mean(2, keepdim=True).expand_as(value)

    model = Nano(small(skip=0, norm="none"), attention=uniform)
    logits = model(ids())
    torch.testing.assert_close(logits, logits[:, :1].expand_as(logits))  # every query sees the same mean


def softmax_by_hand(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    logits = scale * query @ key.transpose(-1, -2)
    return (logits if mask is None else logits.masked_fill(~mask, -torch.inf)).softmax(-1) @ value


@pytest.mark.parametrize(
    ("settings", "norm"),
    [
        ({"causal": True, "mlp": 20}, "pre"),
        ({"norm": "post", "norm_kind": "rms"}, "post"),
        ({"norm": "none", "mlp": 20}, "none"),
    ],
)
@pytest.mark.parametrize("by_hand", [False, True])
def test_the_probe_finds_every_part(settings: dict[str, Any], norm: str, by_hand: bool) -> None:
    model = Nano(small(**settings), seed=1, **({"attention": softmax_by_hand} if by_hand else {})).eval()
    found = anatomy(model)
    assert found.routes == ("softmax" if by_hand else "sdpa",)
    assert [block.path for block in found.stacks[0].blocks] == ["blocks.0", "blocks.1"]
    assert {block.writes.norm for block in found.stacks[0].blocks} == {norm}
    assert all(str(site.projections) == "qkvo" for site in found.sites)
    assert all(site.causal == bool(settings.get("causal")) for site in found.sites)
    check = verify(model, {"input_ids": ids()}, found)
    assert check.passed, check.sentence


def test_nano_models_are_scanned_like_any_other() -> None:
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[0, 5:] = 0
    tokens = attnscope.scan(Nano(small(causal=True)).eval(), [{"input_ids": ids(), "attention_mask": mask}])
    points = Nano(Config(inputs=2, out=2, width=12, heads=3, layers=1, norm="post", positions="none")).eval()
    vectors = attnscope.scan(points, [{"vectors": torch.randn(2, 7, 2)}])
    assert tokens.provenance["corpus"]["tokens"] == 12
    assert {key.measure for key in vectors.cells} >= {"entropy", "relative_residual"}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"vocab_size": None}, "either vocab_size or inputs"),
        ({"inputs": 2}, "either vocab_size or inputs"),
        ({"vocab_size": None, "inputs": 2}, "give out"),
        ({"heads": 5}, "no 5 equal heads"),
        ({"layers": 0}, "layers=0"),
        ({"mlp": 0}, "mlp=0"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RefusalError, match=sentence):
        small(**settings)


def test_inputs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(RefusalError, match="16 positions, and the sequence has 17"):
        Nano(small())(ids(17))
    with pytest.raises(RefusalError, match="reads input_ids"):
        Nano(small())(vectors=torch.randn(1, 3, 2))


TOKENS = 11
SIZE = Size(heads=4, dim=4, width=16)
IDS = torch.randint(0, 20, (2, TOKENS), generator=torch.Generator().manual_seed(0))
PADDING = torch.ones(2, TOKENS, dtype=torch.long)
PADDING[0, -3:] = 0
every_attention = pytest.mark.parametrize("one", attending().values(), ids=attending())


def nano(one: Variant | None = None, *, causal: bool) -> Nano:
    config = Config(vocab_size=20, width=16, heads=4, layers=2, causal=causal, mlp=16, initial=0.6)
    if one is None:
        return Nano(config, seed=0).double()
    own = {name: tensor.double() for name, tensor in one.start(SIZE).items()}
    return Nano(config, seed=0, attention=exchanged(one, **own, **SETTINGS.get(one.card.name, {}))).double()


@every_attention
@pytest.mark.parametrize("causal", [False, True])
def test_a_start_that_keeps_the_function_keeps_the_model(one: Variant, causal: bool) -> None:
    model = nano(one, causal=causal)
    if causal and not one.card.causal:
        with pytest.raises(RefusalError, match="causal"):
            model(IDS)
        return
    for mask in (None, PADDING):
        found, before = model(IDS, attention_mask=mask), nano(causal=causal)(IDS, attention_mask=mask)
        real = torch.ones_like(PADDING).bool() if mask is None else PADDING.bool()
        assert bool(found.isfinite().all())
        same = torch.allclose(found[real], before[real], rtol=1e-10, atol=1e-10)
        assert same == (one.card.keeps is not None)


@every_attention
def test_no_causal_model_sees_the_future(one: Variant) -> None:
    if not one.card.causal:
        return
    model = nano(one, causal=True)
    other = IDS.clone()
    other[:, 6:] = (IDS[:, 6:] + 1) % 20
    assert torch.equal(model(IDS)[:, :6], model(other)[:, :6])
    assert not torch.equal(model(IDS)[:, 6:], model(other)[:, 6:])


@every_attention
def test_padding_changes_nothing_in_a_model(one: Variant) -> None:
    model = nano(one, causal=False)
    padded = model(IDS[:1], attention_mask=PADDING[:1])
    torch.testing.assert_close(padded[:, :-3], model(IDS[:1, :-3]), rtol=1e-10, atol=1e-10)
