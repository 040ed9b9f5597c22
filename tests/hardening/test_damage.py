"""One flipped bit: it is noticed, costs what it hit and nothing else, and nothing is thrown away because of it."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import attnscope
from attnscope.commands.timeline.read import RunReader, parse_looks, read_run
from attnscope.commands.watch.run_folder import RunLog
from attnscope.core.errors import RefusalError
from attnscope.core.hashes import checked_line, unchecked
from attnscope.core.locks import FolderLock
from attnscope.reports.record import Record
from tests.command import attnscope as command
from tests.command import offline
from tests.commands.sample_treatment import sample_treatment
from tests.commands.scan.survey.sample import sample_survey
from tests.commands.timeline.sample import header, look, sample_timeline, write_run
from tests.reports.sample_task_paths import sample_task_paths
from tests.specimens import TEXT, save_specimen


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """32 looks at the steps 1 to 32."""
    with RunLog.create(tmp_path / "run", header(every=1)) as log:
        for number in range(32):
            log.append(look(number, every=1))
    return tmp_path / "run"


def old(content: bytes) -> bytes:
    """The log as it was written before lines had checksums."""
    return b"".join(unchecked(line) + b"\n" for line in content.splitlines())


@pytest.mark.parametrize("checksums", [True, False], ids=["with checksums", "of before"])
def test_a_flipped_step_costs_its_look_alone_and_resuming_keeps_the_rest(run: Path, checksums: bool) -> None:
    file = run / "looks.jsonl"
    whole = file.read_bytes() if checksums else old(file.read_bytes())
    file.write_bytes(whole.replace(b'"step":18', b'"step":98'))
    timeline = read_run(run)
    assert timeline.steps.tolist() == [step for step in range(1, 33) if step != 18]
    assert timeline.notes == ("1 line of looks.jsonl could not be read and is skipped: 18.",)
    size = file.stat().st_size
    with RunLog.resume(run, header(every=1), step=32) as log:
        assert len(log.kept) == 31
        log.append(look(32, every=1))
    assert file.stat().st_size > size
    assert read_run(run).steps.tolist() == [step for step in range(1, 34) if step != 18]
    assert not list(run.glob("looks.jsonl.*"))  # nothing was cut off


def test_every_flipped_bit_of_a_line_is_noticed() -> None:
    line = look(0).line()
    before, after = look(1).line(), look(3).line()
    for bit in range(8 * len(line)):
        damaged = bytearray(line)
        damaged[bit // 8] ^= 1 << bit % 8
        found = parse_looks(before.replace(b"100", b"10") + bytes(damaged) + after)
        assert (50 in [one.step for one in found.looks]) == (bit // 8 == len(line) - 1), f"bit {bit} of {line!r}"


ENDS = [b"\n", b"", *(bytes([ord("\n") ^ 1 << bit]) for bit in range(8)), b"\r\n"]


@pytest.mark.parametrize("end", ENDS)
def test_a_damaged_line_end_costs_no_look(run: Path, end: bytes) -> None:
    file = run / "looks.jsonl"
    lines = file.read_bytes().splitlines()
    file.write_bytes(b"\n".join(lines[:10]) + end + b"\n".join(lines[10:]) + end)
    timeline = read_run(run)
    assert timeline.steps.tolist() == list(range(1, 33))
    assert timeline.notes == ()
    with RunLog.resume(run, header(every=1), step=32) as log:
        log.append(look(32, every=1))
    assert read_run(run).steps.tolist() == list(range(1, 34))
    with RunLog.resume(run, header(every=1), step=10) as log:  # cuts between the joined lines
        log.append(look(10, every=1))
    assert read_run(run).steps.tolist() == list(range(1, 12))
    assert file.read_bytes().count(b"\n") == 11


def test_of_joined_lines_each_is_read_if_it_fits_its_checksum(run: Path) -> None:
    file = run / "looks.jsonl"
    lines = file.read_bytes().splitlines()
    for damaged in (9, 10):
        wrong = [line.replace(b'"step":', b'"step":1') if n == damaged else line for n, line in enumerate(lines)]
        file.write_bytes(b"\n".join(wrong[:10]) + b"\n".join(wrong[10:]) + b"\n")
        timeline = read_run(run)
        assert timeline.steps.tolist() == [step for step in range(1, 33) if step != damaged + 1]
        assert timeline.notes == ("1 line of looks.jsonl could not be read and is skipped: 10.",)


def test_an_unfinished_last_line_is_left_out_and_the_reader_says_so(run: Path) -> None:
    file = run / "looks.jsonl"
    whole = file.read_bytes()
    for missing in (2, 20, 100):
        file.write_bytes(whole[:-missing])
        assert read_run(run).steps.tolist() == list(range(1, 32))
        assert read_run(run).notes == ("The last line of looks.jsonl is unfinished: one look is left out.",)
    file.write_bytes(old(whole)[:-1])  # without a checksum nobody knows whether it is whole
    assert read_run(run).notes == ("The last line of looks.jsonl is unfinished: one look is left out.",)


def test_a_reader_that_follows_a_run_reads_a_line_once_however_it_arrives(run: Path) -> None:
    file = run / "looks.jsonl"
    content = file.read_bytes()
    two = content[: content.index(b"\n", content.index(b"\n") + 1) + 1]
    for cut in range(len(two)):
        file.write_bytes(two[:cut])
        reader = RunReader(run)
        seen = list(reader.timeline.looks)
        for stop in (cut, cut + 1, len(two)):
            file.write_bytes(two[:stop])
            seen += reader.more()
        assert [one.step for one in seen] == [1, 2]
        assert [one.step for one in reader.timeline.looks] == [1, 2]
        assert reader.timeline.notes == ()


def test_a_line_without_a_checksum_is_read_and_one_that_does_not_fit_is_not() -> None:
    text = b'{"step":1}'
    assert unchecked(checked_line(text).rstrip()) == unchecked(text) == text
    with pytest.raises(ValueError, match="checksum"):
        unchecked(checked_line(text).rstrip().replace(b"1}", b"2}").replace(b":1,", b":2,"))


def test_what_resuming_cuts_off_is_kept_beside(run: Path) -> None:
    file = run / "looks.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    damaged = lines[25].replace(b'"step":26', b'"step":66')
    unfinished = look(32, every=1).line()[:100]
    file.write_bytes(b"".join([*lines[:25], damaged, *lines[26:], unfinished]))
    with RunLog.resume(run, header(every=1), step=20) as log:
        assert log.kept[-1].step == 20
    assert file.read_bytes() == b"".join(lines[:20])
    assert (run / "looks.jsonl.damaged").read_bytes() == damaged
    assert (run / "looks.jsonl.dropped").read_bytes() == b"".join([*lines[20:25], *lines[26:], unfinished]) + b"\n"
    assert read_run(run).notes == ("1 damaged line of looks.jsonl is kept in looks.jsonl.damaged.",)


def test_a_reader_that_follows_a_run_names_lines_damaged_later(tmp_path: Path) -> None:
    log = RunLog.create(tmp_path, header())
    reader = RunReader(tmp_path)
    log.append(look(0))
    reader.more()
    with (tmp_path / "looks.jsonl").open("ab") as stream:
        stream.write(b"\0\0\n")
    log.append(look(1))
    log.close()
    assert [one.step for one in reader.more()] == [100]
    assert reader.timeline.notes == ("1 line of looks.jsonl could not be read and is skipped: 2.",)


def test_a_damaged_header_is_refused(run: Path) -> None:
    (run / "run.json").write_text((run / "run.json").read_text().replace('"a model"', '"b model"'))
    with pytest.raises(RefusalError, match="does not fit its sha256"):
        read_run(run)


RECORDS: dict[str, Callable[[], Record]] = {
    "survey": sample_survey,
    "treatment": sample_treatment,
    "timeline": sample_timeline,
    "task_paths": sample_task_paths,
}


@pytest.mark.parametrize("kind", RECORDS)
@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_records_carry_a_hash_and_are_refused_where_it_does_not_fit(
    tmp_path: Path, kind: str, ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = RECORDS[kind]().save(tmp_path / f"record{ending}")
    assert attnscope.load(path) is not None
    plain = tmp_path / "plain.json"
    document = RECORDS[kind]().document()
    saved = json.loads((RECORDS[kind]().save(plain)).read_bytes())
    assert {name: value for name, value in saved.items() if name != "sha256"} == json.loads(json.dumps(document))
    assert list(saved)[-1] == "sha256"
    plain.write_text(json.dumps(saved, indent=3))  # spaces are no damage
    assert attnscope.load(plain) is not None
    text = json.dumps(saved)
    start = text.index('"version"') + 15
    digit = min(index for index, letter in enumerate(text[start:], start) if letter in "2468")
    plain.write_text(text[:digit] + str(int(text[digit]) ^ 1) + text[digit + 1 :])
    with pytest.raises(RefusalError, match=r"does not fit its sha256\): run `attnscope .*; if you changed it yourself"):
        attnscope.load(plain)
    del saved["sha256"]
    plain.write_text(json.dumps(saved))
    with caplog.at_level(logging.INFO, "attnscope"):
        assert attnscope.load(plain) is not None  # written before there were hashes
    assert "carries no hash" in caplog.text


def written_by_jq(value: object) -> object:
    """What `jq .` makes of a document: numbers are floats to it, and whole ones are written without a point."""
    if isinstance(value, dict):
        return {name: written_by_jq(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [written_by_jq(entry) for entry in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_that_jq_wrote_again_is_read_and_so_are_earlier_hashes(tmp_path: Path, kind: str) -> None:
    path = RECORDS[kind]().save(tmp_path / "record.json")
    before, saved = attnscope.load(path), json.loads(path.read_bytes())
    again = written_by_jq(saved)
    assert json.dumps(again) != json.dumps(saved)
    path.write_text(json.dumps(again))
    assert attnscope.load(path).document() == before.document()
    del saved["sha256"]
    text = json.dumps(saved, separators=(",", ":"), ensure_ascii=False)  # the hash of earlier versions
    path.write_text(json.dumps({**saved, "sha256": hashlib.sha256(text.encode()).hexdigest()}))
    assert attnscope.load(path).document() == before.document()


def test_the_plan_of_a_store_carries_a_hash(tmp_path: Path) -> None:
    options = ("--samples", "2", "--max-tokens", "8", "--measures", "entropy", "--store", tmp_path / "store")
    (tmp_path / "corpus.txt").write_text(TEXT)
    words = ("scan", save_specimen(tmp_path / "model"), tmp_path / "corpus.txt", *options, "--out", tmp_path / "out")
    assert command(*words).returncode == 0
    plan = tmp_path / "store" / "plan.json"
    plan.write_text(plan.read_text().replace('"of": 1', '"of": 3'))
    again = command(*words)
    assert again.returncode == 2
    assert "plan.json is damaged (it does not fit its sha256): remove it and scan into" in again.stderr
    plan.unlink()  # as the refusal says
    assert command(*words).returncode == 0


def test_a_second_scan_into_a_folder_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text(TEXT)
    model = save_specimen(tmp_path / "model")
    out = tmp_path / "out"
    words = ("scan", model, tmp_path / "corpus.txt", "--samples", "2", "--max-tokens", "8", "--measures", "entropy")
    program = "import sys, pathlib, time; from attnscope.core.locks import FolderLock\n"
    program += "lock = FolderLock(pathlib.Path(sys.argv[1]), 'survey.lock'); print('held', flush=True); time.sleep(60)"
    out.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", program, out], stdout=subprocess.PIPE, text=True, env=offline()
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        for second in (words, ("merge", tmp_path / "none")):
            refused = command(*second, "--out", out)
            assert refused.returncode == 2
            said = [line for line in refused.stderr.splitlines() if line.startswith("attnscope: ")]
            assert said == [
                f"attnscope: {out} is in use by process {first.pid}: wait until it ends, or give another folder (if no "
                "such process runs any more, delete survey.lock in it)."
            ]
        assert sorted(path.name for path in out.iterdir()) == ["survey.lock"]
        first.send_signal(signal.SIGKILL)
        first.wait()
    assert (out / "survey.lock").exists()  # a stale lock does not block
    assert command(*words, "--out", out).returncode == 0
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "survey.json"]


def test_a_lock_that_cannot_be_written_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RefusalError, match="cannot be written to"):
        FolderLock(tmp_path / "missing", "run.lock")


def test_a_run_is_on_disk_after_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    log = RunLog.create(tmp_path, header())
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(os, "fsync", synced.append)
    expected = 0
    for number, (seconds, forced) in enumerate([(0.0, True), (0.5, False), (0.4, False), (0.2, True), (5.0, True)]):
        clock[0] += seconds
        log.append(look(number))
        expected += forced
        assert len(synced) == expected
    log.close()
    assert len(synced) == expected + 1


def test_a_run_of_which_nothing_was_written_is_begun_anew(tmp_path: Path) -> None:
    RunLog.create(tmp_path, header()).close()
    (tmp_path / "looks.jsonl").write_bytes(look(0).line()[:80])
    write_run(tmp_path, 2)
    assert read_run(tmp_path).steps.tolist() == [50, 100]
