"""Laws of graded tensors: in every linear program the parts add up to the value; nonlinear functions freeze."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.pathways.graded import Frozen, Graded, plain, watching
from attnscope.pathways.sums import Sums

BATCH, TOKENS, WIDTH = 2, 3, 4


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


WEIGHT, BIAS = numbers(WIDTH, WIDTH, seed=1), numbers(WIDTH, seed=2)
KERNEL, OTHERS, PLACES = numbers(WIDTH, WIDTH, 3, seed=4), numbers(BATCH, 2, WIDTH, seed=6), torch.tensor([2, 0, 2])
Step = Callable[[Tensor], Tensor]
STEPS: dict[str, Step] = {
    "linear": lambda x: F.linear(x, WEIGHT, BIAS),
    "linear without bias": lambda x: F.linear(x, WEIGHT),
    "addmm": lambda x: torch.addmm(BIAS, x.reshape(-1, WIDTH), WEIGHT).view(x.shape),
    "matmul with a weight": lambda x: x @ WEIGHT,
    "a weight from the left": lambda x: numbers(TOKENS, TOKENS, seed=3) @ x,
    "add itself": lambda x: x + 0.5 * x,
    "add a constant": lambda x: 3.0 + x - BIAS,
    "subtract from a constant": lambda x: BIAS - x,
    "add with alpha": lambda x: torch.add(x, x.clone(), alpha=2),
    "add in place": lambda x: x.clone().add_(x),
    "divide": lambda x: x / 3.0,
    "scale by a tensor": lambda x: x * BIAS,
    "divide by a frozen": lambda x: x / (1 + x.square().mean(-1, keepdim=True)).sqrt(),
    "layer norm": lambda x: F.layer_norm(x, (WIDTH,), BIAS, BIAS + 1),
    "rms norm": lambda x: F.rms_norm(x, (WIDTH,), BIAS),
    "attention": lambda x: (x @ x.mT).softmax(-1) @ x,
    "attention from the right": lambda x: (x.mT @ (x @ x.mT).softmax(-2)).mT,
    "fused attention": lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0],
    "einsum attention": lambda x: torch.einsum("bqk,bkd->bqd", (x @ x.mT).softmax(-1), x),
    "einsum with a weight": lambda x: torch.einsum("btd,de->bte", x, WEIGHT),
    "gelu": F.gelu,
    "relu": F.relu,
    "relu in place": lambda x: F.relu(x.clone(), inplace=True),
    "tanh": torch.tanh,
    "relu squared": lambda x: torch.square(F.relu(x)),
    "a clipped gelu": lambda x: torch.clip(F.gelu(x), -0.1, 0.5),
    "written-out silu": lambda x: x * torch.sigmoid(x),
    "a gated product": lambda x: F.silu(F.linear(x, WEIGHT)) * F.linear(x, WEIGHT.mT),
    "a gate from the left": lambda x: F.linear(x, WEIGHT.mT) * F.gelu(F.linear(x, WEIGHT)),
    "transpose twice": lambda x: x.transpose(1, 2).contiguous().transpose(-1, -2),
    "permute": lambda x: x.permute(2, 0, 1).permute(1, 2, 0),
    "flatten": lambda x: x.flatten(1).unflatten(-1, (TOKENS, WIDTH)),
    "view and reshape": lambda x: x.contiguous().view(BATCH, -1).reshape((BATCH, TOKENS, WIDTH)),
    "split and join": lambda x: torch.cat(x.split(2, dim=-1)[::-1], dim=-1),
    "chunk and stack": lambda x: torch.stack(x.chunk(2, -1), dim=2).flatten(2),
    "join a constant": lambda x: torch.cat([x[:, :1], numbers(BATCH, TOKENS - 1, WIDTH)], dim=1),
    "take apart": lambda x: torch.stack(x.unbind(1), dim=1),
    "index": lambda x: x[:, [2, 0, 1]] + x[..., -1:] + x[:, None, 0],
    "mean": lambda x: x - x.mean(1, keepdim=True),
    "sum": lambda x: x + x.sum(dim=(0, 1)),
    "squeeze": lambda x: x.unsqueeze(0).squeeze(0).unsqueeze(-1).squeeze(-1),
    "expand": lambda x: x[:, :1].expand(-1, TOKENS, -1) + x,
    "roll": lambda x: x.roll(1, dims=1),
    "negate": lambda x: -x,
    "dropout": lambda x: F.dropout(x, 0.5, training=False),
    "rows given back by number": lambda x: torch.zeros_like(x).index_add_(1, PLACES, F.linear(x, WEIGHT)),
    "rows added to others": lambda x: x.index_add(1, PLACES, x * 2, alpha=0.5),
    "clipped": lambda x: torch.clamp(x, min=-0.5, max=1.0),
    "clipped from above": lambda x: x.clamp(max=0.7),
    "attention to another stack": lambda x: (x @ OTHERS.mT).softmax(-1) @ OTHERS + x,
    "a constant of the stream's shape": lambda x: x + BIAS.expand_as(x),
    "blanked": lambda x: x.masked_fill(torch.tensor([True, False, False])[:, None], 0.0),
    "blanked in place": lambda x: x.clone().masked_fill_(torch.tensor([False, True, False])[:, None], 0),
    "glu": lambda x: F.glu(torch.cat([x, F.linear(x, WEIGHT)], dim=1), dim=1),
    "convolution": lambda x: F.conv1d(x.mT, KERNEL, BIAS, padding=1).mT,
    "pooling": lambda x: x + F.avg_pool1d(x, WIDTH),
    "batch norm": lambda x: F.batch_norm(x.mT, BIAS, BIAS.square() + 1, BIAS, BIAS).mT,
    "a router": lambda x: x * torch.sigmoid(F.linear(x, WEIGHT)).topk(1).values,
}


def graded(x: Tensor) -> Graded:
    assert isinstance(x, Graded)
    return x


@given(
    st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6),
    st.sampled_from(["attention", "both", "edges", "none"]),
    st.integers(0, 100),
)
def test_parts_add_up_whatever_is_computed(names: list[str], count: Any, seed: int) -> None:
    x: Tensor = Graded.entering(numbers(BATCH, TOKENS, WIDTH, seed=seed), count)
    alone = plain(x).clone()
    for name in names:
        x, alone = STEPS[name](x), STEPS[name](alone)
    assert isinstance(x, Graded)
    assert torch.equal(x.value, alone)  # the function's own number
    assert x.parts.shape[3:] == x.shape
    whole = x.parts.sum((0, 1, 2))
    assert (whole - alone).abs().max() <= 1e-9 * max(1.0, float(alone.abs().max()))


@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=5), st.floats(-3, 3))
def test_source_zero_is_linear_in_the_stream(names: list[str], factor: float) -> None:
    """With everything frozen, twice the parts that enter are twice the parts that leave."""
    stream = numbers(BATCH, TOKENS, WIDTH)
    parts = numbers(1, 1, 1, BATCH, TOKENS, WIDTH, seed=5)
    answers = []
    for scale in (1.0, factor):
        x: Tensor = Graded.of(stream.clone(), scale * parts, None, "both")
        for name in names:
            x = STEPS[name](x)
        assert isinstance(x, Graded)
        answers.append(x.parts)
    assert torch.allclose(answers[1], factor * answers[0], rtol=1e-9, atol=1e-9 * float(answers[0].abs().max() + 1))


@pytest.mark.parametrize("count", ["attention", "both", "edges"])
def test_edges_count_on_their_axis(count: Any) -> None:
    x = Graded.entering(numbers(BATCH, TOKENS, WIDTH), count)
    mixed = graded(STEPS["attention"](F.gelu(STEPS["attention"](x))))
    expected = {"attention": (3, 1), "both": (3, 2), "edges": (4, 1)}[count]
    assert mixed.parts.shape[1:3] == expected
    assert mixed.parts.flatten(1, 2)[:, :-1].abs().max() == 0
    assert mixed.sums.parts.shape[1:3] == (1, 1)  # no entries for paths that do not exist


@pytest.mark.parametrize("function", [torch.sin, torch.exp, torch.square, torch.abs, lambda x: x * x, lambda x: 1 / x])
def test_nonlinear_functions_freeze(function: Step) -> None:
    x = Graded.entering(numbers(BATCH, TOKENS, WIDTH))
    assert isinstance(function(x), Frozen)
    assert isinstance(x + function(x), Frozen)
    assert isinstance(function(x) * x, Graded)


def test_constants_of_the_same_shape_are_constants() -> None:
    x = Graded.entering(numbers(BATCH, TOKENS, WIDTH))
    for constant in (torch.zeros_like(x), x.new_ones(x.shape), torch.full_like(x, 2.0)):
        assert isinstance(constant, Graded)
        assert constant.parts[0].abs().max() == 0
        assert constant.parts[1].sum() == plain(constant).sum()  # a source of their own


def test_writing_the_stream_into_constants_is_refused() -> None:
    x = Graded.entering(numbers(BATCH, TOKENS, WIDTH))
    followed = graded(torch.zeros_like(x).add_(x))
    assert torch.equal(followed.parts, x.parts)
    rows = torch.arange(TOKENS)
    for write in (
        lambda zeros: zeros.add_(x),
        lambda zeros: zeros.index_add_(1, rows, x),
        lambda zeros: zeros.__setitem__(slice(None), x),
        lambda zeros: zeros.copy_(x.sin()),
    ):
        with pytest.raises(RefusalError, match="tensor of constants"):
            write(torch.zeros(BATCH, TOKENS, WIDTH, dtype=torch.float64))


def test_a_stream_overwritten_by_an_unknown_function_is_refused() -> None:
    x = Graded.entering(numbers(BATCH, TOKENS, WIDTH))
    written = x.clone()
    written.exp_()
    assert torch.equal(plain(written), plain(x).exp())
    with pytest.raises(RefusalError, match="writes into its stream with 'exp_'"):
        _ = graded(written).parts


@pytest.mark.parametrize(
    ("name", "edges"), [("a router", 0), ("clipped", 0), ("convolution", 0), ("glu", 1), ("written-out silu", 1)]
)
def test_number_of_mlp_edges(name: str, edges: int) -> None:
    """A router's weights scale the experts' answers, which passed an activation already: no second edge."""
    left = graded(STEPS[name](Graded.entering(numbers(BATCH, TOKENS, WIDTH), "both")))
    assert left.parts.shape[2] == edges + 1


def test_padding_with_a_number_is_not_linear() -> None:
    x = Graded.entering(numbers(BATCH, TOKENS, WIDTH))
    padded = F.pad(x, (0, 1))
    assert isinstance(padded, Graded)
    assert torch.equal(padded.parts.sum((0, 1, 2)), plain(padded))
    assert isinstance(F.pad(x, (0, 1), value=1.0), Frozen)
    assert isinstance(F.pad(x, (0, 1), "constant", 1.0), Frozen)


def test_watching_heads_that_mix_from_the_right_is_refused() -> None:
    x = Graded.entering(numbers(BATCH, TOKENS, WIDTH))
    assert graded(STEPS["attention from the right"](x)).parts.shape[1] == 2
    with watching(lambda mixed, pattern: None), pytest.raises(RefusalError, match="from the right"):
        _ = graded(STEPS["attention from the right"](x)).parts


def test_gates_at_zero() -> None:
    """Silu's and gelu's ratio at zero is their slope, one half; tanh's is one; relu's gate is shut there."""
    value = torch.zeros(1, 1, 2, dtype=torch.float64)
    parts = torch.tensor([1.0, -1.0], dtype=torch.float64).reshape(2, 1, 1, 1, 1, 1).expand(2, 1, 1, 1, 1, 2)
    expected: dict[Step, float] = {F.silu: 0.5, F.gelu: 0.5, torch.tanh: 1.0, F.relu: 0.0}
    for function, gate in expected.items():
        out = graded(function(Graded.of(value.clone(), parts, None, "none")))
        assert torch.allclose(out.parts, gate * parts, rtol=0, atol=1e-7)


def test_a_gate_that_multiplies_is_one_edge() -> None:
    x = Graded.entering(numbers(BATCH, TOKENS, WIDTH), "both")
    seen: list[Tensor] = []
    with watching(lambda activated, gate: seen.append(gate), "mlp"):
        gated = graded(STEPS["a gated product"](x))
        assert gated.parts.shape[1:3] == (1, 2)
    assert len(seen) == 1
    assert torch.equal(seen[0], F.silu(F.linear(plain(x), WEIGHT)))


@given(st.tuples(*[st.integers(0, 3)] * 4), st.tuples(*[st.integers(1, 3)] * 4))
def test_sums_of_different_lengths(first: tuple[int, ...], size: tuple[int, ...]) -> None:
    one = Sums(numbers(2, size[0], size[1], 3), (first[0], first[1]))
    other = Sums(numbers(2, size[2], size[3], 3, seed=1), (first[2], first[3]))
    wide = torch.zeros(2, 8, 8, 3, dtype=torch.float64)
    for sums in (one, other):
        wide[:, : sums.stop[0], : sums.stop[1]] += sums.dense
    both = one.plus(other).dense
    assert torch.equal(both, wide[:, : both.shape[1], : both.shape[2]])
    assert wide[:, both.shape[1] :].abs().sum() + wide[:, :, both.shape[2] :].abs().sum() == 0
