"""Nano models that compose functions, with hand-written weights: each block does one lookup (arXiv:2602.01763).

One lookup. The entry for f_l(a) has the name (l, a) as its key and the content f_l(a) as its value; the query is the
name of the wanted entry, (l, current symbol). A symbol is coded as +1 or -1 for each binary digit, the number l of the
function (its fold) as a one-hot vector. The wanted entry has the logit (number of digits) + 2; every other has at least
2 less, because each differing digit costs 2 and another fold costs 2. Logits are multiplied by `sharp`, so n other
entries together get at most n e^(-2 sharp) of the weight: less than float32 resolves. Widths are of the order of
folds + blocks x log(arguments).

    composer    block l looks up (l, answer of block l - 1). A causal model needs as many blocks as functions.
    shortcut    every entry looks ahead. Entry (l, a) holds f_l(a) and looks up (l + 1, f_l(a)), so that it then holds
                f_(l+1)(f_l(a)); next it looks up in fold l + 2, then l + 4. After log2(folds) blocks the entries of f_1
                hold the whole composition, and each query looks up its own. Entries must see tables that come later in
                the text, so only bidirectional models can do this; bounds on depth are about causal ones
                (arXiv:2412.02975). The last entries have nothing ahead and fetch content that no query uses.
    wide        a lookup that a memory of fixed size can do as well. Each symbol has a fixed vector as its key, and
                contents are one-hot, so a linear map turns a content into the key to look up. Block l gives keys only
                to the entries of f_l and zero keys to all others, so a memory stores just one table.

Each block writes into its own channels. There are no norms and no MLP: these are `Nano` models, which the tap, `scan`
and `paths` accept.

`CORES` holds full attention and two memories of fixed size; `window` is a third cheaper kind. They share the same
projections, so every hybrid has as many weights as full attention. A memory's keys have norm at most 1; its queries are
multiplied only by the block's own scale. Memories are written in the order of the tokens, so they need causal models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.matrix.linear_attention import bounded, delta_memory, sum_memory
from attnscope.papers.models.nano import Attend, Block, Config, Nano, scaled_dot_product
from attnscope.papers.models.tasks import Composition

Heads = Float[Tensor, "batch head token dim"]
Mask = Bool[Tensor, "#batch 1 #query key"] | None


def linear(query: Heads, key: Heads, value: Heads, mask: Mask, scale: float) -> Heads:
    return sum_memory(scale * query, bounded(key), value, mask)


def delta(query: Heads, key: Heads, value: Heads, mask: Mask, scale: float) -> Heads:
    return delta_memory(scale * query, bounded(key), value, mask)


def window(tokens: int) -> Attend:
    """Return full attention limited to the last `tokens` tokens, including the token itself."""

    def core(query: Heads, key: Heads, value: Heads, mask: Mask, scale: float) -> Heads:
        places = torch.arange(query.shape[2], device=query.device)
        near = (places[:, None] - places < tokens)[None, None]
        return scaled_dot_product(query, key, value, near if mask is None else mask & near, scale)

    return core


CORES: Mapping[str, Attend] = {"full": scaled_dot_product, "linear": linear, "delta": delta}


def hybrid(model: Nano, kinds: Sequence[str | Attend]) -> Nano:
    """Set the kind of attention of each block, in place: a name in `CORES`, or a function."""
    if len(kinds) != len(model.blocks):
        raise RefusalError(f"The model has {len(model.blocks)} blocks, not {len(kinds)}: give one kind per block.")
    if not model.config.causal:
        raise RefusalError("Memories are written from left to right: make the model with causal=True.")
    for block, kind in zip(model.blocks, kinds, strict=True):
        assert isinstance(block, Block)
        if isinstance(kind, str) and kind not in CORES:
            raise RefusalError(f"There is no kind of block called {kind}: choose one of {', '.join(CORES)}.")
        core: Callable[..., Tensor] = CORES[kind] if isinstance(kind, str) else kind
        block.attention.attend = core
    return model


SHARP = 16.0  # any other entry has at most e^-32 of the weight, 4096 of them 5e-11; float32 resolves 6e-8


def digits(symbols: int) -> Float[Tensor, "symbol digit"]:
    """Return the binary digits of every symbol as +1 and -1."""
    count = max(1, math.ceil(math.log2(symbols)))
    return 2.0 * (torch.arange(symbols)[:, None] >> torch.arange(count) & 1) - 1


def composer(task: Composition, lookups: int | None = None, sharp: float = SHARP) -> Nano:
    """Return a model with one lookup per function. With fewer lookups it composes only that many functions."""
    layers = task.folds if lookups is None else lookups
    if not 1 <= layers <= task.folds:
        raise RefusalError(f"A composition of {task.folds} functions has 1 to {task.folds} lookups: choose among them.")
    model, place = _empty(task, layers, causal=True)
    for number, block in enumerate(_blocks(model)):
        fold = torch.zeros(task.folds, 1)
        fold[number] = 1.0
        _lookup(block, place, task, asks=(fold, number), holds=0, writes=number + 1, sharp=sharp)
    return model


def shortcut(task: Composition, sharp: float = SHARP) -> Nano:
    """Return a model with log2(folds) blocks that look ahead and one for the queries; `folds` is a power of 2."""
    rounds = task.folds.bit_length() - 1
    if 2**rounds != task.folds:
        raise RefusalError(f"Looking ahead doubles with every block: give a power of 2 of functions, not {task.folds}.")
    model, place = _empty(task, rounds + 1, causal=False)
    for number, block in enumerate(_blocks(model)):
        if number < rounds:
            ahead = torch.eye(task.folds).roll(2**number, dims=0)
            _lookup(block, place, task, asks=(ahead, number), holds=number, writes=number + 1, sharp=sharp)
        else:
            first = torch.zeros(task.folds, 1)
            first[0] = 1.0
            _lookup(block, place, task, asks=(first, 0), holds=rounds, writes=rounds + 1, sharp=sharp)
    return model


def wide(
    task: Composition, keys: Float[Tensor, "symbol dim"], kinds: Sequence[str | Attend], sharp: float = SHARP
) -> Nano:
    """Return a model that does one lookup per block with these unit-norm keys, in blocks of these kinds."""
    symbols, entries, dim = task.arguments, task.entries, keys.shape[1]
    if len(keys) != symbols or len(kinds) != task.folds:
        raise RefusalError(f"This composition needs {symbols} keys and {task.folds} kinds of blocks: give as many.")
    width = entries + symbols * (task.folds + 1)
    model = Nano(_config(task, task.folds, width, max(dim, symbols), causal=True))
    with torch.no_grad():
        model.embedding.weight.copy_(torch.eye(width)[:, : task.inputs])  # type: ignore[operator]
        for number, block in enumerate(_blocks(model)):
            _clear(block)
            layer, last = block.attention, entries + number * symbols
            softmax = kinds[number] not in ("linear", "delta")
            own = slice(number * symbols, (number + 1) * symbols)
            layer.query.weight[:dim, last : last + symbols] = keys.T * ((sharp if softmax else 1.0) / layer.scale)
            layer.key.weight[:dim, own] = keys.T
            layer.value.weight[:symbols, entries : entries + symbols] = torch.eye(symbols)
            layer.output.weight[last + symbols : last + 2 * symbols, :symbols] = torch.eye(symbols)
        model.output.weight.zero_()
        model.output.weight[:, -symbols:] = torch.eye(symbols)
    return hybrid(model, kinds)


def _config(task: Composition, layers: int, width: int, dim: int, causal: bool) -> Config:
    config = Config(width, 1, layers, head_width=dim, inputs=task.inputs, out=task.arguments, causal=causal)
    return replace(config, norm="none", positions="none")


def _empty(task: Composition, layers: int, causal: bool) -> tuple[Nano, slice]:
    """Return a model whose blocks do nothing yet, and the channels of the argument's code.

    The channels are: fold, argument, content, then one register per block.
    """
    code = digits(task.arguments)
    size = code.shape[1]
    width = task.folds + size * (layers + 2)
    model = Nano(_config(task, layers, width, task.folds + size, causal))
    argument = slice(task.folds, task.folds + size)
    embedding, output = model.embedding, model.output
    assert isinstance(embedding, nn.Linear)
    with torch.no_grad():
        embedding.weight.zero_()
        fold = torch.arange(task.entries) // task.arguments
        embedding.weight[fold, torch.arange(task.entries)] = 1.0
        embedding.weight[argument, : task.entries] = code.T.repeat(1, task.folds)
        embedding.weight[argument.stop : argument.stop + size, task.entries :] = code.T
        output.weight.zero_()
        output.weight[:, width - size :] = code
        for block in _blocks(model):
            _clear(block)
    return model, argument


def _lookup(
    block: Block,
    argument: slice,
    task: Composition,
    *,
    asks: tuple[Float[Tensor, "fold own"], int],
    holds: int,
    writes: int,
    sharp: float,
) -> None:
    """Write one lookup into the weights of a block.

    `asks` is the wanted fold (one column per fold of the asking token, or one column for all) and the register with the
    wanted symbol. `holds` is the register that is read from the entry found, `writes` the register of the answer.
    """
    layer, size, folds = block.attention, argument.stop - argument.start, task.folds

    def register(number: int) -> slice:
        return slice(argument.stop + number * size, argument.stop + (number + 1) * size)

    wanted, symbol = asks
    gain = sharp / layer.scale
    identity = torch.eye(size)
    with torch.no_grad():
        if wanted.shape[1] == 1:
            layer.query.bias[:folds] = 2 * gain * wanted[:, 0]
        else:
            layer.query.weight[:folds, :folds] = 2 * gain * wanted
        layer.query.weight[folds:, register(symbol)] = gain * identity
        layer.key.weight[:, : argument.stop] = torch.eye(argument.stop)
        layer.value.weight[:size, register(holds)] = identity
        layer.output.weight[register(writes), :size] = identity


def _clear(block: Block) -> None:
    for linear in block.attention.children():
        if isinstance(linear, nn.Linear):
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)


def _blocks(model: Nano) -> list[Block]:
    return [block for block in model.blocks if isinstance(block, Block)]
