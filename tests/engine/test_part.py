"""Parts of a job array, from `3/64` or the variables of batch systems."""

from __future__ import annotations

import pytest

from attnscope.core.errors import RefusalError
from attnscope.engine.crew import ArrayPart, part


def test_parts_share_every_shard_once() -> None:
    dealt = [number for i in range(1, 6) for number in part(f"{i}/5").shards(23)]
    assert sorted(dealt) == list(range(23))
    assert list(ArrayPart(7, 8).shards(3)) == []


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({"RANK": "0", "WORLD_SIZE": "4"}, ArrayPart(1, 4)),
        ({"RANK": "3", "WORLD_SIZE": "4", "SLURM_ARRAY_TASK_ID": "9"}, ArrayPart(4, 4)),
        ({"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_COUNT": "8"}, ArrayPart(8, 8)),
        (
            {"SLURM_ARRAY_TASK_ID": "8", "SLURM_ARRAY_TASK_COUNT": "8", "SLURM_ARRAY_TASK_MIN": "1"},
            ArrayPart(8, 8),
        ),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, ArrayPart(2, 2)),
    ],
)
def test_env_takes_the_part_from_the_environment(environment: dict[str, str], found: ArrayPart) -> None:
    assert part("env", environment) == found


@pytest.mark.parametrize(
    ("text", "environment", "sentence"),
    [
        ("65/64", {}, "There is no part 65 of 64"),
        ("0/64", {}, "counted from 1"),
        ("3/2", {}, "There is no part 3 of 2: parts are counted from 1, so write `shard='1/2'` for the first of 2.$"),
        ("1/0", {}, "'1/0' is not a part: write `shard='3/64'` for the third of 64, or `shard='env'`.$"),
        ("0/0", {}, "'0/0' is not a part: write"),
        ("a/b", {}, "'a/b' is not a part: write"),
        ("3", {}, "is not a part"),
        ("-1/4", {}, "is not a part"),
        ("env", {}, "`shard='env'` finds neither"),
        ("env", {"RANK": "x", "WORLD_SIZE": "2"}, "which are not numbers"),
        ("env", {"SLURM_ARRAY_TASK_ID": "9", "SLURM_ARRAY_TASK_COUNT": "4"}, "There is no part 10 of 4"),
        ("env", {"RANK": "0", "WORLD_SIZE": "0"}, "There is no part 1 of 0"),
    ],
)
def test_malformed_parts_are_refused(text: str, environment: dict[str, str], sentence: str) -> None:
    with pytest.raises(RefusalError, match=sentence):
        part(text, environment)
