"""Limits that more than one part of attnscope states, each defined once.

Cards of measures state them as alarms, `Thresholds` as defaults of findings. A page shows both, so they must agree:
`Thresholds.limits` names the threshold of each card, and the page of a survey shows the threshold in force.
"""

SINK_MASS = 0.3  # share of attention on one key above which it is a sink (arXiv:2410.10781)
MASSIVE_SIZE = 100.0  # a massive activation is larger than this (arXiv:2402.17762)
MASSIVE_TIMES = 1000.0  # and than so many times the median magnitude of its stream (arXiv:2402.17762)
COLLAPSE_RESIDUAL = 0.1  # relative residual of a collapsing block (trained BERT ends at 0.31)
TOKEN_COSINE = 0.95  # mean cosine between tokens (arXiv:2202.08625)
ENTROPY_FLOOR = 0.3  # nats; below this a row is nearly one-hot (arXiv:2303.06296)
IDENTITY_MASS = 0.5  # mean attention of a token to itself
DUPLICATE_OVERLAP = 0.95  # cosine between the patterns of two heads
MAX_LOGIT = 100.0  # largest logit, above which QK-Clip scales weights (arXiv:2507.20534)
NORM_GROWTH = 10.0  # factor by which one block grows the norm of a typical token
HEAD_CONTRIBUTION = 0.005  # below this a head writes almost nothing into the stream
EFFECTIVE_RANK = 2.0  # directions; below this fewer than two carry the stream
STABLE_RANK = 1.05  # directions; below this one carries the stream
CONTRACTION = 0.1  # share of the differences between tokens that a head keeps
