"""The faults. Each changes a model in place; `local` faults sit in one block, which a good tool names.

A fault has three sizes (see `Body.size`), chosen by the seed together with the block. Sizes span harmless to
devastating, so that the benchmark also says how small a fault can be and still be found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bench.faults.body import Body, NotApplicableError


@dataclass(frozen=True)
class Fault:
    name: str
    kind: str
    local: bool
    plant: Callable[[Body], None]


FAULTS: dict[str, Fault] = {}


def fault(kind: str, *, local: bool = True) -> Callable[[Callable[[Body], None]], Callable[[Body], None]]:
    def registered(plant: Callable[[Body], None]) -> Callable[[Body], None]:
        FAULTS[plant.__name__] = Fault(plant.__name__, kind, local, plant)
        return plant

    return registered


@fault("attention")
def loud_values(body: Body) -> None:
    body.head = body.random.randrange(body.site.heads)
    body.columns("value", body.head * body.site.kv_heads // body.site.heads).mul_(body.size(3, 10, 30))


@fault("attention")
def noisy_keys(body: Body) -> None:
    keys = body.projection("key")
    keys.add_(body.noise(keys) * body.size(0.5, 1, 3))


@fault("attention")
def scaled_queries(body: Body) -> None:
    body.projection("query").mul_(body.size(2, 4, 8))


@fault("attention")
def flat_heads(body: Body) -> None:
    """Queries of zero: these heads attend to all tokens alike."""
    count = int(body.size(1, max(1, body.site.heads // 2), body.site.heads))
    for head in range(count):
        body.columns("query", head).zero_()


@fault("attention")
def permuted_heads(body: Body) -> None:
    """The output projection expects the heads in another order, as after a wrong conversion."""
    output = body.projection("output")
    heads = output.view(body.site.heads, -1, output.shape[1])
    heads.copy_(heads.roll(int(body.size(1, 2, 3)), 0).clone())


@fault("attention")
def noisy_output(body: Body) -> None:
    output = body.projection("output")
    output.add_(body.noise(output) * body.size(0.5, 1, 2))


@fault("attention")
def flipped_output(body: Body) -> None:
    body.projection("output").mul_(-1)


@fault("masks")
def lost_mask_in_a_block(body: Body) -> None:
    _lose_mask(body, everywhere=False)


@fault("masks", local=False)
def lost_mask_everywhere(body: Body) -> None:
    _lose_mask(body, everywhere=True)


@fault("masks")
def peeking_mask(body: Body) -> None:
    """Every token also sees the next few ones."""
    _refuse_both_ways(body)
    ahead = int(body.size(1, 2, 4))
    _mask(body, lambda i, j: j <= i + ahead, everywhere=False)


@fault("masks")
def short_window(body: Body) -> None:
    reach = int(body.size(8, 4, 2))
    causal = body.site.causal
    _mask(body, lambda i, j: ((i - j).abs() <= reach) & ((j <= i) | (not causal)), everywhere=False)


@fault("masks", local=False)
def short_window_everywhere(body: Body) -> None:
    reach = int(body.size(16, 8, 4))
    causal = body.site.causal
    _mask(body, lambda i, j: ((i - j).abs() <= reach) & ((j <= i) | (not causal)), everywhere=True)


def _refuse_both_ways(body: Body) -> None:
    if not body.site.causal:
        raise NotApplicableError("no causal mask")


def _lose_mask(body: Body, everywhere: bool) -> None:
    _refuse_both_ways(body)
    _mask(body, lambda i, j: (i - j).abs() >= 0, everywhere=everywhere)


def _mask(body: Body, sees: Callable[[Tensor, Tensor], Tensor], *, everywhere: bool) -> None:
    """Replace the mask of attention. Padding stays hidden: a model that reads padding is another fault."""

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        hidden = args[0] if args else kwargs["hidden_states"]
        tokens = torch.arange(hidden.shape[1])
        allowed = sees(tokens[:, None], tokens[None])[None, None]
        given = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
        if given is not None:
            visible = given if given.dtype == torch.bool else given >= 0
            allowed = allowed & visible.any(-2, keepdim=True)
        mask = torch.zeros(allowed.shape, dtype=hidden.dtype)
        return args[:1], {**kwargs, "attention_mask": mask.masked_fill_(~allowed, torch.finfo(hidden.dtype).min)}

    for module in body.attention_modules(everywhere):
        body.hook(module, before)


@fault("positions", local=False)
def no_positions(body: Body) -> None:
    _positions(body).zero_()


@fault("positions", local=False)
def stretched_positions(body: Body) -> None:
    """Rotations too fast or too slow; a table shifted by some rows."""
    table = _positions(body)
    if table.ndim == 1:
        table.mul_(body.size(0.9, 0.7, 2.0))
    else:
        table.copy_(table.roll(int(body.size(1, 4, 16)), 0).clone())


@fault("positions", local=False)
def shuffled_positions(body: Body) -> None:
    table = _positions(body)
    count = max(2, int(len(table) * body.size(0.1, 0.3, 1.0)))
    rows = torch.randperm(len(table), generator=body.generator)[:count]
    table[rows] = table[rows.roll(1)].clone()


def _positions(body: Body) -> Tensor:
    """Return the table of position embeddings, or the frequencies of rotations."""
    for name, module in body.model.named_modules():
        last = name.rpartition(".")[2]
        if isinstance(module, nn.Embedding) and last in ("wpe", "position_embeddings", "embed_positions"):
            return body.weights(f"{name}.weight")
    for name, _ in body.model.named_buffers():
        if name.endswith("inv_freq") and "original" not in name:
            return body.weights(name)
    raise NotApplicableError("no position table")


@fault("norms")
def zero_norm(body: Body) -> None:
    body.weights(body.random.choice(body.norms())).zero_()


@fault("norms")
def scaled_norm(body: Body) -> None:
    body.weights(body.random.choice(body.norms())).mul_(body.size(0.5, 3, 8))


@fault("norms", local=False)
def decayed_norms(body: Body) -> None:
    """Weight decay on the gains of all norms."""
    for block in body.blocks:
        for name in body.norms(block):
            body.weights(name).mul_(body.size(0.9, 0.7, 0.5))


@fault("norms")
def noisy_norm(body: Body) -> None:
    gain = body.weights(body.random.choice(body.norms()))
    gain.mul_(1 + torch.randn(gain.shape, generator=body.generator) * body.size(0.3, 1.0, 3.0))


@fault("mlps")
def zero_mlp(body: Body) -> None:
    body.mlp_output()[0].zero_()


@fault("mlps")
def loud_row(body: Body) -> None:
    weight, axis = body.mlp_output()
    weight.select(axis, body.random.randrange(weight.shape[axis])).mul_(body.size(10, 30, 80))


@fault("mlps")
def noisy_mlp(body: Body) -> None:
    weight, _ = body.mlp_output()
    weight.add_(body.noise(weight) * body.size(0.25, 0.5, 1))


@fault("mlps")
def flipped_mlp(body: Body) -> None:
    body.mlp_output()[0].mul_(-1)


@fault("mlps")
def scaled_mlp(body: Body) -> None:
    body.mlp_output()[0].mul_(body.size(0.25, 2, 4))


@fault("mlps")
def wrong_activation(body: Body) -> None:
    path = body.block().path
    for name, module in body.model.named_modules():
        if name.startswith(f"{path}.") and "act" in name.rpartition(".")[2] and not list(module.parameters()):
            owner = body.module(name.rpartition(".")[0])
            body.set(owner, name.rpartition(".")[2], (nn.ReLU(), nn.Sigmoid(), nn.Identity())[body.seed % 3])
            return
    raise NotApplicableError("no activation module")


@fault("weights")
def random_block(body: Body) -> None:
    """All matrices as before training: normal numbers of the same spread, or of the usual 0.02."""
    for name in body.linears():
        weight = body.weights(name)
        weight.copy_(torch.randn(weight.shape, generator=body.generator) * (weight.std() if body.seed % 2 else 0.02))


@fault("weights")
def swapped_blocks(body: Body) -> None:
    apart = int(body.size(1, 2, 3))
    _exchange(body, apart, both=True)


@fault("weights")
def copied_block(body: Body) -> None:
    _exchange(body, int(body.size(1, 2, 3)), both=False)


def _exchange(body: Body, apart: int, *, both: bool) -> None:
    first = body.block(margin=apart)
    second = body.blocks[first.layer + apart]
    for name, _ in list(body.model.named_parameters()):
        if name.startswith(f"{first.path}."):
            other = second.path + name.removeprefix(first.path)
            one, two = body.weights(name), body.weights(other)
            kept = one.clone()
            one.copy_(two)
            if both:
                two.copy_(kept)


@fault("weights")
def transposed_matrix(body: Body) -> None:
    square = [name for name in body.linears() if len(set(body.model.get_parameter(name).shape)) == 1]
    if not square:
        raise NotApplicableError("no square matrix")
    weight = body.weights(body.random.choice(square))
    weight.copy_(weight.t().clone())


@fault("weights")
def shuffled_rows(body: Body) -> None:
    """Some output rows of one matrix in another order."""
    weight = body.weights(body.random.choice(body.linears()))
    count = max(2, int(len(weight) * body.size(0.1, 0.3, 1.0)))
    rows = torch.randperm(len(weight), generator=body.generator)[:count]
    weight[rows] = weight[rows.roll(1)].clone()


@fault("weights", local=False)
def shuffled_embeddings(body: Body) -> None:
    model: Any = body.model
    table = body.weights(_name_of(body, model.get_input_embeddings().weight))
    count = max(2, int(len(table) * body.size(0.02, 0.1, 0.5)))
    rows = torch.randperm(len(table), generator=body.generator)[:count]
    table[rows] = table[rows.roll(1)].clone()


def _name_of(body: Body, tensor: Tensor) -> str:
    return next(name for name, parameter in body.model.named_parameters() if parameter is tensor)


@fault("precision")
def coarse_block(body: Body) -> None:
    for name in body.linears():
        _round(body.weights(name), int(body.size(4, 3, 2)))


@fault("precision", local=False)
def coarse_model(body: Body) -> None:
    for block in body.blocks:
        for name in body.linears(block):
            _round(body.weights(name), int(body.size(5, 4, 3)))


@fault("precision", local=False)
def clipped_weights(body: Body) -> None:
    for block in body.blocks:
        for name in body.linears(block):
            weight = body.weights(name)
            limit = float(weight.std()) * body.size(3, 2, 1)
            weight.clamp_(-limit, limit)


def _round(weight: Tensor, bits: int) -> None:
    """Round to a grid of 2^bits values over the whole range of the tensor."""
    step = 2 * weight.abs().max() / (2**bits - 1)
    weight.copy_(((weight / step - 0.5).round() + 0.5) * step)


@fault("tokens", local=False)
def shifted_tokens(body: Body) -> None:
    """The vocabulary of another tokenizer: every id is off by some."""
    model: Any = body.model
    vocabulary, by = model.get_input_embeddings().num_embeddings, int(body.size(1, 3, 100))

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = "decoder_input_ids" if "decoder_input_ids" in kwargs else "input_ids"
        return args, {**kwargs, name: (kwargs[name] + by) % vocabulary}

    body.hook(model, before)


@fault("tokens", local=False)
def repeated_first_token(body: Body) -> None:
    """The start of every sequence is overwritten by its first token, as with a doubled BOS."""
    count = int(body.size(1, 3, 8))

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        ids = kwargs["input_ids"].clone()
        ids[:, 1 : 1 + count] = ids[:, :1]
        return args, {**kwargs, "input_ids": ids}

    body.hook(body.model, before)


@fault("training", local=False)
def noisy_weights(body: Body) -> None:
    """Noise on all weights, as after steps with far too large a learning rate."""
    for name, parameter in list(body.model.named_parameters()):
        if parameter.ndim == 2:
            weight = body.weights(name)
            weight.add_(body.noise(weight) * body.size(0.03, 0.1, 0.3))


@fault("training")
def noisy_block(body: Body) -> None:
    for name in body.linears():
        weight = body.weights(name)
        weight.add_(body.noise(weight) * body.size(0.2, 0.5, 1.0))


@fault("training")
def shrunken_block(body: Body) -> None:
    """Weight decay that shrank one block."""
    for name in body.linears():
        body.weights(name).mul_(body.size(0.7, 0.4, 0.1))


@fault("training", local=False)
def shrunken_model(body: Body) -> None:
    for block in body.blocks:
        for name in body.linears(block):
            body.weights(name).mul_(body.size(0.9, 0.7, 0.5))
