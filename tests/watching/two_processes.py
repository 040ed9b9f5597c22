"""One of two processes that train one model under DistributedDataParallel: two_processes.py RANK PORT FOLDER."""

from __future__ import annotations

import math
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import attnscope
from tests.watching.training import batch, gpt2


def main(rank: int, port: str, folder: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = gpt2(dropout=0.0)
    both = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attnscope.watch(both, folder, every=2, rows=None, measures=["entropy", "max_logit", "gradient_norm"]) as watch:
        for step in range(4):
            optimizer.zero_grad()
            whole = batch(step)
            loss = both(**{name: one[2 * rank : 2 * rank + 2] for name, one in whole.items()}).loss
            loss.backward()
            optimizer.step()
            watch.step(loss=math.nan if (rank, step) == (1, 2) else loss)  # no step for a look, and only one is told
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
