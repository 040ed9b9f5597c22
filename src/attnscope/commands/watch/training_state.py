"""TrainingState: the numbers of a look that concern the optimiser and the batches, not the attention of a block."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

from attnscope.commands.watch.values import short
from attnscope.core.ranges import Count, Finite, Size, Within

Share = Annotated[float, Within(0.0, 1.0, "a share from 0 to 1")]


@dataclass(frozen=True)
class TrainingState:
    """Every field is None if it is unknown. Shares are of the sequences of all training forwards since the last look.

    `gradient_norm` is of all parameters, as the optimiser gets them (after clipping). `optimizer_steps` is the step
    count that the optimiser keeps (Adam and its kin). `mean_loss` is of the steps since the last look. `repeated`
    counts sequences that were also in one of the eight forwards before. `usual_first_token` counts sequences that begin
    with the token with which most sequences began at first. `labels_before`, `labels_same` and `labels_after` count
    labels that are equal to the input token one place before, at their place and one place after.
    """

    learning_rate: Size | None = None
    gradient_norm: Size | None = None
    optimizer_steps: Count | None = None
    mean_loss: Finite | None = None
    repeated: Share | None = None
    usual_first_token: Share | None = None
    labels_before: Share | None = None
    labels_same: Share | None = None
    labels_after: Share | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the known fields, with six figures."""
        known = {one.name: getattr(self, one.name) for one in fields(self)}
        return {
            name: value if isinstance(value, int) else short(value)
            for name, value in known.items()
            if value is not None
        }
