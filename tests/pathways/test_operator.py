"""The operator against T written out, once from Kronecker products of a model's weights, as in arXiv:2601.17958, and
once column by column; and quantities that need no T.
"""

from functools import cache
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

import attnscope
from attnscope.commands.operator.operator import Operator
from attnscope.core.errors import RefusalError
from attnscope.pathways.operator_maps import MAPS
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
    centring = torch.eye(width, dtype=torch.float64) - 1 / width

    def repeated(bias: Tensor) -> Tensor:
        return bias.expand(tokens, -1).flatten()

    def norm(module: Any, stream: Tensor) -> tuple[Tensor, Tensor]:
        scale = (stream.var(-1, unbiased=False) + module.eps).rsqrt()
        return torch.kron(torch.diag(scale), torch.diag(module.weight) @ centring), repeated(module.bias)

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
        with pytest.raises(RefusalError, match=r"must have the shape \(5, 8\)"):
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


def test_singular_values_equal_those_of_the_matrix() -> None:
    op, dense = small()
    wanted = torch.linalg.svdvals(dense)[:5]
    torch.testing.assert_close(op.singular_values(5), wanted, rtol=1e-9, atol=0)  # the tolerance is 1e-10 of the square
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
    with pytest.raises(RefusalError, match="multiply neighbouring parts"):
        first @ second
    with pytest.raises(RefusalError, match="multiply neighbouring parts"):
        attnscope.operator(tiny_bert(), BATCH).layer(1) @ first
    for begin, end in ((1, 1), (-1, 1), (0, 3)):
        with pytest.raises(RefusalError, match="blocks 0 to 1"):
            op.layers(begin, end)


def test_comparison_with_the_jacobian_equals_autograd() -> None:
    op, dense = small()
    network = op.affine.network

    def run(stream: Tensor) -> Tensor:
        for block in network.blocks:
            stream = block(stream)
        return network.tail(stream)

    written = torch.autograd.functional.jacobian(run, network.streams[0]).reshape(40, 40)
    comparison = op.beside_jacobian(probes=256)
    distance = float((dense - written).norm() / written.norm())
    cosine = float((dense * written).sum() / dense.norm() / written.norm())
    # The draw is fixed; five standard errors leave room for what a jackknife of 256 knows of its own error.
    assert abs(comparison.distance - distance) < 5 * comparison.distance_error
    assert abs(comparison.cosine - cosine) < 5 * comparison.cosine_error
    assert abs(comparison.size - float(dense.norm() / written.norm())) < 5 * comparison.size_error
    assert distance > 0.1  # the operator and the Jacobian differ
    assert "of ||J||" in str(comparison)
    with pytest.raises(RefusalError, match="two probes"):
        op.beside_jacobian(probes=1)


def test_operator_is_the_jacobian_if_nothing_is_frozen() -> None:
    """This model has nothing after its last block: both maps are the identity there."""
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
