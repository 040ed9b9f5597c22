"""All settings of the training of pocket."""

from __future__ import annotations

from dataclasses import dataclass

BOS, PAD = "<bos>", "<pad>"


@dataclass(frozen=True)
class Params:
    """The settings. 1.2 million float32 weights need less than 5 MB without rounding."""

    vocab: int = 1024
    width: int = 128
    layers: int = 6
    heads: int = 4
    hidden: int = 304
    context: int = 256

    embedding_size: float = 0.1  # standard deviation of the first embeddings
    matrix_size: float = 0.05  # standard deviation of the first matrices: .02 is for models ten times as wide
    constant: float = 4.0  # channel 0 of every embedding, in standard deviations: a bias for the planted head
    sharpness: float = 6.0  # weight of each of the fastest rotations in the planted previous-token head
    frequencies: int = 8  # number of these rotations

    school: int = 900  # first steps, in which windows only repeat themselves
    school_context: int = 128
    school_rate: float = 1e-3
    school_warmup: int = 200
    school_shuffled: float = 0.6  # share of windows in school that repeat words in random order
    shortest: int = 8  # least number of repeated tokens; the largest is nearly a third of a window
    shuffled: float = 0.1  # after school: share of windows that repeat words in random order
    repeated: float = 0.1  # after school: share of windows that repeat words in order

    steps: int = 9000
    batch: int = 8
    peak_rate: float = 6e-3
    last_rate: float = 3e-5
    warmup: int = 300
    horizon: int = 12_000  # step at which the cosine would reach last_rate
    cooldown: int = 2400  # last steps, in which the rate is also multiplied by a linear decay from 1 to 0
    looking: float = 0.02  # penalty in nats per head and token for attention that is not on the first token
    looking_from: int = 6000  # first step with the penalty
    weight_decay: float = 0.0  # no dropout either
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    held_out: float = 0.05  # the last part of every book
    seed: int = 1729
    threads: int = 1
