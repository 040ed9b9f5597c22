"""Fuzz one reader in this process. `python -m tools.fuzz` starts it; arguments after the name go to libFuzzer.

A finding does not stop it: the input is saved in FINDINGS/NAME, once for each kind of error and line, and fuzzing goes
on. Crashes of the process, and inputs that take 30 seconds, end it; libFuzzer saves those.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import re
import resource
import shutil
import sys
import tempfile
from pathlib import Path

import atheris

from tools.fuzz.mutate import mutated
from tools.fuzz.readers import LONGEST, MEMORY, READERS, Broken, check, lowered_bounds, prepare

INSTRUMENTED = ["attnscope", "gguf", "scipy.io", "scipy.sparse", "zipfile", "gzip", "wave"]


def main(name: str, build: Path, options: list[str]) -> None:
    reader, findings = READERS[name], build / "findings" / name
    findings.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    path = prepare(folder, reader, build / "seeds")
    with atheris.instrument_imports(include=INSTRUMENTED), lowered_bounds():
        for seed in sorted((build / "seeds" / name).iterdir()):  # imports what is imported late
            with contextlib.suppress(Broken):
                check(reader, path, seed.read_bytes())
    bounds = contextlib.ExitStack()
    bounds.enter_context(lowered_bounds())
    virtual = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (virtual + MEMORY, resource.RLIM_INFINITY))
    executed = 0

    def test(data: bytes) -> None:
        nonlocal executed
        executed += 1
        if executed % 64 == 0:
            (build / "findings" / f"{name}.executed").write_text(str(executed))
        try:
            check(reader, path, data)
        except Broken as broken:
            _save(findings, broken, data)

    def mutator(data: bytes, most: int, seed: int) -> bytes:
        return mutated(reader.form, data, most, random.Random(seed), atheris.Mutate)

    try:
        again = build / f"again-{name}.sh"  # libFuzzer starts itself again to merge
        again.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tools.fuzz.one "{name}" "{build}" "$@"\n')
        again.chmod(0o755)
        atheris.Setup([str(again), f"-max_len={LONGEST}", *options], test, custom_mutator=mutator)
        atheris.Fuzz()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _save(findings: Path, broken: Broken, data: bytes) -> None:
    """Keep the shortest input of each kind."""
    kind = re.sub(r"[^\w.:-]+", "_", re.sub(r"\d+ seconds", "", str(broken)))[:120]
    file = findings / kind
    if not file.exists() or file.stat().st_size > len(data):
        file.write_bytes(data)
        cause = broken.__cause__
        digest = hashlib.sha256(data).hexdigest()[:8]
        print(f"FINDING {findings.name} {broken} {cause!r:.200} [{len(data)} bytes, {digest}]", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
