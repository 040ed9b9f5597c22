"""Inputs of explain, view and operator in Python: files, NaN, wrong types, and options that exclude each other."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

import attnscope
from attnscope.core.errors import RefusalError
from attnscope.data.medium import readable

TEXT = "The king went up to the house of the"


def test_a_path_is_read_and_the_name_of_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.txt").write_text(TEXT)
    (tmp_path / "l1.txt").write_bytes(b"caf\xe9 au lait")
    monkeypatch.chdir(tmp_path)
    assert readable(Path("t.txt")) == TEXT
    assert readable((TEXT, Path("t.txt"))) == (TEXT, TEXT)
    assert readable("gone.txt") == "gone.txt"  # no such file exists, so this is a text
    with pytest.raises(RefusalError, match=r"'t\.txt' is the name of a file here: give Path\('t\.txt'\)"):
        readable("t.txt")
    with pytest.raises(RefusalError, match="There is no file"):
        readable(Path("gone.txt"))
    with pytest.raises(RefusalError, match=r"not UTF-8 \(byte 0xe9 at offset 3\)"):
        readable(Path("l1.txt"))
    with pytest.raises(RefusalError, match="is a folder"):
        readable(tmp_path)
    found = attnscope.explain("pocket", Path("t.txt"), methods="random")
    assert found.text == TEXT


def test_entry_and_similarity_exclude_each_other() -> None:
    """Both together used to explain the entry and to call it the similarity."""
    model = BertModel(
        BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    ).eval()
    batch = {"input_ids": torch.tensor([[1, 2, 3, 4]])}
    with pytest.raises(RefusalError, match="explain either one entry"):
        attnscope.explain(model, batch, target=2, against="another", methods="random")


@pytest.mark.parametrize(("dtype", "unit"), [("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
def test_half_precision_is_explained_by_every_default_method(dtype: str, unit: float) -> None:
    """Rows are carried in float32, because -1e30, the score of a masked row, overflows in float16.

    Weights and about eight results in each of six blocks are rounded. These errors add up like a random walk of 50
    steps, to seven units of the largest number.
    """
    narrow, wide = (attnscope.explain("pocket", TEXT, dtype=one) for one in (dtype, "float32"))
    left_out = [one for one in wide.methods if one.name not in {other.name for other in narrow.methods}]
    assert {one.name for one in left_out} == {"path_contribution", "operator"}
    assert all(any(note.startswith(f"{one.title} is left out") for note in narrow.notes) for one in left_out)
    rows = [
        np.asarray(next(one.scores[0] for one in found.methods if one.name == "relevance")) for found in (narrow, wide)
    ]
    assert np.abs(rows[0] - rows[1]).max() <= 8 * unit * np.abs(rows[1]).max()


WRONG_KINDS = """
import numpy as np, torch, attnscope
TEXT = "The king went up"
CASES = [
    (attnscope.explain, {"methods": None}, "Methods are names"),
    (attnscope.explain, {"methods": ["relevance", 3]}, "Methods are names"),
    (attnscope.explain, {"seed": "a"}, "A seed is a whole number, not 'a'"),
    (attnscope.explain, {"seed": np.int64(-(2**63)), "target": True}, "The target is a single"),
    (attnscope.explain, {"dtype": torch.float64}, "`dtype=` cannot be 'torch.float64'"),
    (attnscope.explain, {"target": True}, "The target is a single token or class, not a bool"),
    (attnscope.explain, {"position": True}, "The position is the number of a token"),
    (attnscope.explain, {"model": None}, "A NoneType is not a model"),
    (attnscope.view, {"block": 1.5}, "1.5 does not name a block"),
    (attnscope.view, {"max_mb": "64"}, "megabytes above 0"),
    (attnscope.view, {"max_mb": float("nan")}, "megabytes above 0"),
]
for call, options, message in CASES:
    usual = {"methods": "random"} if call is attnscope.explain else {}
    try:
        call(**{"model": "pocket", "text": TEXT, **usual, **options})
    except attnscope.RefusalError as refusal:
        assert message in str(refusal), (options, str(refusal))
    else:
        raise AssertionError(options)
print(len(CASES), "refused")
"""


def test_wrong_types_are_refused_in_a_sentence() -> None:
    """Run in a separate process, because beartype checks argument types in this one."""
    done = subprocess.run([sys.executable, "-c", WRONG_KINDS], capture_output=True, text=True, check=False)
    assert done.stdout == "11 refused\n", done.stderr


def test_operator_refuses_pictures_and_unknown_tokens(tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (8, 8)).save(tmp_path / "p.png")
    with pytest.raises(RefusalError, match="An operator needs a text"):
        attnscope.operator("pocket", str(tmp_path / "p.png"))
    with pytest.raises(RefusalError, match="within its vocabulary"):
        attnscope.operator("pocket", {"input_ids": torch.tensor([[1, 2, 10**6]])})


def test_advice_for_a_broken_sound_names_another_file(tmp_path: Path) -> None:
    (tmp_path / "gone.wav").write_bytes(b"no sound")
    with pytest.raises(RefusalError, match=r"ffmpeg -i gone\.wav gone-converted\.wav"):
        readable(str(tmp_path / "gone.wav"))
