"""with installed(model, "gated_output") as treated: the model computes with another attention, and trains with it.

    with attnscope.installed(model, "gated_output", layers=[3, 4]) as treated:
        loss = treated.model(**batch).loss
        loss.backward()                        # treated.parameters() have gradients
        attnscope.save_treated(treated.model, "folder")

Restored on leaving, also after an exception: state_dict keys, outputs to the bit, registries, configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from attnscope.hf.anatomy.example import Batch
from attnscope.hf.exchanging.exchange import Treated, exchange
from attnscope.hf.loading.load import Loaded


@contextmanager
def installed(
    model: nn.Module | Loaded,
    variant: str,
    *,
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
    seed: int = 0,
    stack: str | None = None,
    example_inputs: Batch | None = None,
    **settings: Any,
) -> Iterator[Treated]:
    """Inside, `model` computes with `variant` in blocks `layers` (all if not said), for `heads` (all if not said).

    `seed` is for variants that draw numbers; `stack` names one where a model has several; `example_inputs` is a small
    batch for models that no probe input can be made for; `settings` are the variant's own (`attnscope variants NAME`).
    """
    module = model.model if isinstance(model, Loaded) else model
    with ExitStack() as changes:
        yield exchange(
            changes,
            module,
            variant,
            layers=layers,
            heads=heads,
            seed=seed,
            stack=stack,
            example_inputs=example_inputs,
            settings=settings,
        )
