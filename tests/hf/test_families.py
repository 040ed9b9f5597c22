"""For every family the probe finds the expected anatomy, frames are complete, and the model is restored."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from transformers.modeling_utils import AttentionInterface

from attnscope.data.frame import AttentionFrame, StreamFrame
from attnscope.hf.anatomy.anatomy import Anatomy, anatomy
from attnscope.hf.anatomy.example import run
from attnscope.hf.anatomy.weights import weights
from attnscope.hf.intercepting.owners import every_tensor
from attnscope.hf.tapping.tap import Frame, tap
from attnscope.hf.tapping.verify import verify
from tests.hf.families import FAMILIES, Family

every_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


@functools.cache
def probed(family_name: str) -> tuple[Family, nn.Module, Anatomy]:
    family = next(f for f in FAMILIES if f.name == family_name)
    model = family.model()
    return family, model, anatomy(model, family.example())


def states(model: nn.Module) -> dict[str, Any]:
    """Return everything that a tap changes while it runs."""
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    return {
        "hooks": hooks,
        "own forwards": sum("forward" in vars(m) for m in model.modules()),
        "registry": AttentionInterface.get_interface,
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "modes": torch._C._len_torch_function_stack(),
        "training": [m.training for m in model.modules()],
        "parameters": [p.detach().clone() for p in model.parameters()],
    }


def same(before: dict[str, Any], after: dict[str, Any]) -> bool:
    parameters = zip(before.pop("parameters"), after.pop("parameters"), strict=True)
    return before == after and all(torch.equal(a, b) for a, b in parameters)


@every_family
def test_probe_finds_the_expected_anatomy(family: Family) -> None:
    _, _, found = probed(family.name)
    assert found.routes == (family.route,)
    assert {(s.heads, s.kv_heads) for s in found.sites} == {(family.heads, family.kv_heads)}
    assert {b.writes.norm for s in found.stacks for b in s.blocks} <= {family.norm}
    assert all(b.writes.separable and b.writes.middle for s in found.stacks for b in s.blocks)
    assert {str(s.projections) for s in found.sites} == {family.weights}
    layers = {stack: {s.layer for s in found.sites if s.stack == stack} for stack in family.layers}
    assert layers == {stack: set(range(count)) for stack, count in family.layers.items()}
    for stack, sites in family.sites.items():
        for layer in range(family.layers[stack]):
            assert tuple(s.site for s in found.sites if (s.stack, s.layer) == (stack, layer)) == sites
    causal = {s.stack for s in found.sites if s.causal}
    assert causal == set(family.causal)
    assert all(stack.chained for stack in found.stacks)
    assert family.norm in str(found) or not found.stacks


@pytest.mark.parametrize(
    ("family", "padding"), [pytest.param(f, p, id=f"{f.name}-{p}") for f in FAMILIES for p in f.paddings]
)
def test_verified_and_bit_equal(family: Family, padding: str) -> None:
    _, model, found = probed(family.name)
    result = verify(model, family.batch(padding), found)
    assert result.passed, result.sentence
    assert result.checks["output"].largest == 0.0
    assert result.largest < 1e-6
    assert "unchanged" in result.sentence


@every_family
def test_frames_are_complete(family: Family) -> None:
    _, model, found = probed(family.name)
    padding = family.paddings[-1]
    frames: list[Frame] = []
    with torch.inference_mode(), tap(model, found, frames.append):
        run(model, family.batch(padding))
    seen = Counter((f.stack, f.site, f.layer) for f in frames)
    expected: Counter[tuple[str, str, int]] = Counter()
    for stack, count in family.layers.items():
        for layer in range(count):
            expected.update((stack, site, layer) for site in family.sites[stack])
            if found.stacks:
                expected.update([(stack, "stream", layer), (stack, "middle", layer)])
        if found.stacks:
            expected[stack, "stream", count] = 1
    assert seen == expected
    for frame in frames:
        if isinstance(frame, StreamFrame):
            assert frame.stream.shape[:2] == frame.token_mask.shape
            assert frame.stream.shape[2] == 32
            assert (frame.stream_before is None) == (frame.site == "stream" and frame.layer == 0)
            assert not frame.stream.requires_grad
        else:
            assert frame.scores.query.shape[1] == family.heads
            assert frame.mixed.shape[2] == family.heads
            assert frame.value.shape[1] == family.kv_heads
            assert frame.output_weight is not None
            assert frame.output_weight.shape == (family.heads, 8, 32)
    if padding != "none":
        padded = {f.stack for f in frames if isinstance(f, StreamFrame) and int((~f.token_mask).sum()) == 3}
        assert padded == family.padded_stacks
        crossed = [f for f in frames if isinstance(f, AttentionFrame) and f.site == "cross"]
        assert all(int((~f.key_mask).sum()) == 3 and bool(f.query_mask.all()) for f in crossed)


@every_family
def test_model_is_restored_after_an_exception_in_a_tap(family: Family) -> None:
    _, model, found = probed(family.name)
    batch = family.batch()
    with torch.no_grad():
        untouched = [t.clone() for t in every_tensor(run(model, batch))]
    before = states(model)
    count = 0

    def fail_in_the_middle(frame: Frame) -> None:
        nonlocal count
        count += 1
        if count == max(1, len(found.sites) + 1):
            raise ZeroDivisionError("in the middle")

    failing = fail_in_the_middle if found.stacks else _fail
    with pytest.raises(ZeroDivisionError), torch.no_grad(), tap(model, found, failing):
        run(model, batch)
    assert same(before, states(model))
    with torch.no_grad():
        again = list(every_tensor(run(model, batch)))
    assert all(torch.equal(a, b) for a, b in zip(untouched, again, strict=True))


def _fail(frame: Frame) -> None:
    raise ZeroDivisionError("at once")


@every_family
def test_probing_changes_nothing(family: Family) -> None:
    model = family.model()
    model.train()
    before = states(model)
    anatomy(model, family.example())
    assert same(before, states(model))


@pytest.mark.parametrize("family", [f for f in FAMILIES if "torch" not in f.name], ids=lambda f: f.name)
def test_output_weights_equal_those_of_the_model(family: Family) -> None:
    """Mixed heads times the output weights equal the output of some linear map of the model.

    Layers of torch are left out, because a function mode does not see their projections.
    """
    _, model, found = probed(family.name)
    taken: list[torch.Tensor] = []

    def receive(frame: Frame) -> None:
        if isinstance(frame, AttentionFrame):
            assert frame.output_weight is not None
            taken.append(torch.einsum("bqhd,hdw->bqw", frame.mixed, frame.output_weight))

    products: list[torch.Tensor] = []

    class Products(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            name = getattr(func, "__name__", "")
            if name in {"linear", "addmm", "einsum"}:
                bias = args[0] if name == "addmm" else args[2] if name == "linear" and len(args) > 2 else None
                products.append(result if bias is None or isinstance(bias, str) else result - bias)
            return result

    with torch.no_grad(), tap(model, found, receive), Products():
        run(model, family.batch())
    assert len(taken) == len(found.sites)
    for written in taken:
        fitting = [p for p in products if p.numel() == written.numel() and p.shape[-1] == written.shape[-1]]
        turned = [w for p in fitting for w in (p.reshape(written.shape), _seq_first(p, written))]
        assert min(float((w - written).abs().max()) for w in turned) < 1e-5


def _seq_first(product: torch.Tensor, written: torch.Tensor) -> torch.Tensor:
    batch, tokens, width = written.shape
    return product.reshape(tokens, batch, width).transpose(0, 1)


@every_family
def test_weights_have_the_shapes_of_their_heads(family: Family) -> None:
    _, model, found = probed(family.name)
    for frame in weights(model, found):
        for weight in (frame.query_weight, frame.key_weight, frame.value_weight):
            assert weight is not None
            assert weight.shape == (family.heads, 32, 8)
        assert frame.output_weight is not None
        assert frame.output_weight.shape == (family.heads, 8, 32)
        assert frame.scale > 0
