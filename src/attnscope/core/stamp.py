"""Seeds, and the stamp of versions and time in every record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import attnscope
from attnscope.core.errors import RefusalError

LARGEST_SEED = 2**64 - 1  # Python, numpy and torch all accept it
LOWEST_OF_TORCH = -(2**63)
MOST_SEEDS = 1000


def refuse_unusable_seed(seed: int, lowest: int = LOWEST_OF_TORCH) -> None:
    """Refuse a value that is not a usable seed. `lowest` is 0 for numpy, which accepts no negative seeds."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):  # numpy's integers are allowed
        raise RefusalError(f"A seed is a whole number, not {seed!r}: choose 0 or more.")
    if seed < lowest:
        raise RefusalError(f"A seed of {seed} cannot be used: choose 0 or more.")
    if seed > LARGEST_SEED:
        raise RefusalError(f"A seed of {seed} has more than 64 bits: choose one up to {LARGEST_SEED}.")


def numbered_seeds(seeds: int | Sequence[int], each: str) -> Sequence[int]:
    """Return the seeds for a count or a list of seeds. `each` names what one seed costs, for the refusal."""
    count = seeds if isinstance(seeds, int) else len(seeds)
    if count > MOST_SEEDS:
        raise RefusalError(
            f"{count:,} seeds are {count:,} times {each}, and means hardly change after {MOST_SEEDS:,}: ask for "
            f"`seeds={MOST_SEEDS}` or fewer."
        )
    return range(seeds) if isinstance(seeds, int) else seeds


_LIBRARIES = ("torch", "transformers", "numpy")  # libraries whose versions can change numbers


@dataclass(frozen=True)
class Stamp:
    """Versions of attnscope and of the libraries it computed with, and the time (UTC, to the second)."""

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


def stamped(model: Mapping[str, Any], **notes: Any) -> dict[str, Any]:
    """Return the provenance of a record: its model entry, `notes`, versions and the time."""
    return {"model": dict(model), **notes, **Stamp.now().to_json()}
