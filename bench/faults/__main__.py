"""Run `python -m bench.faults plant [SUBJECT ...]`, `judge`, or `peers [SUBJECT ...]`."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path("build/faults")

if __name__ == "__main__":
    what, *names = sys.argv[1:] or ["judge"]
    if what == "plant":
        from bench.faults.plant import plant_all
        from bench.faults.subjects import SUBJECTS

        for name in names or SUBJECTS:
            plant_all(name, FOLDER)
    elif what == "peers":
        from bench.faults.peers import peers_all

        peers_all(names)
    else:
        from bench.faults.judge import judge_all

        judge_all(FOLDER)
