"""A model at one input as one affine operator, out = T x + b, without storing T (arXiv:2601.17958).

    op = attnscope.operator("pocket", "The dog chased its own tail")
    op @ x, op.T @ y, op.offset                 products with T and its transpose; b
    op.block(i, j), op.row(i, c), op.column(j, c)
    op.map("contribution"), op.singular_values(5), op.beside_jacobian()
    op.layer(3), op.layers(0, 3), op.layers(3, 6) @ op.layers(0, 3)

`pathways.affine` has the derivation. x is what enters the first block (token vectors with positions), of shape
`[token, width]`, a stack of these, or flat; out is the model's output: states, logits, or one row of classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, overload

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.commands.operator.record import OperatorMap
from attnscope.core.errors import RefusalError
from attnscope.core.progress import Advance, silent
from attnscope.core.words import numeral
from attnscope.pathways.affine import Affine, BesideJacobian, as_linear_operator, beside_jacobian, singular_values
from attnscope.pathways.network import relative_difference
from attnscope.pathways.operator_maps import MAPS, collapsed, few_probes


@dataclass(frozen=True)
class About:
    """The model of an operator, for its repr and for the record of a map."""

    model: str
    class_name: str
    stack: str
    words: tuple[str, ...] = ()  # words of the tokens that enter; empty for images and sound
    notes: tuple[str, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, repr=False)
class Operator:
    """Some or all blocks of a model as an affine map."""

    affine: Affine
    about: About

    @property
    def input(self) -> Float[Tensor, "token width"]:
        """x0: the stream that enters the first block on this input."""
        return self.affine.enters

    @property
    def output(self) -> Float[Tensor, "*leaves"]:
        """The model's own output for this input."""
        return self.affine.leaves

    @property
    def offset(self) -> Float[Tensor, "*leaves"]:
        """b: biases and shifts of norms, passed through all later blocks."""
        return self.affine.offset

    @property
    def offset_share(self) -> float:
        """The relative size of the offset, |b| / |out|. It exceeds 1 if T x0 cancels a part of b."""
        return float(self.offset.norm() / self.output.norm().clamp_min(torch.finfo(self.output.dtype).tiny))

    @property
    def difference(self) -> float:
        """The relative error of the operator, max |T x0 + b - out| / max |out|."""
        return relative_difference(self @ self.input + self.offset, self.output)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows (outputs) and columns (inputs) of T."""
        return self.output.numel(), self.input.numel()

    @property
    def T(self) -> Transposed:  # noqa: N802
        return Transposed(self)

    @overload
    def __matmul__(self, x: Tensor) -> Tensor: ...
    @overload
    def __matmul__(self, x: Operator) -> Operator: ...
    def __matmul__(self, x: Tensor | Operator) -> Tensor | Operator:
        """Return T x, without b. For an operator that ends where this one begins, return their composition."""
        if isinstance(x, Operator):
            return self._after(x)
        return _shaped(x, self.input, self.output, self.affine.times, "input")

    def _after(self, other: Operator) -> Operator:
        mine, first = self.affine, other.affine
        if first.network is not mine.network or first.tail or first.last != mine.first:
            raise RefusalError(
                f"{other!r} does not end where {self!r} begins: multiply neighbouring parts of one operator, the later "
                "on the left, as in op.layers(3, 6) @ op.layers(0, 3)."
            )
        return replace(self, affine=replace(mine, first=first.first))

    def layer(self, layer: int) -> Operator:
        """Return the operator of one block, by its number in the model."""
        return self.layers(layer, layer + 1)

    def layers(self, first: int, last: int) -> Operator:
        """Return the operator of blocks `first` to `last - 1`, from stream to stream."""
        count = self.affine.network.layers
        if not 0 <= first < last <= count:
            raise RefusalError(
                f"layers({first}, {last}) is not a range of the blocks 0 to {count - 1}: give 0 <= first < last <= "
                f"{count}."
            )
        return replace(self, affine=Affine(self.affine.network, first, last, False))

    @property
    def stream(self) -> Operator:
        """All blocks, without the final norm and the head."""
        return self.layers(0, self.affine.network.layers)

    @property
    def tail(self) -> Operator:
        """The part after the last block: the final norm and the head."""
        network = self.affine.network
        return replace(self, affine=Affine(network, network.layers, network.layers, True))

    def row(self, token: int, channel: int) -> Float[Tensor, "token width"]:
        """Return the row of T for one output number: the weight of every input number. If the model returns one row of
        classes, `token` is 0.
        """
        unit = torch.zeros_like(self._rows)
        unit[_place(token, len(unit), "row"), _place(channel, unit.shape[1], "channel of the output")] = 1
        return self.affine.transposed_times(unit.reshape(1, *self.output.shape))[0]

    def column(self, token: int, channel: int) -> Float[Tensor, "*leaves"]:
        """Return the column of T for one input number: its effect on every output."""
        unit = torch.zeros_like(self.input)
        unit[_place(token, len(unit), "token"), _place(channel, unit.shape[1], "channel of the input")] = 1
        return self.affine.times(unit[None])[0]

    def block(self, i: int, j: int) -> Float[Tensor, "out width"]:
        """Return T_ij, which maps token j's vector to row i of the output, with as few products as possible."""
        (rows, out), (tokens, width) = self._rows.shape, self.input.shape
        i, j = _place(i, rows, "row"), _place(j, tokens, "token")
        if out < width:
            units = self.input.new_zeros(out, rows, out)
            units[:, i] = torch.eye(out).to(units)
            return self.affine.transposed_times(units.reshape(out, *self.output.shape))[:, j]
        units = self.input.new_zeros(width, tokens, width)
        units[:, j] = torch.eye(width).to(units)
        return self.affine.times(units).reshape(width, rows, out)[:, i].mT

    def singular_values(self, k: int = 6, seed: int = 0) -> Float[Tensor, " k"]:
        """Return the k largest singular values of T, by Lanczos iteration."""
        return singular_values(self.affine, k, seed)

    def linear_operator(self) -> Any:
        """Return T as a scipy LinearOperator on flat vectors."""
        return as_linear_operator(self.affine)

    def beside_jacobian(self, probes: int = 16, seed: int = 0) -> BesideJacobian:
        """Return how far T is from the derivative of the model at this input."""
        return beside_jacobian(self.affine, probes, seed)

    def map(
        self,
        kind: str = "contribution",
        *,
        probes: int | None = None,
        exact: bool | None = None,
        seed: int = 0,
        progress: Advance = silent,
    ) -> OperatorMap:
        """Return one number for each row of the output and each token. `operator_maps` explains the kinds.

        The map by norm is exact if that takes few products. Otherwise, or if `probes` is given, it is estimated from
        `probes` random sign vectors for each token, with a standard error. The other maps are always exact.
        """
        found = collapsed(self.affine, kind, probes, exact, seed, progress)
        tokens = self.words
        return OperatorMap(
            model=self.about.model,
            class_name=self.about.class_name,
            map=kind,
            title=MAPS[kind].title,
            part=self._part,
            tokens=tokens,
            rows=tokens if len(tokens) == len(self._rows) else tuple(map(str, range(len(self._rows)))),
            values=_nested(found.values),
            errors=None if found.errors is None else _nested(found.errors),
            probes=found.probes,
            constants=None if found.constants is None else tuple(found.constants.tolist()),
            totals=None if found.totals is None else tuple(found.totals.tolist()),
            products=found.products,
            dtype=str(self.input.dtype).removeprefix("torch."),
            notes=(*self.about.notes, *few_probes(found.probes)),
            provenance={**self.about.provenance, **({} if found.probes is None else {"seed": seed})},
        )

    @property
    def words(self) -> tuple[str, ...]:
        """The input tokens as words, or as numbers if they are not words."""
        tokens, known = len(self.input), self.about.words
        return known if len(known) == tokens else tuple(map(str, range(tokens)))

    @property
    def _rows(self) -> Float[Tensor, "row out"]:
        return self.output if self.output.ndim == 2 else self.output[None]

    @property
    def _part(self) -> str:
        mine, count = self.affine, self.affine.network.layers
        if mine.first == mine.last:
            return "what follows the last block"
        blocks = f"blocks {mine.first} to {mine.last - 1}" if mine.last - mine.first > 1 else f"block {mine.first}"
        if (mine.first, mine.last) == (0, count):
            return "the whole model" if mine.tail else "all blocks"
        return f"{blocks} and what follows" if mine.tail else blocks

    def __repr__(self) -> str:
        rows, columns = self.shape
        (out, channels), (tokens, width) = self._rows.shape, self.input.shape
        return (
            f"<Operator of {self.about.model}, {self._part}: {rows:,} x {columns:,} "
            f"({tokens} tokens of {width} to {out} of {channels})>"
        )

    def _repr_html_(self) -> str:
        """Return facts about the operator as HTML. They take two passes through the frozen model."""
        facts = {
            "T x + b differs from the model by": f"{self.difference:.1e} of its largest number",
            "|b| is": f"{numeral(self.offset_share, 3)} of |output|",
            "entries of T (never stored)": f"{self.shape[0] * self.shape[1]:,}",
            "maps": ", ".join(f'op.map("{name}")' for name in MAPS),
        }
        lines = "".join(f"<tr><th>{escape(name)}</th><td>{escape(fact)}</td></tr>" for name, fact in facts.items())
        return f"<div><p>{escape(repr(self))}</p><table>{lines}</table></div>"


@dataclass(frozen=True, eq=False, repr=False)
class Transposed:
    """The transpose of T, for `op.T @ y`."""

    operator: Operator

    @property
    def T(self) -> Operator:  # noqa: N802
        return self.operator

    @property
    def shape(self) -> tuple[int, int]:
        return self.operator.shape[::-1]

    def __matmul__(self, y: Tensor) -> Tensor:
        whole = self.operator
        return _shaped(y, whole.output, whole.input, whole.affine.transposed_times, "output")

    def __repr__(self) -> str:
        return f"{self.operator!r}.T"


def _shaped(vectors: Any, here: Tensor, there: Tensor, times: Callable[[Tensor], Tensor], what: str) -> Tensor:
    """Apply `times` to one or several tensors shaped like `here`. A flat vector gives a flat result."""
    vectors = torch.as_tensor(vectors, dtype=here.dtype, device=here.device)
    if vectors.ndim == 1 and here.ndim != 1 and vectors.numel() == here.numel():
        return times(vectors.reshape(1, *here.shape)).flatten()
    before = vectors.ndim - here.ndim
    if before < 0 or vectors.shape[before:] != here.shape:
        raise RefusalError(
            f"The {what} must have the shape {tuple(here.shape)}, not {tuple(vectors.shape)}: give that shape, a batch "
            f"of it, or a flat vector of {here.numel():,} numbers."
        )
    return times(vectors.reshape(-1, *here.shape)).reshape(*vectors.shape[:before], *there.shape)


def _place(number: int, count: int, what: str) -> int:
    """Return a non-negative index. A negative one counts from the end."""
    if not -count <= number < count:
        raise RefusalError(f"There is no {what} {number}: they are 0 to {count - 1}.")
    return number % count


def _nested(values: Float[Tensor, "row token"]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in values.tolist())
