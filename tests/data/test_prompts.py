"""Files of prompts: what is read, and every line that is refused with its number."""

from pathlib import Path

import pytest

from attnscope.core.errors import RefusalError
from attnscope.data.prompts import prompts

GOOD = '{"text": "a b", "target": " c", "against": " d"}'


def test_a_file_and_a_list_are_one_task(tmp_path: Path) -> None:
    file = tmp_path / "task.jsonl"
    file.write_text(f'\ufeff{GOOD}\n\n{{"against": 7, "target": 5, "text": "\u2028é"}}\n', encoding="utf-8")
    read = prompts(file)
    assert [one.place for one in read.every] == ["task.jsonl, line 1", "task.jsonl, line 3"]
    assert read.every[1].text == "\u2028é"
    assert (read.every[1].target, read.every[1].against) == (5, 7)
    given = prompts([{"text": "a b", "target": " c", "against": " d"}, {"text": "\u2028é", "target": 5, "against": 7}])
    assert given.sha256 == read.sha256
    assert prompts(given) is given
    assert prompts([{"text": "a b", "target": " c"}]).sha256 != read.sha256


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no prompt in task.jsonl"),
        ("\n \n", "no prompt in task.jsonl"),
        (f"{GOOD}\n{{", "line 2, is not JSON"),
        ('["a"]', "line 1, is not an object"),
        ('{"text": "a"}', "line 1, has no 'target'"),
        ('{"target": " a"}', "line 1, has no 'text'"),
        ('{"text": "a", "targe": " b"}', "a field 'targe'.*Did you mean 'target'"),
        ('{"prompt": "a", "answer": " b"}', "a field 'prompt'"),
        ('{"text": 3, "target": " b"}', "a 'text' that is not a string"),
        ('{"text": "", "target": " b"}', "a 'text' that is not a string"),
        ('{"text": "a", "target": [1]}', "a target that is not a token"),
        ('{"text": "a", "target": true}', "a target that is not a token"),
        ('{"text": "a\\ud800", "target": " b"}', "line 1, holds half a character"),
        (f'{GOOD}\n{{"text": "a", "target": " b"}}', "line 2, has no 'against' and .*line 1, has one"),
        (f'{{"text": "a", "target": " b"}}\n{GOOD}', "line 2, has 'against' and .*line 1, has none"),
    ],
)
def test_bad_files(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "task.jsonl"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(RefusalError, match=said):
        prompts(file)


def test_bad_files_of_prompts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.jsonl").write_bytes('{"text": "é"}'.encode("latin-1"))
    with pytest.raises(RefusalError, match="not UTF-8"):
        prompts(tmp_path / "latin.jsonl")
    with pytest.raises(RefusalError, match="No such file"):
        prompts(tmp_path / "none.jsonl")
    with pytest.raises(RefusalError, match="give a list"):
        prompts({"text": "a", "target": " b"})
    with pytest.raises(RefusalError, match="Prompt 2, has no 'target'"):
        prompts([{"text": "a", "target": " b"}, {"text": "a"}])
