"""Skips what this machine can't run, and says so at the end; fails when something that must run here is missing.

A run depends on the code alone: not on the settings of whoever starts it, and not on chance.
"""

import contextlib
import os

import pytest

from tests.needs import NEEDS, missing

with contextlib.suppress(ImportError):  # the core's tests run without it (tests/architecture)
    import hypothesis

    # The same examples in each run, however long one takes. PATCHYARD_TEST_EXPLORE=1 looks for new ones.
    hypothesis.settings.register_profile(
        "patchyard",
        deadline=None,
        derandomize=not os.environ.get("PATCHYARD_TEST_EXPLORE"),
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
        print_blob=True,
    )
    hypothesis.settings.load_profile("patchyard")

_not_run = pytest.StashKey[dict[str, list[str]]]()
_SETTINGS_FOR_TESTS = ("PATCHYARD_TEST_", "PATCHYARD_REWRITE_", "PATCHYARD_DOCKER_HOST")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_not_run] = {}
    for name in [name for name in os.environ if name.startswith("PATCHYARD_") and not name.startswith(_SETTINGS_FOR_TESTS)]:
        del os.environ[name]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for need in NEEDS:
            reason = missing(need) if item.get_closest_marker(need) else None
            if reason:
                item.add_marker(pytest.mark.skip(reason=f"{need}: {reason}"))
                config.stash[_not_run].setdefault(f"{need}: {reason}", []).append(item.nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A test may also skip itself (a program is missing, not root): that is listed like a need that can't be met."""
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if reason.split(":")[0] not in NEEDS:
            _skipped_itself.setdefault(f"itself: {reason}", []).append(report.nodeid)


_skipped_itself: dict[str, list[str]] = {}


def _broken_promises(config: pytest.Config) -> list[str]:
    promised = set(filter(None, os.environ.get("PATCHYARD_TEST_MUST", "").split(",")))
    return sorted(reason for reason in config.stash[_not_run] | _skipped_itself if reason.split(":")[0] in promised)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for reason, nodes in (config.stash[_not_run] | _skipped_itself).items():
        terminalreporter.write_line(f"not run: {len(nodes)} tests ({reason})", yellow=True)
    for reason in _broken_promises(config):
        terminalreporter.write_line(f"expected to run here, but could not ({reason})", red=True)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == 0 and _broken_promises(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
