"""Seeds, and the stamp at the end of every provenance: versions and time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version

import attnscope
from attnscope.core.errors import RefusalError

LARGEST_SEED = 2**64 - 1  # Python, numpy and torch all accept it
LOWEST_OF_TORCH = -(2**63)
MOST_SEEDS = 1000


def refuse_unusable_seed(seed: int, lowest: int = LOWEST_OF_TORCH) -> None:
    """Refuse a value that is not a usable seed. `lowest` is 0 for numpy, which takes no negative seeds."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):  # numpy's integers are allowed
        raise RefusalError(f"A seed is a whole number, not {seed!r}: choose 0 or more.")
    if seed < lowest:
        raise RefusalError(f"A seed of {seed} cannot be used: choose 0 or more.")
    if seed > LARGEST_SEED:
        raise RefusalError(f"A seed of {seed} has more than 64 bits: choose one up to {LARGEST_SEED}.")


def numbered_seeds(seeds: int | Sequence[int], each: str) -> Sequence[int]:
    """Return the seeds for a count or a list of seeds; `each` says what one seed costs, for the refusal."""
    count = seeds if isinstance(seeds, int) else len(seeds)
    if count > MOST_SEEDS:
        raise RefusalError(
            f"{count:,} seeds are {count:,} times {each}, and means hardly change after {MOST_SEEDS:,}: ask for "
            f"`seeds={MOST_SEEDS}` or fewer."
        )
    return range(seeds) if isinstance(seeds, int) else seeds


_LIBRARIES = ("torch", "transformers", "numpy")  # those whose versions can change numbers


@dataclass(frozen=True)
class Stamp:
    """Versions of the libraries that computed, of attnscope, and the time (UTC, to the second)."""

    versions: dict[str, str]
    attnscope: str
    created: str

    @classmethod
    def now(cls) -> Stamp:
        return cls(
            versions={name: version(name) for name in _LIBRARIES},
            attnscope=attnscope.__version__,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def to_json(self) -> dict[str, str | dict[str, str]]:
        return {"versions": dict(self.versions), "attnscope": self.attnscope, "created": self.created}
