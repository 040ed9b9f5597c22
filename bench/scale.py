"""`python -m bench.scale [ROW...]`: what it costs to do one survey in many pieces. Writes bench/scale.json.

merge      10,000 shards of 30 layers of 9 heads made one (reach: 60 s, 1 GB)
workers    two workers of one thread against one, MiniLM and SmolLM2 (reach: 1.8x), after the models are loaded
memory     peak memory of a scan of 64 sequences against 6,400 of the same streamed corpus (reach: 1.1x)
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("scale.json")


def merge() -> dict[str, Any]:
    """Real numbers of SmolLM2's shape, drawn: 8 sequences a shard, other ones in each of 50, written 200 times."""
    import numpy as np

    from attnscope.core.registry import choose
    from attnscope.records.survey.ledger import Ledger
    from attnscope.records.survey.missing import Missing
    from attnscope.records.survey.store import Store

    chosen = [m.card for m in choose(["default"]) if m.card.scope != "weights"]
    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        store = Store.open(Path(name) / "store", {"seed": 0}, "ab" * 32, 10_000)
        for distinct in range(50):
            ledger = Ledger({card.name: card for card in chosen})
            for card in chosen:
                shape = (8,) if card.scope == "stream" else (8, 9)
                for layer in range(30):
                    values = np.float64(np.float32(draw.lognormal(size=shape)))
                    samples = np.arange(8) + 8 * distinct
                    ledger.observe(card.name, card.parts[0], "model", card.sites[0], layer, values, None, samples)
            origin = {"model": {"hash": "h", "stacks": []}, "corpus": {"sequences": 8, "tokens": 2048}}
            survey = ledger.survey(origin)
            for number in range(distinct, 10_000, 50):
                store.write(number, survey, Missing())
        size = sum(path.stat().st_size for path in (Path(name) / "store").iterdir())
        code = "import sys, attnscope; attnscope.merge(sys.argv[1])"
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code, store.place.__str__()], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "shards": 10_000,
        "bytes_per_shard": size // 10_000,
        "seconds": time.perf_counter() - began,
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "peak_mb": after.ru_maxrss / 1024,
    }


def workers() -> dict[str, Any]:
    from tools.fetch_models import path as weights

    corpus = str(sorted(Path(weights("wikitext2")).rglob("test*"))[0])
    rows = {}
    for name, options in {
        "minilm": {"samples": 512, "max_tokens": 128, "batch_size": 16},
        "smollm2": {"samples": 128, "max_tokens": 256, "batch_size": 8},
    }.items():
        seconds = {n: _scanning_seconds(str(weights(name)), corpus, options, n) for n in (1, 2)}
        rows[name] = {"one": seconds[1], "two": seconds[2], "ratio": seconds[1] / seconds[2]}
    return rows


def _scanning_seconds(model: str, corpus: str, options: dict[str, int], hands: int) -> float:
    """From the moment that the first worker is ready to the last shard."""
    import attnscope

    times: list[float] = []

    def told(stage: str, *_: int) -> None:
        if stage == "scanning":
            times.append(time.perf_counter())

    os.environ["OMP_NUM_THREADS"] = "1"
    attnscope.scan(model, corpus, **options, workers=hands, keep_text=False, progress=told)  # type: ignore[arg-type]
    return times[-1] - times[0]


def memory() -> dict[str, Any]:
    from tests.specimens import TEXT, save_specimen

    code = (
        "import sys, attnscope, resource\n"
        "attnscope.scan(sys.argv[1], sys.argv[2], samples=int(sys.argv[3]), max_tokens=16, batch_size=64,"
        " measures='entropy', keep_text=False)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    peaks: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as name:
        model, corpus = save_specimen(Path(name) / "model"), Path(name) / "corpus.txt"
        with corpus.open("w") as out:
            for number in range((70 << 20) // (len(TEXT) + 8)):
                out.write(f"{number} {TEXT}\n")
        for samples in (64, 6_400):
            words = [sys.executable, "-c", code, str(model), str(corpus), str(samples)]
            done = subprocess.run(words, check=True, text=True, stdout=subprocess.PIPE)
            peaks[samples] = float(done.stdout.split()[-1])
    return {"peak_mb": peaks, "ratio": peaks[6_400] / peaks[64]}


ROWS = {"merge": merge, "workers": workers, "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", default=list(ROWS), help=", ".join(ROWS))
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in parser.parse_args().rows:
        known[name] = ROWS[name]() | {"load_average": os.getloadavg()[0]}
        print(name, json.dumps(known[name]))
        RESULTS.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
