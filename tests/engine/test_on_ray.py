"""A cluster of two nodes on this machine: a worker killed, a node removed, a driver killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import attnscope
from attnscope.core.errors import RefusalError
from attnscope.engine.on_ray import OnRay
from tests.engine.toy import Squares

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of Ray about its own files


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


@pytest.mark.thorough
def test_tasks_survive_a_killed_worker_and_a_removed_node(cluster: Any, tmp_path: Path) -> None:
    extra = cluster.add_node(num_cpus=1)
    with OnRay(Squares(str(tmp_path), kills=2), None, cluster.address, 0.0) as crew:
        assert crew.hello
        found = {}
        for task, (square, _, _) in crew.each(range(12)):
            found[task] = square
            if len(found) == 4:
                cluster.remove_node(extra, allow_graceful=False)
    assert found == {n: n * n for n in range(12)}
    assert len(list(tmp_path.glob("death-*"))) == 1


@pytest.mark.parametrize(
    ("ways", "sentence"),
    [
        ({"refuses": 1}, r"^Shard 1: the disk is full: make room\.$"),
        ({"fails": 1}, r"^Shard 1 failed \(ValueError: seven is not a number\)"),
        ({"unloadable": True}, r"^There is no model 'nothing': check its name\.$"),
    ],
)
def test_failures_name_shard_and_reason(cluster: Any, tmp_path: Path, ways: dict[str, Any], sentence: str) -> None:
    crew = OnRay(Squares(str(tmp_path), **ways), None, cluster.address, 0.0)
    with crew, pytest.raises(RefusalError, match=sentence):
        list(crew.each(range(3)))


def test_other_versions_are_refused(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with OnRay(Squares(str(tmp_path)), None, cluster.address, 0.0) as crew:
        monkeypatch.setattr(attnscope, "__version__", "9.9")
        with pytest.raises(RefusalError, match=r"A worker has attnscope .*, but the driver has 9\.9"):
            assert crew.hello


def test_missing_gpus_are_refused(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(RefusalError, match=r"has 0 GPUs and each worker needs 0\.5"):
        OnRay(Squares(str(tmp_path)), None, cluster.address, 0.5).__enter__()


def test_next_driver_can_use_the_cluster_of_a_killed_one(cluster: Any, tmp_path: Path) -> None:
    script = (
        "import time; from attnscope.engine.on_ray import OnRay; from tests.engine.toy import Squares\n"
        f"crew = OnRay(Squares({str(tmp_path)!r}), None, {cluster.address!r}, 0.0).__enter__()\n"
        "print(next(crew.each(range(5)))[0], flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline().strip()
        driver.send_signal(signal.SIGKILL)
    with OnRay(Squares(str(tmp_path)), None, cluster.address, 0.0) as crew:
        assert {task: square for task, (square, _, _) in crew.each(range(5))} == {n: n * n for n in range(5)}


def test_address_that_does_not_answer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnscope.engine.on_ray.ANSWERS_WITHIN", 0.5)
    began = time.monotonic()
    with pytest.raises(RefusalError, match=r"There was no answer from 127\.0\.0\.1:9 within 0\.5 s"):
        OnRay(Squares(str(tmp_path)), None, "127.0.0.1:9", 0.0).__enter__()
    with pytest.raises(RefusalError, match="is not the address of a Ray cluster"):
        OnRay(Squares(str(tmp_path)), None, "nonsense", 0.0).__enter__()
    assert time.monotonic() - began < 60


def test_a_cluster_that_does_not_start_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(**_: Any) -> None:
        raise Exception("The current node timed out during startup.\nMore of it.")  # as Ray does

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", slow)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with pytest.raises(RefusalError, match=r"cannot be used \(The current node timed out during startup\.\)"):
        OnRay(Squares(str(tmp_path)), None, None, 0.0).__enter__()


def test_missing_ray_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RefusalError, match=r"pip install 'attnscope\[ray\]'"):
        OnRay(Squares(str(tmp_path)), None, None, 0.0).__enter__()
