"""One of two processes that train one model under DistributedDataParallel: two_processes.py RANK MEETING FOLDER.

MEETING is a file for the rendezvous, because a port may be in use.
"""

from __future__ import annotations

import math
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import attnscope
from tests.commands.watch.training import batch, gpt2


def main(rank: int, meeting: str, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
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
            watch.step(loss=math.nan if (rank, step) == (1, 2) else loss)  # no look at this step
    dist.barrier()
    os._exit(0)  # at a normal exit gloo may wait for a process that has already ended


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
