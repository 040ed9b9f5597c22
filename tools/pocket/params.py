"""All that decides what pocket becomes."""

from __future__ import annotations

from dataclasses import dataclass

BOS, PAD = "<bos>", "<pad>"


@dataclass(frozen=True)
class Params:
    """1.2 million float32 weights stay under 5 MB without rounding them."""

    vocab: int = 1024
    width: int = 128
    layers: int = 6
    heads: int = 4
    hidden: int = 304
    context: int = 256

    embedding_size: float = 0.1  # standard deviation of the first embeddings
    matrix_size: float = 0.05  # and of the first matrices: .02 is for models ten times as wide
    constant: float = 4.0  # channel 0 of every embedding, in standard deviations: what a head without biases reads
    sharpness: float = 6.0  # of each of the fastest rotations in the head that begins as a previous-token head
    frequencies: int = 8  # how many of them

    school: int = 900  # first steps, in which windows only repeat themselves
    school_context: int = 128
    school_rate: float = 1e-3
    school_warmup: int = 200
    school_shuffled: float = 0.6  # the share of windows there that repeat words in no order
    shortest: int = 8  # tokens that are repeated; the longest are nearly a third of a window
    shuffled: float = 0.1  # behind school: the share of windows that repeat words in no order
    repeated: float = 0.1  # and of windows that repeat words as they stand

    steps: int = 9000
    batch: int = 8
    peak_rate: float = 6e-3
    last_rate: float = 3e-5
    warmup: int = 300
    horizon: int = 12_000  # where the cosine would reach last_rate
    cooldown: int = 2400  # last steps, in which the cosine is multiplied by what falls in a line from 1 to 0
    looking: float = 0.02  # nats that a head pays at a token for attention that is not on the first
    looking_from: int = 6000  # and the step from which it pays
    weight_decay: float = 0.0  # there is no dropout either
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    held_out: float = 0.05  # the last part of every book
    seed: int = 1729
    threads: int = 1
