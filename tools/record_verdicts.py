"""Record the verdicts of complete runs: record_verdicts.py RESULTS.json ... -> src/attnscope/papers/known.json

`attnscope reproduce` lists what is there. A later run of the same experiment and preset replaces the earlier one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from attnscope.commands.reproduce.record import Reproduction
from attnscope.core.decoding import encode
from attnscope.core.files import write_atomically
from attnscope.papers.known import FILE, recorded

PLACE = Path(__file__).parents[1] / "src" / "attnscope" / "papers" / FILE


def main(paths: list[str]) -> None:
    known = json.loads(PLACE.read_text("utf-8")) if PLACE.exists() else {}
    for path in paths:
        found = Reproduction.load(path)
        known.setdefault(found.experiment, {})[found.preset] = encode(recorded(found))
        print(found)
    write_atomically(PLACE, (json.dumps(known, indent=1, sort_keys=True) + "\n").encode())


if __name__ == "__main__":
    main(sys.argv[1:])
