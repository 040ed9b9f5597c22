"""`python -m bench.scale [ROW...]`: the cost of dividing one survey into many shards. Writes bench/scale.json.

merge      merge 10,000 shards of 30 blocks of 9 heads (target: 60 s, 1 GB)
minilm     two workers of one thread against one (target: 1.8x), from the first ready worker to the last shard
smollm2    the same
ray        Ray on this machine against two workers (target: at most 10% slower), after start-up
memory     peak memory of a scan of 64 sequences against 640,000 of the same streamed corpus (target: 1.1x)

Wall time is recorded with CPU time and the load of the machine at the start of the row: if other work runs at the same
time, wall time means little.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.scale_tables import write

RESULTS = Path(__file__).with_name("scale.json")
SHARDS, DISTINCT, SEQUENCES = 10_000, 50, 8
FEW, MANY = 64, 640_000
SCANNED = {
    "minilm": {"samples": 2048, "max_tokens": 128, "batch_size": 16},
    "smollm2": {"samples": 256, "max_tokens": 256, "batch_size": 8},
}


def merge() -> dict[str, Any]:
    """Merge random numbers of SmolLM2's shape: 50 different shards of 8 sequences, each written 200 times."""
    from attnscope.commands.scan.survey.shards import shard_name

    with tempfile.TemporaryDirectory() as name:
        store, digest, written = Path(name) / "store", "ab" * 32, 0
        for distinct in range(DISTINCT):
            renumbered = _shard(store, digest, distinct)
            for number in range(distinct, SHARDS, DISTINCT):
                data = renumbered(number)
                (store / shard_name(digest, number)).write_bytes(data)
                written += len(data)
        code = (
            "import sys, resource, attnscope; attnscope.merge(sys.argv[1]);"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
        )
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", code, str(store)], check=True, text=True, stdout=subprocess.PIPE)
        seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "shards": SHARDS,
        "bytes_per_shard": written // SHARDS,
        "seconds": seconds,
        "cpu_seconds": _cpu(after) - _cpu(before),
        # a separate process, because the peak of children includes earlier ones
        "peak_mb": float(done.stdout.split()[-1]),
    }


def _shard(store: Path, digest: str, distinct: int) -> Callable[[int], bytes]:
    """Return a function that returns the file of shard `distinct` under another number."""
    import numpy as np
    from safetensors.numpy import load, save

    from attnscope.commands.scan.survey.builder import NotMeasured, SurveyBuilder
    from attnscope.commands.scan.survey.shards import HASH, ShardId, Store, content_hash, to_bytes
    from attnscope.core.registry import choose

    chosen = [m.card for m in choose(["default"]) if m.card.scope != "weights"]
    draw = np.random.default_rng(distinct)
    ledger = SurveyBuilder({card.name: card for card in chosen})
    for card in chosen:
        shape = (SEQUENCES,) if card.scope == "stream" else (SEQUENCES, 9)
        for layer in range(30):
            values = np.float64(np.float32(draw.lognormal(size=shape)))
            samples = np.arange(SEQUENCES) + SEQUENCES * distinct
            ledger.observe(card.name, card.parts[0], "model", card.sites[0], layer, values, None, samples)
    corpus = {"sequences": SEQUENCES, "tokens": 256 * SEQUENCES}
    survey = ledger.survey({"model": {"hash": "h", "stacks": []}, "corpus": corpus})
    plan = {"seed": 0}
    Store.open(store, plan, digest, SHARDS)
    arrays = load(to_bytes(ShardId(plan, digest, distinct, SHARDS), survey, NotMeasured()))
    arrays.pop(HASH)
    document = json.loads(arrays["document"].tobytes())

    def renumbered(number: int) -> bytes:
        said = json.dumps(document | {"number": number}).encode()
        stored = arrays | {"document": np.frombuffer(said, np.uint8)}
        data: bytes = save(stored | {HASH: np.frombuffer(content_hash(stored), np.uint8)})
        return data

    return renumbered


def minilm() -> dict[str, Any]:
    return _one_and_two("minilm")


def smollm2() -> dict[str, Any]:
    return _one_and_two("smollm2")


def _one_and_two(name: str) -> dict[str, Any]:
    one, two = _scanning(name, 1), _scanning(name, 2)
    return {"one": one, "two": two, "ratio": one["seconds"] / two["seconds"], "shards": two["shards"]}


def ray() -> dict[str, Any]:
    two, on_ray = _scanning("minilm", 2), _scanning("minilm", 2, engine="ray")
    return {"two_workers": two, "ray": on_ray, "ratio": on_ray["seconds"] / two["seconds"]}


def _scanning(name: str, hands: int, engine: str = "local") -> dict[str, float]:
    """Measure a scan from the first ready worker to the last shard, so a worker that is ready later counts as
    slower."""
    import attnscope
    from tools.fetch_models import path as weights

    corpus = str(sorted(Path(weights("wikitext2")).rglob("test*"))[0])
    times: list[tuple[float, int]] = []

    def told(stage: str, done: int, *_: int) -> None:
        if stage == "scanning":
            times.append((time.perf_counter(), done))

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    attnscope.scan(
        str(weights(name)), corpus, **SCANNED[name], workers=hands, engine=engine, keep_text=False, progress=told
    )
    cpu = _cpu(resource.getrusage(resource.RUSAGE_CHILDREN)) - _cpu(before)
    return {"seconds": times[-1][0] - times[0][0], "cpu_seconds_with_start": cpu, "shards": len(times) - 1}


def memory() -> dict[str, Any]:
    from tests.specimens import TEXT, save_specimen

    code = (
        "import sys, attnscope, resource\n"
        "found = attnscope.scan(sys.argv[1], sys.argv[2], samples=int(sys.argv[3]), max_tokens=8, batch_size=64,"
        " measures='entropy', keep_text=False)\n"
        "print(found.provenance['corpus']['sequences'], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    peaks: dict[int, float] = {}
    read: dict[int, int] = {}
    with tempfile.TemporaryDirectory() as name:
        model, corpus = save_specimen(Path(name) / "model"), Path(name) / "corpus.txt"
        with corpus.open("w") as out:
            for number in range((70 << 20) // (len(TEXT) + 8)):
                out.write(f"{number} {TEXT}\n")
        for samples in (FEW, MANY):
            words = [sys.executable, "-c", code, str(model), str(corpus), str(samples)]
            done = subprocess.run(words, check=True, text=True, stdout=subprocess.PIPE)
            read[samples], peaks[samples] = int(done.stdout.split()[-2]), float(done.stdout.split()[-1])
    return {"sequences": read, "peak_mb": peaks, "ratio": peaks[MANY] / peaks[FEW]}


def _cpu(usage: resource.struct_rusage) -> float:
    return usage.ru_utime + usage.ru_stime


ROWS = {"merge": merge, "minilm": minilm, "smollm2": smollm2, "ray": ray, "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", default=list(ROWS), help=", ".join(ROWS))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in parser.parse_args().rows:
        load = os.getloadavg()[0]
        found = ROWS[name]() | {"load_average": load, "cores": os.cpu_count()}
        print(name, json.dumps(found))
        known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        RESULTS.write_text(json.dumps(known | {name: found}, indent=1) + "\n")
        write()


if __name__ == "__main__":
    main()
