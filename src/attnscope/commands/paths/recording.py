"""Rows of the record of `paths`, made from tensors."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from attnscope.commands.paths.record import Chain, LengthRow
from attnscope.hf.loading.one_text import Reading
from attnscope.pathways.energy import Energy
from attnscope.pathways.lengths import RankView
from attnscope.pathways.top_paths import TopPaths


def length_rows(
    graded: Float[Tensor, "source length"],
    counts: tuple[int, ...],
    view: RankView | None,
    energy: Energy | None,
    predicted: tuple[tuple[Any, Any], ...],
) -> tuple[LengthRow, ...]:
    rows = []
    for k, (up_to, without) in enumerate(predicted):
        rows.append(
            LengthRow(
                length=k,
                stream=float(graded[0, k]),
                constants=float(graded[1, k]),
                paths=counts[k] if k < len(counts) else 0,
                residual=None if view is None else float(view.residual[k, 0]),
                residual_share=None if view is None else float(view.share[k, 0]),
                energy=None if energy is None else float(energy.energy[k]),
                energy_error=None if energy is None else float(energy.standard_error[k]),
                up_to=up_to,
                without=without,
            )
        )
    return tuple(rows)


def chain_rows(found: TopPaths, read: Reading) -> tuple[Chain, ...]:
    return tuple(
        Chain(
            contribution=path.contribution,
            heads=path.heads,
            position=path.token,
            token=read.words[path.token] if path.token < len(read.words) else str(path.token),
            of_token=path.of_token,
        )
        for path in found.paths
    )


def nested(tensor: Tensor) -> Any:
    def tuples(thing: Any) -> Any:
        return tuple(tuples(one) for one in thing) if isinstance(thing, list) else thing

    return tuples(tensor.tolist())
