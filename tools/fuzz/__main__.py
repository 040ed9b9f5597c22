"""Fuzz every reader, one after another.

    python -m tools.fuzz --minutes 60                 an hour each
    python -m tools.fuzz --minutes 2 a.shard run.json
    python -m tools.fuzz --replay                     read the inputs of all findings again
    python -m tools.fuzz --pack                       minimise the corpora into tests/hardening/fuzz/

Corpora, findings and a table of minutes and executions are kept in build/fuzz, so that a second run goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from tools.fuzz.readers import READERS, Broken, check, lowered_bounds, prepare

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "fuzz"
PACKED = ROOT / "tests" / "hardening" / "fuzz"
MOST_PACKED = 24_000  # bytes of one packed corpus: all of them stay below 1 MB
MOST_RESTARTS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("readers", nargs="*", metavar="READER", help=f"default: all of {', '.join(READERS)}")
    parser.add_argument("--minutes", type=float, default=60.0, help="for each reader")
    parser.add_argument("--pack", action="store_true", help="minimise and pack the corpora instead")
    parser.add_argument("--replay", action="store_true", help="read the inputs of all findings again instead")
    args = parser.parse_args()
    os.nice(10)
    if not (BUILD / "seeds").is_dir():
        subprocess.run([sys.executable, "-m", "tools.fuzz.seeds", str(BUILD / "seeds")], check=True, cwd=ROOT)
    for name in args.readers or READERS:
        if args.replay:
            replay(name)
        elif args.pack:
            pack(name)
        else:
            fuzz(name, args.minutes)


def fuzz(name: str, minutes: float) -> None:
    corpus = BUILD / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    (BUILD / "findings" / name).mkdir(parents=True, exist_ok=True)
    began, executed = time.monotonic(), 0
    for _ in range(MOST_RESTARTS):
        left = 60 * minutes - (time.monotonic() - began)
        if left < 3:
            break
        executed += _run(name, [f"-max_total_time={int(left)}", str(corpus), str(BUILD / "seeds" / name)])
    took = time.monotonic() - began
    table = BUILD / "table.json"
    rows = json.loads(table.read_text()) if table.exists() else {}
    before = rows.get(name, {"minutes": 0.0, "executions": 0})
    findings = sorted(file.name for file in (BUILD / "findings" / name).iterdir())
    rows[name] = {
        "minutes": round(before["minutes"] + took / 60, 1),
        "executions": before["executions"] + executed,
        "findings": findings,
    }
    table.write_text(json.dumps(rows, indent=1))
    print(f"{name}: {took / 60:.1f} minutes, {executed} executions, {len(findings)} findings", flush=True)


def _run(name: str, options: list[str]) -> int:
    """Run libFuzzer once, and return the number of executions."""
    counter = BUILD / "findings" / f"{name}.executed"
    counter.unlink(missing_ok=True)
    crashes = BUILD / "findings" / name
    crashes.mkdir(parents=True, exist_ok=True)
    arguments = [
        "-timeout=30", "-rss_limit_mb=4096", "-use_value_profile=0", f"-artifact_prefix={crashes}/",
        f"-dict={BUILD / 'json.dict'}",
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    with (BUILD / f"{name}.log").open("ab") as log:
        subprocess.run(
            [sys.executable, "-m", "tools.fuzz.one", name, str(BUILD), *arguments, *options],
            check=False, cwd=ROOT, stdout=log, stderr=log, env=environment,
        )  # fmt: skip
    return int(counter.read_text()) if counter.exists() else 0


def replay(name: str) -> None:
    """Read the inputs of findings; move those that are mended to build/fuzz/mended, print the others."""
    mended = BUILD / "mended" / name
    mended.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, lowered_bounds():
        path = prepare(Path(folder), READERS[name], BUILD / "seeds")
        for file in sorted((BUILD / "findings" / name).glob("*")):
            try:
                check(READERS[name], path, file.read_bytes())
            except Broken as broken:
                print(f"{name} {file.name}: {broken} {broken.__cause__!r:.160}", flush=True)
            else:
                file.rename(mended / f"{len(list(mended.iterdir()))}-{file.name}")


def pack(name: str) -> None:
    """Minimise a corpus with libFuzzer and pack it, shortest inputs first, with the inputs of earlier findings."""
    merged = BUILD / "merged" / name
    merged.mkdir(parents=True, exist_ok=True)
    for old in merged.iterdir():
        old.unlink()
    _run(name, ["-merge=1", str(merged), str(BUILD / "corpus" / name), str(BUILD / "seeds" / name)])
    inputs = {
        file.name[:10]: file.read_bytes() for file in sorted(merged.iterdir(), key=lambda file: file.stat().st_size)
    }
    found = {file.name: file.read_bytes() for file in sorted((BUILD / "mended" / name).glob("*"))}
    seeds = {file.name: file.read_bytes() for file in sorted((BUILD / "seeds" / name).iterdir(), reverse=True)[:1]}
    PACKED.mkdir(parents=True, exist_ok=True)
    size = 0
    with zipfile.ZipFile(PACKED / f"{name}.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for entry, content in {**seeds, **{f"found-{n}": c for n, c in enumerate(found.values())}, **inputs}.items():
            info = zipfile.ZipInfo(entry)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
            size += archive.getinfo(entry).compress_size + 2 * len(entry) + 76
            if size > MOST_PACKED and not entry.startswith(("seed", "found")):
                break
    print(f"{name}: {len(inputs)} inputs, {(PACKED / f'{name}.zip').stat().st_size} bytes", flush=True)


if __name__ == "__main__":
    main()
