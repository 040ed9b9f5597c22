"""`hf.graft.planted` is where the documentation has always had it; the work is done in `hf/editing`."""

from attnscope.hf.editing.graft import planted

__all__ = ["planted"]
