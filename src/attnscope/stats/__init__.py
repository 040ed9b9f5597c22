"""Mergeable statistics: one pass, many shards, any order, the same numbers to the bit. numpy only."""

from attnscope.stats.moments import Moments
from attnscope.stats.peak import Peak, Tally
from attnscope.stats.sketch import Histogram, QuantileSketch

__all__ = ["Histogram", "Moments", "Peak", "QuantileSketch", "Tally"]
