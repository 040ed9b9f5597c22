"""Which part of the shards is mine: `3/64` on the command line, or what a batch system says in the environment.

    --shard 3/64        the third of 64 parts
    --shard env         RANK and WORLD_SIZE (torchrun), SLURM_ARRAY_TASK_ID and _COUNT, or SLURM_PROCID and SLURM_NTASKS

Shards are dealt out like cards: part i of n has shards i-1, i-1+n, i-1+2n, ... Which shard is which does not depend on
n, so that work begun in 64 parts can be finished in 8.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from attnscope.core.errors import RefusalError

FROM_ENVIRONMENT = "env"
# which variables: the number, how many there are, and the first number
_SYSTEMS = (
    ("RANK", "WORLD_SIZE", None),
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN"),
    ("SLURM_PROCID", "SLURM_NTASKS", None),
)


@dataclass(frozen=True)
class Part:
    """The `number`-th (from 1) of `of` parts."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def shards(self, count: int) -> range:
        return range(self.number - 1, count, self.of)


def part(text: str, environment: Mapping[str, str] | None = None) -> Part:
    """What the text means, or a refusal."""
    if text == FROM_ENVIRONMENT:
        return _of(os.environ if environment is None else environment)
    found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text.strip())
    if found is None:
        raise RefusalError(f"'{text}' is not a part: write --shard 3/64 for the third of 64, or --shard env.")
    return _sound(int(found[1]), int(found[2]))


def _of(environment: Mapping[str, str]) -> Part:
    for name, count, lowest in _SYSTEMS:
        if name in environment and count in environment:
            try:
                first = int(environment.get(lowest, "0")) if lowest else 0
                return _sound(int(environment[name]) - first + 1, int(environment[count]))
            except ValueError:
                raise RefusalError(
                    f"{name} and {count} are '{environment[name]}' and '{environment[count]}', which are no numbers: "
                    "write --shard 3/64 instead."
                ) from None
    raise RefusalError(
        "--shard env finds neither RANK and WORLD_SIZE nor SLURM_ARRAY_TASK_ID and SLURM_ARRAY_TASK_COUNT in the "
        "environment: start it under torchrun or in a job array, or write --shard 3/64."
    )


def _sound(number: int, of: int) -> Part:
    if not 1 <= number <= of:
        raise RefusalError(
            f"There is no part {number} of {of}: parts are counted from 1, so write --shard 1/{max(of, 1)} to "
            f"{max(of, 1)}/{max(of, 1)}."
        )
    return Part(number, of)
