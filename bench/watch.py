"""`python -m bench.watch`: the cost of a watch, relative to the same training without it, in turns in one process.

Two trainings: a model of pocket size from random weights (batch 8 x 256), and SmolLM2-135M fine-tuned (batch 2 x 256),
each with a look every 50 steps. With the median time of steps with and without a look, training with a look every 50
steps costs (49 * plain + watched) / (50 * plain). Wall and processor time, one and two threads; peak memory of a
separate process each. Written to bench/watch.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from tools.fetch_models import path as weights

RESULTS = Path(__file__).with_name("watch.json")
EVERY = 50
CASES = {"pocket": (8, 256), "smollm2": (2, 256)}
REACH = {"whole": 1.03, "look": 0.5, "memory": 1.1}
TURNS = {"pocket": 6, "smollm2": 3}


def model_of(case: str) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    import attnscope

    if case == "smollm2":
        from attnscope.hf.loading.load import load

        model = load(str(weights("smollm2"))).model.train()
        return model.requires_grad_(True)  # models are loaded with frozen parameters
    folder = Path(attnscope.__file__).parent / "data" / "pocket"
    return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).train()


def measure(case: str, threads: int, watched: bool) -> dict[str, Any]:
    """Return the median seconds of steps with and without a look, taken in turns."""
    import attnscope

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = model_of(case)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    sequences, tokens = CASES[case]
    ids = torch.randint(0, model.config.vocab_size, (sequences, tokens))
    times: dict[str, list[tuple[float, float]]] = {"plain": [], "look": []}

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(input_ids=ids, labels=ids).loss
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss

    if not watched:
        for _ in range(3):
            step()
    else:
        with tempfile.TemporaryDirectory() as folder, attnscope.watch(model, Path(folder) / "run", every=2) as watch:
            watch.step(loss=step())  # the first look locates attention, once per run
            for turn in range(2 * TURNS[case]):
                begun = (time.perf_counter(), time.process_time())
                watch.step(loss=step())
                took = (time.perf_counter() - begun[0], time.process_time() - begun[1])
                times["plain" if turn % 2 else "look"].append(took)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    middle = {
        name: [statistics.median(one[kind] for one in own) for kind in (0, 1)] for name, own in times.items() if own
    }
    return {"case": case, "threads": threads, "peak": peak, "seconds": middle}


def ratios(found: dict[str, Any], bare: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"case": found["case"], "threads": found["threads"]}
    for kind, name in enumerate(("wall", "processor")):
        plain, look = (found["seconds"][which][kind] for which in ("plain", "look"))
        row[f"{name}_plain_step"] = plain
        row[f"{name}_look"] = (look - plain) / plain
        row[f"{name}_whole"] = ((EVERY - 1) * plain + look) / (EVERY * plain)
    row["memory"] = found["peak"] / bare["peak"]
    return row


def alone(case: str, threads: int, watched: bool) -> dict[str, Any]:
    words = [sys.executable, "-m", "bench.watch", "--one", case, str(threads), str(int(watched))]
    done = subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", nargs=3)
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    chosen = parser.parse_args()
    if chosen.one:
        case, threads, watched = chosen.one
        print(json.dumps(measure(case, int(threads), bool(int(watched)))))
        return
    rows = [ratios(alone(c, t, True), alone(c, t, False)) for c in chosen.cases for t in chosen.threads]
    table = Table("training", "threads", "whole, wall", "whole, processor", "look, wall", "look, processor", "memory")
    for row in rows:
        names = ("wall_whole", "processor_whole", "wall_look", "processor_look", "memory")
        table.add_row(row["case"], str(row["threads"]), *(f"{row[name]:.3f}" for name in names))
    Console().print(table)
    known = json.loads(RESULTS.read_text("utf-8"))["rows"] if RESULTS.exists() else []
    measured = {(row["case"], row["threads"]): row for row in (*known, *rows)}  # keep rows that were not requested
    written = {"reach": REACH, "every": EVERY, "rows": list(measured.values())}
    RESULTS.write_text(json.dumps(written, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
