"""The checkpoints of the atlas: every table in one mapping.

python -m tools.atlas.checkpoints    prints them
"""

from __future__ import annotations

from tools.atlas.entry import Checkpoint
from tools.atlas.tables import decoders, encoders, languages, senses, sequences, translators

CHECKPOINTS: dict[str, Checkpoint] = {
    checkpoint.name: checkpoint
    for table in (decoders, encoders, languages, translators, senses, sequences)
    for checkpoint in table.TABLE
    if not checkpoint.left_out
}

if __name__ == "__main__":
    for one in CHECKPOINTS.values():
        print(f"{one.name:24} {one.family:12} {one.stack:16} {one.domain:12} {one.licence:14} {one.about}")
