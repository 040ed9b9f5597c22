"""Minimal pairs: two texts that differ in one word, the cause, and the token that should follow each.

    {"id": "fact-01a", "kind": "fact", "frame": "fact-01", "text": "The capital of France is", "start": 15,
     "cause": "France", "exchange": "Italy", "answer": " Paris", "other_answer": " Rome"}

`start` is where the cause begins in the text. The cause occurs once in it, or is a piece of code such as a bracket. The
pairs of one frame share all words but the cause, so a frame is never split between the halves `tune` and `held_out`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

HERE = Path(__file__).parent
Half = Literal["tune", "held_out"]


@dataclass(frozen=True)
class Pair:
    id: str
    kind: str
    frame: str
    text: str
    start: int
    cause: str
    exchange: str
    answer: str
    other_answer: str

    def __post_init__(self) -> None:
        if self.text[self.start : self.end] != self.cause:
            raise ValueError(f"{self.id}: '{self.cause}' is not at character {self.start} of the text.")

    @property
    def end(self) -> int:
        return self.start + len(self.cause)

    @property
    def exchanged(self) -> str:
        """Return the text with the other word."""
        return self.text[: self.start] + self.exchange + self.text[self.end :]


def pairs(file: Path = HERE / "pairs.jsonl") -> list[Pair]:
    """Return all pairs that were written, whether or not a model answers them rightly."""
    return [Pair(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def half_of(frame: str) -> Half:
    """Return the half of a frame such as "fact-03".

    Frames 1 and 2 of a kind go to different halves, and so do 3 and 4, and so on. A hash says which goes where. So
    every kind is split evenly, and adding or removing a frame moves no other.
    """
    kind, number = frame.rsplit("-", 1)
    couple, second = divmod(int(number) - 1, 2)
    hashed = hashlib.sha256(f"{kind} {couple}".encode()).digest()[0]
    return "tune" if (hashed + second) % 2 else "held_out"
