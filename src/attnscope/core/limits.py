"""Limits that more than one part of attnscope states, each defined once."""

SINK_MASS = 0.3  # share of attention on one key above which it is a sink (arXiv:2410.10781)
