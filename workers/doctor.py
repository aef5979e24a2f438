"""`python -m workers.doctor [--json]`: is everything there that a worker needs? Each check with its remedy; changes nothing.

Exit code: 0 when nothing failed (warnings are shown), 1 otherwise, 2 for a wrong call.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import ValidationError

from patchyard.protocol.service import CheckResult, DoctorReport
from patchyard.settings import Settings, load
from patchyard.settings_file import FILE, SettingProblem, complaint, problems

from .checks import catalog, engine, git, hooks, image, model, queue, store, versions

CHECK_TIMEOUT_S = 15.0
_MARKS: dict[str, str] = {"ok": "ok  ", "warning": "warn", "failed": "FAIL"}


@dataclass(frozen=True)
class Check:
    """A check by name."""

    name: str
    run: Callable[[Settings], Awaitable[list[CheckResult]]]


CHECKS = (
    Check("versions", versions),
    Check("git", git),
    Check("engine", engine),
    Check("image", image),
    Check("redis", queue),
    Check("store", store),
    Check("catalog", catalog),
    Check("model", model),
    Check("hooks", hooks),
)


async def examine(settings: Settings) -> DoctorReport:
    """Run all checks at once."""
    results = await asyncio.gather(*(_run(check, settings) for check in CHECKS))
    checks = tuple(result for group in results for result in group)
    return DoctorReport(ok=all(check.status != "failed" for check in checks), checks=checks)


async def _run(check: Check, settings: Settings) -> list[CheckResult]:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return await check.run(settings)
    except TimeoutError:
        text = f"no answer in {CHECK_TIMEOUT_S:.0f} s"
        return [CheckResult(name=check.name, status="failed", detail=text, remedy="See whether it hangs or is overloaded.")]
    except Exception as error:  # noqa: BLE001 - a check that breaks is a finding, and must not hide the others
        return [_broken(check.name, error)]


def _broken(name: str, error: Exception) -> CheckResult:
    info = getattr(error, "info", None)
    detail = info.message if info is not None else f"{type(error).__name__}: {error}"
    remedy = None if info is not None else "Correct the setting that it names, then look again."
    return CheckResult(name=name, status="failed", detail=detail, remedy=remedy)


def _bad_setting(problem: SettingProblem) -> CheckResult:
    variable = f"PATCHYARD_{problem.name.replace('.', '__').upper()}"
    remedy = f"Correct {variable} in the environment." if problem.place is None else "Correct that line."
    return CheckResult(name="settings", status="failed", detail=f"{problem.name}: {problem.text}", remedy=remedy)


def render(report: DoctorReport) -> str:
    """The report for a terminal."""
    lines = []
    for check in report.checks:
        lines.append(f"{_MARKS[check.status]}  {check.name}: {check.detail}")
        if check.remedy and check.status != "ok":
            lines.append(f"      -> {check.remedy}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    arguments = sys.argv[1:] if argv is None else argv
    output: Literal["json", "text"] = "json" if "--json" in arguments else "text"
    unknown = [argument for argument in arguments if argument != "--json"]
    if unknown:
        print(f"usage: python -m workers.doctor [--json]   (not understood: {' '.join(unknown)})", file=sys.stderr)
        return 2
    try:
        report = asyncio.run(examine(load()))
    except ValidationError as error:
        report = DoctorReport(ok=False, checks=tuple(_bad_setting(problem) for problem in problems(error)))
    except ValueError as error:
        bad = CheckResult(name="settings", status="failed", detail=complaint(error), remedy=f"Correct {FILE}.")
        report = DoctorReport(ok=False, checks=(bad,))
    print(report.model_dump_json() if output == "json" else render(report))
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
