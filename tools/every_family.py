"""What becomes of every model type of transformers: a tiny random model of each goes through scan, paths, collapse and
explain.

python tools/every_family.py                       every type, as a list on the screen
python tools/every_family.py jamba led --json F    some of them; outcomes as JSON, one entry a type, kept and added to
python tools/every_family.py --json F --resume     those that F does not hold yet
python tools/every_family.py --json F --again explain=refused     those in F whose outcome of a command begins so
python tools/every_family.py jamba --json F --only explain         one command anew; what F holds of the others stays

An outcome is `verified` (with the largest difference from an independent computation), `exact`, `done`, `ran` (and what
there was nothing to compare with), `refused` (with the sentence), `stopped` (by the limit on time or memory) or
`TRACEBACK` (with where), which must never happen. Every type runs in a process of its own, so that one that dies takes
nothing with it. `families_table.py` makes a page of the outcomes.
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
SECONDS = 60  # of processor time
BYTES = 6 << 30
COMMANDS = ("scan", "paths", "collapse", "explain")
_TOLD = re.compile("INCOMPLETE|stream only|attention is not")


def outcomes(model_type: str, commands: tuple[str, ...] = COMMANDS) -> Iterator[dict[str, Any]]:
    """What building the type and running the commands on it gave, piece by piece."""
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
    # A model that could be trained can be after it was measured: nothing is left behind in it.
    yield {"training": _training(model, batch) if trainable == "done" else f"not possible before: {trainable}"}


def _training(model: Any, batch: dict[str, Any]) -> str:
    """One step of gradient descent on whatever the model gives: `done`, or what stopped it."""
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
    """One sequence of a batch; of pictures that come as rows of patches, as many rows as each has."""
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
    """`outcomes` in a process of its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        signal.alarm(10 * SECONDS)  # for what waits and does nothing
        with os.fdopen(writing, "w", encoding="utf-8") as pipe:
            for piece in outcomes(model_type, commands):
                pipe.write(json.dumps(piece) + "\n")
                pipe.flush()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        said: dict[str, Any] = {}
        for line in pipe:
            said |= json.loads(line)
    os.waitpid(child, 0)
    limits = f"more than {SECONDS} s or {BYTES >> 30} GB"
    if not said:
        return {"built": f"no: {limits}"}
    return said | ({name: f"stopped: {limits}" for name in commands if name not in said} if "class" in said else {})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--again", metavar="COMMAND=WORD")
    parser.add_argument("--only", choices=COMMANDS)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(ROOT))
    import torch
    import transformers

    from attnscope.core.files import write_atomically

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    kept = json.loads(asked.json.read_text("utf-8")) if asked.json and asked.json.exists() else {}
    wanted = asked.types or list(transformers.CONFIG_MAPPING)
    if asked.again:
        command, _, word = asked.again.partition("=")
        wanted = [name for name in wanted if str(kept.get(name, {}).get(command)).startswith(word)]
    for model_type in [one for one in wanted if not (asked.resume and one in kept)]:
        said = apart(model_type, (asked.only,) if asked.only else COMMANDS)
        kept[model_type] = said = {**kept[model_type], **said} if asked.only and model_type in kept else said
        print(model_type, *(f"{name}: {said[name]}" for name in ("built", *COMMANDS) if name in said), sep="\n    ")
        if asked.json:
            write_atomically(asked.json, json.dumps(kept, indent=1).encode())
    for name in COMMANDS:
        print(name, dict(Counter(said[name].split()[0] for said in kept.values() if name in said)))
    return int(any("TRACEBACK" in str(said.get(name)) for said in kept.values() for name in COMMANDS))


if __name__ == "__main__":
    sys.exit(main())
