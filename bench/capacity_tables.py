"""Write the tables of docs/capacity_planning.md from the results of the simulation."""

from __future__ import annotations

from typing import Any

from tools.marked import put_between_marks

_UNITS = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def with_tables(page: str, found: dict[str, Any]) -> str:
    """Return the page with new text between its marks."""
    for name, table in {"measured": _measured(found), "needs": _needs(found), "scaling": _scaling(found)}.items():
        page = put_between_marks(page, name, "bench/cluster_simulation.py", table)
    return page


def size(count: float) -> str:
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:,.1f} {name}"
    return f"{count:,.0f} bytes"


def hours(count: float) -> str:
    if count >= 2 * 365 * 24:
        return f"{count / 24 / 365:,.0f} years"
    if count >= 72:
        return f"{count / 24:,.1f} days"
    return f"{count:,.1f} h" if count >= 1 else f"{60 * count:,.0f} min"


def _lines(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def _measured(found: dict[str, Any]) -> str:
    measured = found["measured"]
    rows = [
        ["arithmetic of one core in a bare forward", f"{measured['core_flops'] / 1e9:,.0f} GFLOP/s"],
        ["a scan beside it", f"{measured['scan_ratio']:.2f}x"],
    ]
    for model, cost in measured["merging"].items():
        rows.append([f"file of one shard, {model}", size(cost["shard_bytes"])])
        rows.append([f"reading and adding one, {model}, one core", f"{1000 * cost['merge_seconds']:.0f} ms"])
    return _lines(["measured", ""], rows)


def _needs(results: dict[str, Any]) -> str:
    head = ["tokens", "model", "worker", "tokens/s of one", "work of one", "shards", "shard files", "weights read once"]
    rows = [
        [
            f"1e{len(str(job['tokens'])) - 1}",
            job["model"],
            job["worker"],
            f"{job['tokens_a_second']:,.0f}",
            hours(job["work_seconds"] / 3600),
            f"{job['shards']:,}",
            size(job["all_shards_bytes"]),
            size(job["weight_bytes"]),
        ]
        for job in results["jobs"]
    ]
    return _lines(head, rows)


def _scaling(found: dict[str, Any]) -> str:
    workers = [run["workers"] for run in found["jobs"][0]["runs"]]
    head = ["job", *(f"{count:,}" for count in workers), "at the last: busy", "shards redone", "paper / simulated"]
    rows = []
    for job in found["jobs"]:
        runs = job["runs"]
        last = next((run for run in reversed(runs) if "hours" in run), None)
        told = [hours(run.get("hours", run["paper_hours"])) + ("" if "hours" in run else "*") for run in runs]
        tail = ["", "", ""]
        if last is not None:
            tail = [f"{last['busy']:.0%}", str(last["redone"]), f"{last['paper_hours'] / last['hours']:.2f}"]
        name = f"1e{len(str(job['tokens'])) - 1} tokens, {job['model']}, {job['worker']}s"
        rows.append([name, *told, *tail])
    return _lines(head, rows)
