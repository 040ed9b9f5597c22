"""`attnscope.atlas`: the atlas in the package, or a model placed among the models of its kind."""

from __future__ import annotations

from attnscope.commands.atlas.ranges import packaged
from attnscope.commands.atlas.record import Atlas


def atlas() -> Atlas:
    """Return the atlas that ships with the package: attention in real pretrained models.

    Returns
    -------
    Atlas
        One entry for each checkpoint, with the means of every measure by head, and those of its twin with random
        weights.

    Examples
    --------
    >>> names = [entry.name for entry in attnscope.atlas().entries]
    """
    return packaged()
