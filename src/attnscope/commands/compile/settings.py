"""Settings of `attnscope compile`, without torch and numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from attnscope.core.errors import at_least
from attnscope.core.stamp import refuse_unusable_seed

if TYPE_CHECKING:
    from attnscope.heads.accuracy import Accuracy

AUTO = "auto"
BUDGET = 300.0  # seconds after which a search that has found something ends


@dataclass(frozen=True)
class CompileSettings:
    """See `attnscope.compile` for the meaning of each field."""

    ratio_error: float = 0.1
    leak: float = 0.01
    dtype: str = "float32"
    method: str = AUTO
    width: int | None = None
    universal: bool = False
    seed: int = 0
    budget: float = BUDGET

    def checked(self) -> Accuracy:
        """Return the accuracy; refuse settings that no search can have."""
        from attnscope.heads.accuracy import checked_accuracy

        accuracy = checked_accuracy(self.ratio_error, self.leak, self.dtype)
        if self.width is not None:
            at_least(self.width, 1, "width")
        refuse_unusable_seed(self.seed, lowest=0)
        at_least(self.budget, 0, "budget")
        return accuracy


class CompileOptions(TypedDict, total=False):
    """Keywords of `attnscope.compile`."""

    ratio_error: float
    leak: float
    dtype: str
    method: str
    width: int | None
    universal: bool
    seed: int
    budget: float
