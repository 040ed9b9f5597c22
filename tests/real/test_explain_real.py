"""Explanations on real weights, for inputs whose correct explanation is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attnscope.commands.explain.aiming import Question, aim
from attnscope.commands.explain.run import first_look
from attnscope.commands.explain.running import Run
from attnscope.core.registry import chosen_methods
from attnscope.data.medium import Sound, medium
from attnscope.hf.loading.in_memory import in_memory
from attnscope.hf.loading.one_input import reading_of
from attnscope.hf.tapping.capture import capture
from tools import fetch_models
from tools.real_models import whisper

pytestmark = pytest.mark.real

# "And so my fellow Americans / ask not / what your country can do for you / ask what you can do for your country",
# as token ids of Whisper's English vocabulary; a slash marks a pause.
SPOKEN = "843 523 616 5891 3399 1265 407 644 534 1499 460 466 329 345 1265 644 345 460 466 329 534 1499"
WORDS = {407: 1, 1499: 2}  # "not" and the first "country", with the number of their phrase
STEP = 0.02  # seconds of one token of Whisper's encoder


def phrases(sound: Sound) -> list[tuple[float, float]]:
    """Return the times of speech by loudness: loud frames of 20 ms, joined over pauses shorter than 0.4 s."""
    assert sound.rate == 16000
    frames = sound.samples[: len(sound.samples) // 320 * 320].reshape(-1, 320)
    loud = np.nonzero(np.sqrt(np.square(frames).mean(1)) > 0.03)[0]
    breaks = np.nonzero(np.diff(loud) > 20)[0]
    begins, ends = np.append(loud[0], loud[breaks + 1]), np.append(loud[breaks], loud[-1]) + 1
    return [(float(begin) * STEP, float(end) * STEP) for begin, end in zip(begins, ends, strict=True)]


@pytest.mark.thorough
def test_relevance_of_a_transcribed_word_peaks_where_it_is_spoken() -> None:
    """The waveform shows four phrases with pauses between them. The relevance of a word peaks inside its own phrase,
    and that phrase has more relevance than any other. Tested for two words."""
    file = Path(fetch_models.path("speech"))
    sound = medium(file)
    assert isinstance(sound, Sound)
    times = phrases(sound)
    assert len(times) == 4
    loaded = in_memory(whisper())
    read = reading_of(loaded, (file, SPOKEN))
    found, places, output = first_look(loaded, read)
    (relevance,) = chosen_methods(["relevance"])
    for word, phrase in WORDS.items():
        goal = aim(loaded, read, output, Question(target=word))
        captured = capture(loaded.model, read.batch, found, places, goal.number)
        numbers = Run(loaded, read, found, places, goal, captured, 0).explained_by(relevance)["encoder"].numpy()
        begin, end = times[phrase]
        # A token of 20 ms reads 25 ms around it, and words extend into pauses: allow 0.1 s on either side.
        assert begin - 0.1 <= STEP * float(numbers.argmax()) <= end + 0.1, word
        held = [float(numbers[round(a / STEP) : round(b / STEP)].sum()) for a, b in times]
        assert held.index(max(held)) == phrase, (word, held)
