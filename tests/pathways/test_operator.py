"""The operator beside T written out: once from Kronecker products of a model's weights, as arXiv:2601.17958 writes it,
once column by column; and what is asked of it without writing it."""

from functools import cache
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

import attnscope
from attnscope.commands.operator.operator import Operator
from attnscope.core.errors import RefusalError
from attnscope.core.progress import silent
from attnscope.pathways import affine as affine_module
from attnscope.pathways.affine import Affine
from attnscope.pathways.operator_maps import MAPS, collapsed
from tests.hf.families import FAMILIES

BY_NAME = {family.name: family for family in FAMILIES}
ROUNDING = 1e-12  # float64: sums of some thousand products of numbers of order one
KINDS = ("contribution", "norm", "input", "output")


def tiny_bert() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = hf.BertModel(hf.BertConfig(vocab_size=20, max_position_embeddings=16, **sizes), add_pooling_layer=False)
    for parameter in model.parameters():  # biases and shifts begin at zero, and offsets would too
        torch.nn.init.normal_(parameter, std=0.4)
    return model.double().eval().requires_grad_(False)


BATCH = {"input_ids": torch.tensor([[3, 7, 1, 12, 7]])}


@cache
def small() -> tuple[Operator, Tensor]:
    """An operator, and T column by column."""
    op = attnscope.operator(tiny_bert(), BATCH)
    units = torch.eye(op.shape[1], dtype=torch.float64).reshape(-1, *op.input.shape)
    return op, (op @ units).flatten(1).T


def of_family(name: str) -> Operator:
    family = BY_NAME[name]
    batch = {key: value[:1] for key, value in family.batch().items()}
    return attnscope.operator(family.model().eval(), batch)


def test_operator_is_the_product_of_kronecker_products() -> None:
    """vec stacks tokens: (A (x) M) vec(X) = vec(A X M^T), so channels are mixed by M = (W_V^h W_O^h)^T."""
    model, (op, dense) = tiny_bert(), small()
    model.set_attn_implementation("eager")
    seen = model(**BATCH, output_attentions=True, output_hidden_states=True)
    tokens, width, heads = 5, 8, 2
    whole, offset = torch.eye(tokens * width, dtype=torch.float64), torch.zeros(tokens * width, dtype=torch.float64)
    one = torch.eye(width, dtype=torch.float64) - 1 / width

    def repeated(bias: Tensor) -> Tensor:
        return bias.expand(tokens, -1).flatten()

    def norm(module: Any, stream: Tensor) -> tuple[Tensor, Tensor]:
        scale = (stream.var(-1, unbiased=False) + module.eps).rsqrt()
        return torch.kron(torch.diag(scale), torch.diag(module.weight) @ one), repeated(module.bias)

    for layer, pattern, stream in zip(model.encoder.layer, seen.attentions, seen.hidden_states, strict=False):
        own, out = layer.attention.self, layer.attention.output
        value, write = own.value.weight.reshape(heads, -1, width), out.dense.weight.reshape(width, heads, -1)
        mixing = sum(torch.kron(pattern[0, h], write[:, h] @ value[h]) for h in range(heads))
        biases = own.value.bias.reshape(heads, -1)
        rows = sum(pattern[0, h].sum(-1)[:, None] * (write[:, h] @ biases[h]) for h in range(heads))
        attended = torch.eye(tokens * width, dtype=torch.float64) + mixing
        shift = rows.flatten() + repeated(out.dense.bias)
        middle = (attended @ stream[0].flatten() + shift).reshape(tokens, width)
        scaled, moved = norm(out.LayerNorm, middle)
        entered = out.LayerNorm(middle)
        z = layer.intermediate.dense(entered)
        gates = torch.block_diag(*(torch.diag(gate) for gate in layer.intermediate.intermediate_act_fn(z) / z))
        each = torch.eye(tokens, dtype=torch.float64)
        up, down = (torch.kron(each, part.dense.weight) for part in (layer.intermediate, layer.output))
        mlp = torch.eye(tokens * width, dtype=torch.float64) + down @ gates @ up
        mlp_shift = down @ gates @ repeated(layer.intermediate.dense.bias) + repeated(layer.output.dense.bias)
        left = (mlp @ entered.flatten() + mlp_shift).reshape(tokens, width)
        last, last_moved = norm(layer.output.LayerNorm, left)
        block = last @ mlp @ scaled @ attended
        constant = last @ (mlp @ (scaled @ shift + moved) + mlp_shift) + last_moved
        whole, offset = block @ whole, block @ offset + constant
    torch.testing.assert_close(dense, whole, atol=ROUNDING, rtol=0)
    torch.testing.assert_close(op.offset.flatten(), offset, atol=ROUNDING, rtol=0)


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "Llama", "ViT", "XLNet"])
def test_operator_gives_the_model_and_its_transpose_is_adjoint(name: str) -> None:
    op = of_family(name)
    assert op.difference <= ROUNDING
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, *op.input.shape, generator=generator, dtype=torch.float64)
    y = torch.randn(3, *op.output.shape, generator=generator, dtype=torch.float64)
    forward, back = op @ x, op.T @ y
    assert forward.shape == y.shape
    assert back.shape == x.shape
    # <y, T x> = <T^T y, x>: both are sums of the same products in another order.
    assert float((y * forward).sum()) == pytest.approx(float((back * x).sum()), rel=1e-10)
    without = float((op @ op.input - op.output).abs().max() / op.output.abs().max())
    if name == "Llama":  # no bias, no shift: nothing to drop
        assert op.offset_share == 0
    else:
        assert without > 1e-2
        assert op.offset_share > 1e-2


def test_products_take_one_or_many_or_flat_and_nothing_else() -> None:
    op, dense = small()
    x, y = torch.randn(5, 8, dtype=torch.float64), torch.randn(5, 8, dtype=torch.float64)
    torch.testing.assert_close((op @ x).flatten(), dense @ x.flatten(), atol=ROUNDING, rtol=0)
    torch.testing.assert_close(op @ x.flatten(), dense @ x.flatten(), atol=ROUNDING, rtol=0)
    torch.testing.assert_close(op.T @ y.flatten(), dense.T @ y.flatten(), atol=ROUNDING, rtol=0)
    assert (op @ x.expand(2, 3, 5, 8)).shape == (2, 3, 5, 8)
    assert op.T.T is op
    assert op.T.shape == op.shape == (40, 40)
    for wrong in (x[:4], x[:, :7], x.flatten()[:-1], x.sum()):
        with pytest.raises(RefusalError, match=r"has the shape \(5, 8\)"):
            op @ wrong


def test_rows_columns_and_blocks_equal_the_matrix() -> None:
    op, dense = small()
    apart = dense.reshape(5, 8, 5, 8)
    torch.testing.assert_close(op.row(2, 3), apart[2, 3], atol=ROUNDING, rtol=0)
    torch.testing.assert_close(op.column(-1, 0), apart[:, :, 4, 0], atol=ROUNDING, rtol=0)
    torch.testing.assert_close(op.block(1, 4), apart[1, :, 4], atol=ROUNDING, rtol=0)
    for ask in (lambda: op.row(5, 0), lambda: op.row(0, 8), lambda: op.block(0, -6), lambda: op.column(0, 99)):
        with pytest.raises(RefusalError, match="There is no"):
            ask()


def test_a_block_is_made_from_the_side_with_fewer_channels() -> None:
    """CLIP gives one number: its only row is T itself."""
    op = of_family("CLIP")
    assert op.output.shape == (1,)
    torch.testing.assert_close(op.block(0, 3)[0], op.row(0, 0)[3], atol=ROUNDING, rtol=0)
    found = op.map("contribution")
    assert len(found.values) == 1
    assert found.products == 1
    assert found.constants is not None
    assert found.totals is not None
    assert sum(found.values[0]) + found.constants[0] == pytest.approx(found.totals[0], abs=ROUNDING)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at_once", [7, 1000])
def test_maps_equal_the_matrix_for_any_number_of_passes_at_once(
    kind: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    op, dense = small()
    monkeypatch.setattr(affine_module, "MAX_NUMBERS", at_once * 8 * op.input.numel())
    assert op.affine.at_once == at_once
    found = op.map(kind)
    apart = dense.reshape(5, 8, 5, 8).transpose(1, 2)  # row, token, out, width
    unit = op.output / op.output.norm(dim=-1, keepdim=True)
    wanted = {
        "norm": torch.linalg.matrix_norm(apart),
        "input": torch.einsum("ijow,jw->ijo", apart, op.input).norm(dim=-1),
        "output": torch.einsum("io,ijow->ijw", unit, apart).norm(dim=-1),
        "contribution": torch.einsum("io,ijow,jw->ij", unit, apart, op.input),
    }[kind]
    torch.testing.assert_close(torch.tensor(found.values, dtype=torch.float64), wanted, atol=ROUNDING, rtol=0)
    assert found.exact
    assert found.products == (40 if kind == "norm" else 5)
    assert (found.constants is not None) == (kind == "contribution")
    if found.constants is not None:
        sums = [sum(row) + constant for row, constant in zip(found.values, found.constants, strict=True)]
        assert sums == pytest.approx(op.output.norm(dim=-1).tolist(), abs=ROUNDING)
        assert list(found.totals or ()) == pytest.approx(sums, abs=ROUNDING)


def test_a_contribution_is_the_same_by_passes_back() -> None:
    """Here it is made token by token; with fewer rows than tokens it would be made row by row."""
    op, _ = small()
    unit = op.output / op.output.norm(dim=-1, keepdim=True)
    alone = torch.eye(5, dtype=torch.float64)[:, :, None] * unit
    values = torch.tensor(op.map("contribution").values, dtype=torch.float64)
    torch.testing.assert_close(values, ((op.T @ alone) * op.input).sum(-1), atol=ROUNDING, rtol=0)


def test_probes_are_near_the_norm_by_as_much_as_they_say() -> None:
    op, _ = small()
    exact = torch.tensor(op.map("norm", exact=True).values)
    found = op.map("norm", probes=64, seed=3)
    assert not found.exact
    assert found.products == 64 * 5
    assert found.provenance["seed"] == 3
    scores = (torch.tensor(found.values) - exact) / torch.tensor(found.errors)
    # 25 scores of about unit spread (those of a token share their signs): a root mean square of 1 to within 0.5, and
    # none beyond 4. The draw is fixed and the same on every processor.
    assert 0.5 < float(scores.square().mean().sqrt()) < 1.5
    assert float(scores.abs().max()) < 4
    assert op.map("norm", probes=64, seed=3).values == found.values
    assert op.map("norm", probes=64, seed=4).values != found.values


class LowRank(Affine):
    """A map from one token to 40 rows, each of which reads it along a single direction of its own: rank one."""

    weights = torch.randn(40, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    enters = torch.zeros(1, 24, dtype=torch.float64)
    leaves = torch.zeros(40, 1, dtype=torch.float64)
    at_once = 1000

    def __init__(self) -> None:
        pass

    def times(self, vectors: torch.Tensor) -> torch.Tensor:
        return (vectors[:, 0] @ self.weights.mT)[:, :, None]


def test_errors_of_probes_are_even_on_the_logarithm_also_for_low_ranks() -> None:
    """40 rows, 30 seeds, 16 probes: misses over errors have a mean within 0.3 of 0 and a root mean square below 1.3.
    The error of the root, se / (2 sqrt m), gave -0.33 and 1.35 on such rows. A warning stands below 32 probes."""
    exact = LowRank.weights.norm(dim=-1)
    scores = []
    for seed in range(30):
        found = collapsed(LowRank(), "norm", 16, False, seed, silent)
        assert found.errors is not None
        size = found.values[:, 0]
        scores.append((size / exact).log() * size / found.errors[:, 0])
    missed = torch.stack(scores)
    assert abs(float(missed.mean())) < 0.3
    assert 0.8 < float(missed.square().mean().sqrt()) < 1.3
    op, _ = small()
    assert any("16 probes are few" in note for note in op.map("norm", probes=16).notes)
    assert not any("are few" in note for note in op.map("norm", probes=32).notes)


def test_norm_is_estimated_if_it_takes_too_many_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    op, _ = small()
    monkeypatch.setattr("attnscope.pathways.operator_maps.EXACT_PRODUCTS", 39)
    assert op.map("norm").probes == 32
    assert op.map("norm", exact=True).exact


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"kind": "nrom"}, "no map called 'nrom'"),
        ({"kind": "input", "probes": 4}, "leave probes and exact out"),
        ({"kind": "norm", "probes": 4, "exact": True}, "takes no probes"),
        ({"kind": "norm", "probes": 1}, "two probes or more"),
    ],
)
def test_bad_options_of_a_map_are_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(RefusalError, match=said):
        small()[0].map(**asked)


def test_singular_values_equal_those_of_the_matrix() -> None:
    op, dense = small()
    wanted = torch.linalg.svdvals(dense)[:5]
    torch.testing.assert_close(op.singular_values(5), wanted, rtol=1e-9, atol=0)  # asked for to 1e-10 of the square
    scipy = op.linear_operator()
    assert scipy.shape == (40, 40)
    assert torch.from_numpy(scipy @ torch.eye(40).double().numpy()).allclose(dense, atol=ROUNDING)
    assert torch.from_numpy(scipy.T @ torch.eye(40).double().numpy()).allclose(dense.T, atol=ROUNDING)
    for k in (0, 40):
        with pytest.raises(RefusalError, match="1 to 39 singular values"):
            op.singular_values(k)


def test_product_of_neighbouring_operators_is_their_composition() -> None:
    op, _ = small()
    first, second = op.layer(0), op.layer(1)
    assert first.difference <= ROUNDING
    both = second @ first
    x = torch.randn(5, 8, dtype=torch.float64)
    torch.testing.assert_close(both @ x, second @ (first @ x), atol=ROUNDING, rtol=0)
    torch.testing.assert_close(both.offset, second @ first.offset + second.offset, atol=ROUNDING, rtol=0)
    torch.testing.assert_close(op @ x, (op.tail @ op.stream) @ x, atol=ROUNDING, rtol=0)
    assert "block 1" in repr(second)
    assert "all blocks" in repr(both)
    assert "the whole model" in repr(op.tail @ op.stream)
    with pytest.raises(RefusalError, match="multiply neighbours"):
        first @ second
    with pytest.raises(RefusalError, match="multiply neighbours"):
        attnscope.operator(tiny_bert(), BATCH).layer(1) @ first
    for begin, end in ((1, 1), (-1, 1), (0, 3)):
        with pytest.raises(RefusalError, match="blocks 0 to 1"):
            op.layers(begin, end)


def test_beside_the_jacobian_that_autograd_writes_out() -> None:
    op, dense = small()
    network = op.affine.network

    def run(stream: Tensor) -> Tensor:
        for block in network.blocks:
            stream = block(stream)
        return network.tail(stream)

    written = torch.autograd.functional.jacobian(run, network.streams[0]).reshape(40, 40)
    found = op.beside_jacobian(probes=256)
    distance = float((dense - written).norm() / written.norm())
    cosine = float((dense * written).sum() / dense.norm() / written.norm())
    # The draw is fixed; five standard errors leave room for what a jackknife of 256 knows of its own error.
    assert abs(found.distance - distance) < 5 * found.distance_error
    assert abs(found.cosine - cosine) < 5 * found.cosine_error
    assert abs(found.size - float(dense.norm() / written.norm())) < 5 * found.size_error
    assert distance > 0.1  # they are two things
    assert "of ||J||" in str(found)
    with pytest.raises(RefusalError, match="two probes"):
        op.beside_jacobian(probes=1)


def test_operator_is_the_jacobian_if_nothing_is_frozen() -> None:
    """Nothing follows the last block of this one: both are the identity there."""
    op, _ = small()
    assert op.layer(1).beside_jacobian(probes=4).distance > 0.01
    assert op.tail.beside_jacobian(probes=4).distance == pytest.approx(0, abs=1e-12)


def test_html_and_products_inside_contexts_without_gradients() -> None:
    op, dense = small()
    shown = op._repr_html_()
    assert "40 x 40" in shown
    assert "<script" not in shown
    x = torch.ones(5, 8, dtype=torch.float64)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            torch.testing.assert_close((op.T @ x).flatten(), dense.T @ x.flatten(), atol=ROUNDING, rtol=0)
            op.beside_jacobian(probes=2)
    assert set(MAPS) == set(KINDS)
