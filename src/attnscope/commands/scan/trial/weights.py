"""Find weights that stand out: rows of zeros, coarse grids, matrices as random as before training, exact copies.

random  the largest singular value of an m x n matrix of independent entries of variance s^2 is s (sqrt m + sqrt n)
        (Marchenko and Pastur 1967). Training adds directions far above it to most matrices of a block, though not to
        all. The value is the largest ratio of both in a block: near 1 for a block that was never trained.
grid    the largest number of distinct values in 32 neighbouring entries of a row. Real numbers are all distinct; four
        bits allow 16 values, three bits 8. The value is the number of bits.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.commands.scan.survey.trial import OddWeight
from attnscope.hf.anatomy.anatomy import Anatomy

SMALLEST = 32  # rows and columns of the smallest matrix that is looked at
RANDOM = 1.2  # largest ratio of a block that is recorded
FEWEST = 4  # matrices of such a block
GROUP, ROWS = 32, 64  # entries of a group, and rows that are looked at
STEPS = 24  # of the power iteration: the ratio is a lower bound that is within 2% for random matrices
DENSE = 0.5  # a group with more zeros than this is sparse, not coarse


def odd_weights(model: nn.Module, found: Anatomy) -> tuple[OddWeight, ...]:
    """Return what stands out in the matrices of blocks, in the order of the model's parameters."""
    blocks = {block.path: (stack.name, block.layer) for stack in found.stacks for block in stack.blocks}
    matrices = list(_matrices(model, blocks))
    odd = [odd for name, matrix, place in matrices for odd in _oddities(name, matrix, place)]
    return (*_together(odd, len(matrices)), *_untrained(matrices), *_copies(matrices))


def _together(found: list[OddWeight], matrices: int) -> Iterator[OddWeight]:
    """Report a grid that most matrices share once, as the precision of the model."""
    bits = Counter(odd.value for odd in found if odd.oddity == "grid")
    common = {value for value, count in bits.items() if 2 * count > matrices}
    yield from (OddWeight("", "grid", value, share=bits[value] / matrices) for value in sorted(common))
    yield from (odd for odd in found if odd.oddity != "grid" or odd.value not in common)


def _matrices(model: nn.Module, blocks: Mapping[str, tuple[str, int]]) -> Iterator[tuple[str, Tensor, tuple[str, int]]]:
    for name, parameter in model.named_parameters():
        place = _place(name, blocks)
        large = parameter.ndim == 2 and min(parameter.shape) >= SMALLEST
        if place is not None and large and parameter.is_floating_point() and not parameter.is_meta:
            yield name, parameter.detach(), place


def _place(name: str, blocks: Mapping[str, tuple[str, int]]) -> tuple[str, int] | None:
    path = name
    while path:
        path = path.rpartition(".")[0]
        if path in blocks:
            return blocks[path]
    return None


def _oddities(name: str, matrix: Tensor, place: tuple[str, int]) -> Iterator[OddWeight]:
    values = matrix.float()
    if not bool(values.isfinite().all()):
        return
    zeros = max(float((values == 0).all(dim).float().mean()) for dim in (0, 1))
    if zeros > 0:
        yield OddWeight(name, "zero", zeros, *place, share=zeros)
    bits = grid_bits(values)
    if bits <= math.log2(GROUP) - 1:
        yield OddWeight(name, "grid", bits, *place)


def _untrained(matrices: Sequence[tuple[str, Tensor, tuple[str, int]]]) -> Iterator[OddWeight]:
    """Yield the blocks whose matrices are all nearly random."""
    ratios: dict[tuple[str, int], list[float]] = {}
    for _, matrix, place in matrices:
        known = ratios.setdefault(place, [])
        if not known or max(known) < RANDOM:  # one trained matrix is enough
            known.append(edge_ratio(matrix.float()))
    for (stack, layer), each in ratios.items():
        if len(each) >= FEWEST and max(each) < RANDOM:
            yield OddWeight("", "random", max(each), stack, layer)


def edge_ratio(matrix: Float[Tensor, "row column"]) -> float:
    """Return the largest singular value, divided by that of a random matrix with the same mean square."""
    rows, columns = matrix.shape
    vector = torch.ones(columns, dtype=matrix.dtype, device=matrix.device)
    vector += torch.linspace(-1, 1, columns, dtype=matrix.dtype, device=matrix.device)
    norm = torch.zeros(())
    for _ in range(STEPS):
        vector = matrix.T @ (matrix @ (vector / vector.norm().clamp_min(1e-30)))
        norm = vector.norm()
    size = float(matrix.square().mean().sqrt())
    edge = size * (math.sqrt(rows) + math.sqrt(columns))
    return float(norm.sqrt()) / edge if edge else math.inf


def grid_bits(matrix: Float[Tensor, "row column"]) -> float:
    """Return log2 of the largest number of distinct values in a group of neighbours, along rows or along columns."""
    return min(_group_bits(matrix), _group_bits(matrix.T))


def _group_bits(matrix: Float[Tensor, "row column"]) -> float:
    rows, columns = matrix.shape
    step = max(1, rows // ROWS)
    groups = matrix[::step, : columns - columns % GROUP].reshape(-1, GROUP)
    dense = groups[(groups == 0).float().mean(1) <= DENSE]
    if not len(dense):
        return math.log2(GROUP)
    ordered = dense.sort(dim=1).values
    distinct = (ordered[:, 1:] != ordered[:, :-1]).sum(1) + 1
    return math.log2(int(distinct.max()))


def _copies(matrices: Sequence[tuple[str, Tensor, tuple[str, int]]]) -> Iterator[OddWeight]:
    """Yield matrices of one block whose numbers equal those of another block. Shared weights have one name only."""
    seen: dict[str, str] = {}
    for name, matrix, place in matrices:
        if not bool(matrix.any()):
            continue
        digest = hashlib.sha256(matrix.cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
        if digest in seen:
            yield OddWeight(name, "copy", 1.0, *place, of=seen[digest])
        seen.setdefault(digest, name)
