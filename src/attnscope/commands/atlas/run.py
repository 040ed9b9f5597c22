"""`attnscope.atlas`: the atlas of real models that comes with the package. Needs no torch."""

from __future__ import annotations

from attnscope.commands.atlas.ranges import packaged
from attnscope.commands.atlas.record import Atlas


def atlas() -> Atlas:
    """Return the atlas: surveys of real pretrained models, with one number for each measure, block and head.

    Returns
    -------
    Atlas
        `entries` holds one entry for each model, and `table()` the median and the usual range of every measure.
        `atlas["smollm2-135m"]` is the entry of one model.

    Examples
    --------
    >>> real = attnscope.atlas()
    >>> placement = attnscope.place(real["antiberty"])
    """
    return packaged()
