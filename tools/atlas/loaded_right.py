"""Check that every checkpoint of the atlas is pretrained and loaded right. Writes tools/atlas/loaded_right.json.

    python -m tools.atlas.loaded_right                all that have no entry yet
    python -m tools.atlas.loaded_right iglm mpnet     these, again

An entry holds the figures of the check, whether they pass, the number of parameters and a digest of the weights. Two
checkpoints with one digest are one: the program says so and ends with an error.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from tools.atlas import checks, convert, tasks
from tools.atlas.checkpoints import CHECKPOINTS

RECORD = Path(__file__).with_name("loaded_right.json")


def check(name: str) -> dict[str, Any]:
    """Return the entry of one checkpoint."""
    import torch
    import transformers

    torch.manual_seed(0)
    checkpoint, folder = CHECKPOINTS[name], convert.folder(name)
    kind = json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"][0]
    model = getattr(transformers, kind).from_pretrained(folder).eval()
    words = transformers.AutoTokenizer.from_pretrained(folder) if list(folder.glob("*token*")) else None
    started = time.monotonic()
    run = getattr(checks, checkpoint.check, None) or getattr(tasks, checkpoint.check)
    figures = run(checkpoint, model, words, folder)
    return {
        "check": checkpoint.check,
        "corpus": checkpoint.corpus,
        **figures,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "weights": convert.weights_digest(model),
        "seconds": round(time.monotonic() - started, 1),
    }


def main(names: list[str]) -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}
    for name in names or [name for name in CHECKPOINTS if name not in record]:
        try:
            record[name] = check(name)
        except (SystemExit, Exception) as error:  # the others are still to be checked
            print(f"{name:24} FAILED {type(error).__name__}: {error}", flush=True)
            continue
        shown = {key: value for key, value in record[name].items() if key not in ("weights", "check", "corpus")}
        print(f"{name:24} {shown}", flush=True)
        kept = {key: record[key] for key in CHECKPOINTS if key in record}
        RECORD.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    digests: dict[str, str] = {}
    for name, entry in record.items():
        if entry["weights"] in digests:
            raise SystemExit(f"{name} and {digests[entry['weights']]} hold the same weights.")
        digests[entry["weights"]] = name


if __name__ == "__main__":
    main(sys.argv[1:])
