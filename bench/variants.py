"""`python -m bench.variants`: the cost of variants, relative to torch's fused attention in the same run.

There are three tables: variants of linear cost against the fused kernel (time, memory, slope of time in log n, the n
from which each is faster), variants that keep the fused kernel at n = 4096, and whole models with a gate at its
function-preserving start against the plain model. Other libraries are included if they have the same variant (`make
peers` unpacks them). Writes bench/variants.json.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).with_name("variants.json")
LENGTHS = (1024, 4096, 16384)
LINEAR = ("local", "local-attention", "performer", "performer-pytorch", "fastmax1", "fastmax2")
STEEPEST = 1.1
FUSED_KIN = ("minus_uniform", "shaped", "attn_scale", "gated_output", "softmax_plus_one", "learned_sink")
KIN_REACH = dict.fromkeys(("minus_uniform", "shaped", "attn_scale", "gated_output", "learned_sink"), 1.2)
INSTALLED_REACH = 1.15
TURNS = {1024: 9, 4096: 5, 16384: 2}


def measure(tokens: int, dim: int, causal: bool, backward: bool, names: tuple[str, ...]) -> dict[str, Any]:
    """Measure all functions of one case in one process, in turns."""
    case = {"tokens": tokens, "dim": dim, "causal": causal, "backward": backward}
    told = json.dumps(case | {"turns": TURNS[tokens], "ways": ["fused", *names]})
    words = [sys.executable, "-m", "bench.attentions", told]
    done = subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True)
    return case | {"found": json.loads(done.stdout.splitlines()[-1])}


def slope(lengths: list[int], seconds: list[float]) -> float:
    """Return the slope of time in log n by least squares over the longer half: short sequences are mostly overhead."""
    x, y = [math.log(n) for n in lengths[-2:]], [math.log(s) for s in seconds[-2:]]
    return (y[1] - y[0]) / (x[1] - x[0])


def wins_from(lengths: list[int], ratios: list[float]) -> str:
    """Return the n at which the ratio to the fused kernel falls below 1, interpolated between measured lengths."""
    if ratios[0] < 1:
        return f"<= {lengths[0]}"
    for (a, before), (b, after) in zip(
        zip(lengths, ratios, strict=True), zip(lengths[1:], ratios[1:], strict=True), strict=False
    ):
        if before >= 1 > after:
            share = math.log(before) / (math.log(before) - math.log(after))
            return f"~ {round(math.exp(math.log(a) + share * (math.log(b) - math.log(a))), -2):.0f}"
    return f"> {lengths[-1]}"


def linear_ones(console: Console) -> list[dict[str, Any]]:
    rows = []
    for causal in (False, True):
        for dim in (32, 64):
            for backward in (False, True):
                cases = [measure(tokens, dim, causal, backward, LINEAR) for tokens in LENGTHS]
                for name in LINEAR:
                    if any("seconds" not in case["found"][name] for case in cases):
                        continue
                    seconds = [case["found"][name]["seconds"] for case in cases]
                    fused = [case["found"]["fused"]["seconds"] for case in cases]
                    memory = [
                        case["found"][name]["megabytes"] / max(case["found"]["fused"]["megabytes"], 1) for case in cases
                    ]
                    ratios = [a / b for a, b in zip(seconds, fused, strict=True)]
                    rows.append(
                        {
                            "way": name,
                            "dim": dim,
                            "causal": causal,
                            "backward": backward,
                            "time_ratios": ratios,
                            "memory_ratios": memory,
                            "slope": slope(list(LENGTHS), seconds),
                            "slope_fused": slope(list(LENGTHS), fused),
                            "wins_from": wins_from(list(LENGTHS), ratios),
                        }
                    )
    table = Table(title=f"time (and memory) beside the fused kernel = 1, at n = {', '.join(map(str, LENGTHS))}")
    for heading in ("attention", "dim", "mask", "pass", "time", "memory", "slope", f"(<= {STEEPEST})", "faster from n"):
        table.add_column(heading, justify="left" if heading in ("attention", "mask", "pass") else "right")
    for row in rows:
        table.add_row(
            row["way"],
            str(row["dim"]),
            "causal" if row["causal"] else "none",
            "+ backward" if row["backward"] else "forward",
            " ".join(f"{one:.2f}" for one in row["time_ratios"]),
            " ".join(f"{one:.1f}" for one in row["memory_ratios"]),
            f"{row['slope']:.2f}",
            "yes" if row["slope"] <= STEEPEST else "no",
            row["wins_from"],
        )
    console.print(table)
    return rows


def fused_kin(console: Console) -> list[dict[str, Any]]:
    """Measure variants that keep the fused kernel, at n = 4096, and x-transformers' gated layer against its plain
    one."""
    rows = []
    for causal in (False, True):
        for dim in (32, 64):
            for backward in (False, True):
                names = (*FUSED_KIN, "x-transformers", "x-transformers, gated")
                found = measure(4096, dim, causal, backward, names)["found"]
                told = {name: found[name]["seconds"] / found["fused"]["seconds"] for name in FUSED_KIN}
                if "seconds" in found["x-transformers, gated"]:
                    told["x-transformers gate"] = (
                        found["x-transformers, gated"]["seconds"] / found["x-transformers"]["seconds"]
                    )
                rows.append({"dim": dim, "causal": causal, "backward": backward, "time_ratios": told})
    table = Table(title="what keeps the fused kernel, n = 4096, fused = 1")
    table.add_column("attention", min_width=22)
    for row in rows:
        words = ("causal" if row["causal"] else "no mask", str(row["dim"]), "bwd" if row["backward"] else "fwd")
        table.add_column(" ".join(words), justify="right")
    table.add_column("reach", justify="right")
    for name in rows[0]["time_ratios"]:
        cells = [f"{row['time_ratios'][name]:.2f}" for row in rows]
        table.add_row(name, *cells, f"{KIN_REACH.get(name, '')}")
    console.print(table)
    return rows


def installed_gates(console: Console, turns: int = 15) -> dict[str, float]:
    """Compare MiniLM with gates at their start to the plain model, on 64 texts of 128 tokens."""
    from attnscope.hf.installed import installed
    from bench.subjects import minilm

    torch.set_num_threads(1)
    subject = minilm()
    best: dict[str, float] = {}
    subject.bare()
    for _ in range(turns):  # plain and treated in turns
        for name in ("plain", "gated_output", "gated_value"):
            if name == "plain":
                seconds = _seconds(subject.bare)
            else:
                with installed(subject.loaded, name):
                    seconds = _seconds(subject.bare)
            best[name] = min(best.get(name, math.inf), seconds)
    ratios = {name: seconds / best["plain"] for name, seconds in best.items() if name != "plain"}
    for name, ratio in ratios.items():
        console.print(f"MiniLM 64 x 128 with {name} installed: {ratio:.3f}x the plain model (reach {INSTALLED_REACH})")
    return ratios


def _seconds(call: Any) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["installed", "kin", "linear"])
    asked = parser.parse_args()
    console = Console(width=130)
    parts = {"installed": installed_gates, "kin": fused_kin, "linear": linear_ones}
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for part in asked.parts:
        results[part] = parts[part](console)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    console.print(f"written to {RESULTS.relative_to(Path.cwd())}")


if __name__ == "__main__":
    main()
