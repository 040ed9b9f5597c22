"""torch.autocast around a measurement changes both the model and what is computed from it.

Inside it products are rounded to bfloat16 wherever they are taken in float32: in the model, in the check of what was
seen (which then fails, since two ways to the same number round differently) and in the measures themselves. So nothing
is measured there. A model that is meant to run in bfloat16 can be loaded so.
"""

from __future__ import annotations

import torch

from attnscope.core.errors import RefusalError


def refuse_autocast() -> None:
    accelerator = torch.accelerator.current_accelerator()
    kinds = ("cpu", *(() if accelerator is None else (accelerator.type,)))
    for kind in kinds:
        if torch.is_autocast_enabled(kind):
            rounded = str(torch.get_autocast_dtype(kind)).removeprefix("torch.")
            raise RefusalError(
                f"torch.autocast is on for {kind} and would round what is measured to {rounded}: leave the "
                "torch.autocast context, and give the model in the precision that you mean."
            )
