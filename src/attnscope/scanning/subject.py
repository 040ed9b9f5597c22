"""A subject: a model that can be observed, with where things are in it and how it wants to be called.

It needs no loader: whoever has a module and one batch for it (a training loop, a worker) makes one with `Subject.of`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from attnscope.hf.anatomy.anatomy import Anatomy, anatomy
from attnscope.hf.loading.material import out_of_memory, precision_and_place
from attnscope.hf.tapping.tap import tap
from attnscope.scanning.observer import Observer
from attnscope.trace.batches import Batch


@dataclass(frozen=True)
class Subject:
    model: nn.Module
    anatomy: Anatomy
    options: Mapping[str, Any] = field(default_factory=dict)  # of its forward, beside what a batch holds

    @classmethod
    def of(cls, model: nn.Module, inputs: Mapping[str, Any], options: Mapping[str, Any] | None = None) -> Subject:
        """Find out where things are by running `model` once on a few tokens of `inputs`."""
        return cls(model, anatomy(model, inputs), options or {})

    @property
    def place(self) -> torch.device:
        return precision_and_place(self.model)[1]

    def observe(self, observer: Observer, batch: Batch) -> None:
        """Run one batch under the tap; when memory runs out, run its halves. What is seen waits for `commit`."""
        ready = batch.to(self.place)
        try:
            with tap(self.model, self.anatomy, observer.receive):
                self.model(**ready.inputs, **self.options)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            observer.forget()
            if not out_of_memory(error):
                observer.discard()
                raise
        except BaseException:
            observer.discard()
            raise
        else:
            observer.finish(batch.samples)
            return
        for half in batch.halves():
            self.observe(observer, half)
