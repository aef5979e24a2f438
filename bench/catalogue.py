"""The benchmarks by name, and how their raw numbers become figures with goals (docs/performance.md)."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.figures import Figure


@dataclass(frozen=True)
class Benchmark:
    """`bench/<name>.py`; its main takes `--json FILE`. `quick`: arguments of a short run."""

    name: str
    about: str
    figures: Callable[[Any], list[Figure]]
    quick: tuple[str, ...] = ()


def _sandbox(raw: Any) -> list[Figure]:
    return [
        Figure("command start to exit in a box, p50", raw["ways"]["boxd"]["p50_ms"], "ms", 4),
        Figure("CPU of `docker exec` / CPU of boxd", raw["cpu_ratio_cli_to_boxd"], "x", 20, at_least=True),
    ]


def _queue(raw: Any) -> list[Figure]:
    rows = [(flavour, call, times) for flavour, calls in raw["milliseconds"].items() for call, times in calls.items()]
    return [Figure(f"{flavour}: {call}, p50", times["p50"], "ms") for flavour, call, times in rows]


def _submit(raw: Any) -> list[Figure]:
    rows = [
        Figure(f"POST /v1/tasks, {at_once} at once, p50", row["p50_ms"], "ms", 5 if at_once == "1" else None)
        for at_once, row in raw["runs"].items()
    ]
    return [
        Figure("one fsync of this disk, p50", raw["fsync"]["p50_ms"], "ms"),
        *rows,
        Figure("API's CPU per request", raw["cpu_ms_per_request"]["api"], "ms"),
    ]


def _first(raw: Any) -> list[Figure]:
    return [
        Figure("submit to the model's first request, p50", raw["p50"]["first_request_ms"], "ms", 1500),
        Figure("submit to the first command's output, cold box, p50", raw["p50"]["first_output_ms"], "ms"),
        Figure("submit to the task's end, one command, p50", raw["p50"]["ended_ms"], "ms"),
    ]


def _live(raw: Any) -> list[Figure]:
    turns = raw[0]["turns"]
    peaks = [row["peak_mib"] for row in raw]
    return [
        Figure(f"model delta to SSE subscriber, {turns} turns, p50", median(row["p50_ms"] for row in raw), "ms", 60),
        Figure("same, p99", median(row["p99_ms"] for row in raw), "ms", 200),
        Figure(f"worker with {turns} turns, RSS", max(peak["worker-1"]["rss_mib"] for peak in peaks), "MiB", 160),
        Figure("same, PSS", max(peak["worker-1"]["pss_mib"] for peak in peaks), "MiB"),
        Figure("API with as many subscribers, RSS", max(peak["api"]["rss_mib"] for peak in peaks), "MiB", 160),
        Figure("same, PSS", max(peak["api"]["pss_mib"] for peak in peaks), "MiB"),
    ]


def _many(raw: Any) -> list[Figure]:
    peaks = [row["peak_mib"]["worker-1"] for row in raw]
    name = f"worker with {raw[0]['turns']} turns, {raw[0]['streaming']} streaming"
    return [
        Figure(f"{name}, RSS", max(peak["rss_mib"] for peak in peaks), "MiB", 238),
        Figure("same, PSS", max(peak["pss_mib"] for peak in peaks), "MiB"),
        Figure("same, its own pages (USS)", max(peak["uss_mib"] for peak in peaks), "MiB"),
        Figure("same, share of one core", median(row["cores"]["worker-1"] for row in raw), "", 1),
        Figure("same, delta to SSE subscriber, p50", median(row["p50_ms"] for row in raw), "ms"),
    ]


def _start(raw: Any) -> list[Figure]:
    return [
        Figure("`patchyard up --detach`, new home", raw["new_up_s"], "s"),
        Figure("`patchyard up --detach`, again", raw["again_up_s"], "s"),
        Figure("`patchyard down`", raw["down_s"], "s"),
    ]


def _cost(raw: Any) -> list[Figure]:
    figures = []
    for at_once in sorted({row["at_once"] for row in raw}):
        rows = [row for row in raw if row["at_once"] == at_once]
        figures.append(_tasks_per_min(rows, at_once))
        gap = {1: 15.0, 32: 200.0}.get(at_once)
        figures.append(Figure(f"gap between steps, {at_once} at once, p50", median(r["gap_p50_ms"] for r in rows), "ms", gap))
        figures.append(
            Figure(f"service's CPU per task, {at_once} at once", median(r["service_cpu_s_per_task"] for r in rows), "s")
        )
        if at_once == 1:
            figures.append(Figure("one task alone, box included", median(r["wall_s_per_task"] for r in rows), "s", 1.3))
    figures.append(Figure("service's memory, PSS", median(row["peak_pss_mib"] for row in raw), "MiB", 300))
    return figures


def _tasks_per_min(rows: list[dict[str, Any]], at_once: int) -> Figure:
    goal = 100.0 if at_once >= 8 else None
    return Figure(f"tasks/min, {at_once} at once", median(r["tasks_per_min"] for r in rows), "", goal, at_least=True)


def _beside(raw: Any) -> list[Figure]:
    figures = []
    for system, at_once in sorted({(row["system"], row["at_once"]) for row in raw}, key=lambda key: (key[1], key[0])):
        rows = [row for row in raw if (row["system"], row["at_once"]) == (system, at_once)]
        name = f"{system}, {at_once} at once"
        figures.append(Figure(f"{name}: tasks/min", median(row["tasks_per_min"] for row in rows), ""))
        figures.append(Figure(f"{name}: machine's CPU per task", median(row["cpu_s_per_task"] for row in rows), "s"))
        figures.append(Figure(f"{name}: gap, p50", median(row["gap_p50_ms"] or 0 for row in rows), "ms"))
        figures.append(Figure(f"{name}: memory, PSS", median(row["peak_pss_mib"] for row in rows), "MiB"))
    return figures


def _model(raw: Any) -> list[Figure]:
    return [
        Figure("history of 2,000 items: " + name, value, "")
        for name, value in raw["history"].items()
        if isinstance(value, float)
    ]


def _core(raw: Any) -> list[Figure]:
    return [
        Figure("agent core alone, CPU per step", raw["cpu_ms_per_step"], "ms"),
        Figure("same, 200 turns on one loop", raw["cpu_ms_per_step_200_turns"], "ms"),
        Figure("memory of 200 turns", raw["rss_growth_mib_200_turns"], "MiB", 300),
    ]


def _patches(raw: Any) -> list[Figure]:
    return [
        Figure("parse, updates", raw["parse_update_mb_per_s"], "MB/s", 20, at_least=True),
        Figure("parse, in pieces of 64 characters", raw["stream_update_mb_per_s"], "MB/s"),
    ]


BENCHMARKS = (
    Benchmark("side_by_side", "the same task through Patchyard and its peers", _beside, ("--rounds", "1", "--tasks", "4")),
    Benchmark("task_cost", "where a task's time and CPU go, by process", _cost, ("--rounds", "1", "--at-once", "1", "8")),
    Benchmark("first_request", "submission to first model request and first output", _first, ("--tasks", "5")),
    Benchmark("api_submit", "time to accept a task, fsync always", _submit, ("--requests", "100")),
    Benchmark("live", "delta to subscriber, memory, with 50 streaming turns", _live, ("--seconds", "8")),
    Benchmark("many_turns", "one worker with 200 turns, 50 of them streaming", _many, ("--seconds", "8")),
    Benchmark("service_start", "`up --detach` and `down`", _start, ("--rounds", "2")),
    Benchmark("sandbox_latency", "a command in a box, against docker exec", _sandbox, ("--rounds", "2")),
    Benchmark("queue_core", "calls of the queue core, fsync always", _queue, ("--rounds", "1", "--threads", "60")),
    Benchmark("model_stream", "the model client and the replay model", _model, ("--rounds", "1")),
    Benchmark("agent_core", "CPU of the agent core over doubles", _core),
    Benchmark("patch_parser", "speed of the patch parser", _patches, ("--megabytes", "2")),
)
