"""Under DistributedDataParallel the first process writes, and its numbers are those of the whole batch. If the loss of
only one process is not finite, the others do not wait for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import attnscope
from attnscope.commands.timeline.read import read_run
from tests.commands.watch.training import batch, gpt2, numbers_of

ROOT = Path(__file__).parents[3]


def test_two_processes_write_what_one_process_sees_of_the_whole_batch(tmp_path: Path) -> None:
    source = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    environment = os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    words, meeting = [sys.executable, "-m", "tests.commands.watch.two_processes"], str(tmp_path / "meeting")
    processes = [
        subprocess.Popen([*words, str(rank), meeting, str(tmp_path / "both")], cwd=ROOT, env=environment)
        for rank in (0, 1)
    ]
    try:
        while not any(one.poll() for one in processes) and any(one.poll() is None for one in processes):
            time.sleep(0.1)
        assert [one.poll() for one in processes] == [0, 0]
    finally:
        for process in processes:  # a process may wait for one that is dead
            process.kill()
            process.wait()
    model = gpt2(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    chosen = ["entropy", "max_logit", "gradient_norm"]
    with attnscope.watch(model, tmp_path / "one", every=2, rows=None, measures=chosen) as watch:
        for step in range(4):
            optimizer.zero_grad()
            loss = model(**batch(step)).loss
            loss.backward()
            optimizer.step()
            watch.step(loss=loss)
    both, one = read_run(tmp_path / "both").looks, read_run(tmp_path / "one").looks
    assert [look.step for look in both] == [look.step for look in one] == [0, 1, 2, 4]
    for mine, theirs in zip(both, one, strict=True):
        # Gradients are summed in another order: float32 agrees to 1e-4.
        assert mine.loss == (None if theirs.loss is None else pytest.approx(theirs.loss, rel=1e-5))
        assert mine.tokens == theirs.tokens
        for value in theirs.values:
            np.testing.assert_allclose(numbers_of(mine, *value.key), value.numbers, rtol=1e-4)
