"""Run scan, paths, collapse and explain on a tiny random model of every model type in transformers.

python tools/every_family.py                       every type, printed as a list
python tools/every_family.py jamba led --json F    some types; outcomes are added to the JSON file F
python tools/every_family.py --json F --resume     types that are not in F yet
python tools/every_family.py --json F --again explain=refused     types whose outcome in F begins with these words
python tools/every_family.py jamba --json F --only explain         run one command again; keep the other outcomes in F

An outcome is `verified` (with the largest difference from an independent computation), `exact`, `done`, `ran` (and why
there was nothing to compare with), `refused` (with the sentence), `stopped` (by the limit on time or memory) or
`TRACEBACK` (with its location), which must never happen. Every type runs in its own process, so that a crash affects
only that type. `families_table.py` makes a page of the outcomes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 60  # processor seconds per type
BYTES = 6 << 30
COMMANDS = ("scan", "paths", "collapse", "explain")
_TOLD = re.compile("INCOMPLETE|stream only|attention is not")


def outcomes(model_type: str, commands: tuple[str, ...] = COMMANDS) -> Iterator[dict[str, Any]]:
    """Yield the outcome of building a type and of each command on it."""
    import torch

    from tests.hf.tiny import tiny
    from tools.explained import explained

    try:
        model, batch = tiny(model_type)
        with torch.no_grad():
            model(**batch)
    except Exception as error:
        yield {"built": f"no: {_where(error)}"}
        return
    yield {"built": "yes", "class": type(model).__name__}
    trainable = _training(tiny(model_type)[0], batch)
    noted: dict[str, Any] = {}
    runs: dict[str, Callable[[], str]] = {
        "scan": lambda: _scan(model, batch, noted),
        "paths": lambda: _paths(model, batch),
        "collapse": lambda: _collapse(model, batch),
        "explain": lambda: explained(model, first_sequence(batch)),
    }
    for command in commands:
        yield {command: _attempt(runs[command])}
        if command == "scan":
            yield noted
    # A model that could be trained before it was measured must still be trainable: no hook may be left in it.
    yield {"training": _training(model, batch) if trainable == "done" else f"not possible before: {trainable}"}


def _training(model: Any, batch: dict[str, Any]) -> str:
    """Take one step of gradient descent on the model's output; return `done`, or what stopped it."""
    import torch

    from attnscope.hf.intercepting.owners import every_tensor

    try:
        model.train()
        output = next(t for t in every_tensor(model(**batch)) if t.requires_grad)
        output.float().square().mean().backward()  # type: ignore[no-untyped-call]
        torch.optim.SGD(model.parameters(), lr=1e-3).step()
    except (Exception, StopIteration) as error:
        return _where(error)
    return "done"


def _scan(model: Any, batch: dict[str, Any], said: dict[str, Any]) -> str:
    import attnscope

    survey = attnscope.scan(model, [batch])
    places: dict[str, list[int]] = {}
    for key in survey.cells:
        if key.measure == "entropy":
            places.setdefault(f"{key.stack} {key.site}", []).append(key.layer)
    said["attention"] = {place: sorted(layers) for place, layers in places.items()}
    said["notes"] = [note for note in survey.provenance.get("notes", []) if _TOLD.search(note)]
    return f"verified {survey.provenance['verify']['largest_difference']:.0e}"


def first_sequence(batch: dict[str, Any]) -> dict[str, Any]:
    """Return the first sequence of a batch; for pictures stored as rows of patches, the rows of the first picture."""
    sequences = min(len(tensor) for tensor in batch.values())
    return {name: tensor[: len(tensor) // sequences] for name, tensor in batch.items()}


def _paths(model: Any, batch: dict[str, Any]) -> str:
    import attnscope

    report = attnscope.paths(model, first_sequence(batch), draws=0, top=1)
    return f"exact {report.linear_difference:.0e}"


def _collapse(model: Any, batch: dict[str, Any]) -> str:
    import attnscope

    found = attnscope.collapse(model, [batch], bound_samples=1)
    return f"done in {found.provenance['dtype']}"


def _attempt(run: Callable[[], str]) -> str:
    from attnscope.core.errors import RefusalError

    try:
        return run()
    except RefusalError as refusal:
        return f"refused: {refusal}"
    except Exception as error:
        return f"TRACEBACK {_where(error)}"


def _where(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    reason = (str(error).strip().splitlines() or ["no reason given"])[0][:200]
    return f"{type(error).__name__}: {reason} ({Path(last.filename).name}:{last.lineno})"


def apart(model_type: str, commands: tuple[str, ...] = COMMANDS) -> dict[str, Any]:
    """Run `outcomes` in its own process."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        signal.alarm(10 * SECONDS)  # wall-clock limit, for processes that hang without using the CPU
        with os.fdopen(writing, "w", encoding="utf-8") as pipe:
            for piece in outcomes(model_type, commands):
                pipe.write(json.dumps(piece) + "\n")
                pipe.flush()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        output: dict[str, Any] = {}
        for line in pipe:
            output |= json.loads(line)
    os.waitpid(child, 0)
    limits = f"more than {SECONDS} s or {BYTES >> 30} GB"
    if not output:
        return {"built": f"no: {limits}"}
    return output | (
        {name: f"stopped: {limits}" for name in commands if name not in output} if "class" in output else {}
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--again", metavar="COMMAND=WORD")
    parser.add_argument("--only", choices=COMMANDS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(ROOT))
    import torch
    import transformers

    from attnscope.core.files import write_atomically

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    kept = json.loads(options.json.read_text("utf-8")) if options.json and options.json.exists() else {}
    wanted = options.types or list(transformers.CONFIG_MAPPING)
    if options.again:
        command, _, word = options.again.partition("=")
        wanted = [name for name in wanted if str(kept.get(name, {}).get(command)).startswith(word)]
    for model_type in [name for name in wanted if not (options.resume and name in kept)]:
        outcome = apart(model_type, (options.only,) if options.only else COMMANDS)
        if options.only and model_type in kept:
            outcome = {**kept[model_type], **outcome}
        kept[model_type] = outcome
        print(
            model_type, *(f"{name}: {outcome[name]}" for name in ("built", *COMMANDS) if name in outcome), sep="\n    "
        )
        if options.json:
            write_atomically(options.json, json.dumps(kept, indent=1).encode())
    for name in COMMANDS:
        print(name, dict(Counter(outcome[name].split()[0] for outcome in kept.values() if name in outcome)))
    return int(any("TRACEBACK" in str(outcome.get(name)) for outcome in kept.values() for name in COMMANDS))


if __name__ == "__main__":
    sys.exit(main())
