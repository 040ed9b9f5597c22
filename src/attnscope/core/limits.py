"""Limits that more than one part of attnscope states, each defined once.

Cards of measures state them as alarms, `Thresholds` as defaults of findings. A page shows both, so they must agree.
"""

SINK_MASS = 0.3  # share of attention on one key above which it is a sink (arXiv:2410.10781)
MASSIVE_SIZE = 100.0  # a massive activation is larger than this (arXiv:2402.17762)
MASSIVE_TIMES = 1000.0  # and than so many times the median magnitude of its stream (arXiv:2402.17762)
