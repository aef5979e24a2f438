"""Speed of the patch parser and of finding lines, as JSON.

    python -m bench.patch_parser [--megabytes 8]

parse            whole text at once; the goal is 20 MB/s
stream           the same text in pieces of 64 characters, as a model sends it
seek             many hunks in a file of 200,000 lines, all exact / all by the last pass / repeated lines only
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

from patchyard.patch import FileText, PatchParser, parse, plan

_LINES_OF_SEEK = 200_000
_HUNKS_OF_SEEK = 2_000
_PIECE = 64


def update_patch(size: int) -> str:
    """A patch of about `size` characters: updates with hunks of six lines, as models write them."""
    hunk = (
        "@@ def handler_{0}(request):\n"
        "     value = request.args.get('name')\n"
        "-    return render(value)\n"
        "+    if value is None:\n"
        "+        return missing()\n"
        "+    return render(value, escape=True)\n"
        " \n"
    )
    parts = ["*** Begin Patch\n"]
    length, number = 0, 0
    while length < size:
        if number % 20 == 0:
            parts.append(f"*** Update File: src/module_{number}.py\n")
        parts.append(hunk.format(number))
        length += len(parts[-1])
        number += 1
    return "".join([*parts, "*** End Patch\n"])


def add_patch(size: int) -> str:
    """A patch of about `size` characters that adds files of 200 lines."""
    body = "".join(f"+    line {i} of a file that was written by a model\n" for i in range(200))
    files = [f"*** Add File: src/new_{i}.py\n{body}" for i in range(size // len(body) + 1)]
    return "".join(["*** Begin Patch\n", *files, "*** End Patch\n"])


def stream(text: str) -> None:
    """Feed the text in small pieces."""
    parser = PatchParser()
    for start in range(0, len(text), _PIECE):
        parser.feed(text[start : start + _PIECE])
    parser.finish()


def seconds(action: Callable[[], object], repeat: int = 3) -> float:
    """Best of a few runs, in processor time: other load of the machine is not the parser's."""
    best = float("inf")
    for _ in range(repeat):
        began = time.process_time()
        action()
        best = min(best, time.process_time() - began)
    return best


def seek_case(line: Callable[[int], str], sought: Callable[[int], str]) -> float:
    """Seconds to plan many hunks in one large file."""
    data = "".join(f"{line(i)}\n" for i in range(_LINES_OF_SEEK)).encode()
    step = _LINES_OF_SEEK // _HUNKS_OF_SEEK
    hunks = "".join(f"@@\n-{sought(i * step)}\n+changed {i}\n" for i in range(_HUNKS_OF_SEEK))
    patch = parse(f"*** Begin Patch\n*** Update File: f\n{hunks}*** End Patch")
    return seconds(lambda: plan(patch, lambda _: FileText(data)), repeat=1)


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description="Speed of the patch library.")
    options.add_argument("--megabytes", type=float, default=8)
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    size = int(chosen.megabytes * 1e6)
    report: dict[str, object] = {"python": platform.python_version(), "machine": platform.machine(), "goal_mb_per_s": 20}
    for name, text in {
        "update": update_patch(size),
        "add": add_patch(size),
        "crlf": update_patch(size).replace("\n", "\r\n"),
    }.items():
        report[f"parse_{name}_mb_per_s"] = round(len(text) / 1e6 / seconds(lambda text=text: parse(text)), 1)  # type: ignore[misc]
    text = update_patch(size // 4)
    report["stream_update_mb_per_s"] = round(len(text) / 1e6 / seconds(lambda: stream(text)), 1)
    report["seek"] = {
        "lines": _LINES_OF_SEEK,
        "hunks": _HUNKS_OF_SEEK,
        "exact_s": round(seek_case(lambda i: f"line {i}", lambda i: f"line {i}"), 3),
        "punctuation_s": round(seek_case(lambda i: f"  line \u2013 {i}", lambda i: f"line - {i}"), 3),
        "repeated_s": round(seek_case(lambda i: "same", lambda i: "same"), 3),
    }
    print(json.dumps(report, indent=2))
    if chosen.json:
        chosen.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
