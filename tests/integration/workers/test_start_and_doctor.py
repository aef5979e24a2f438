"""A worker that can't work says so in one line and ends; the doctor says it before."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from patchyard.replay import ReplayServer, Script
from patchyard.settings import Settings
from tests.servers import RedisServer
from tests.waiting import PROCESS_S
from workers.doctor import examine, main, render

pytestmark = pytest.mark.redis

ROOT = Path(__file__).parents[3]


@pytest.fixture
def volatile(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis", fsync="everysec")
    server.start()
    yield server
    server.stop()


def start_worker(home: Path, redis_url: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "celery", "-A", "workers.app", "worker", "--pool", "threads", "--concurrency", "1"]
    settings = {"PATCHYARD_HOME": str(home), "PATCHYARD_REDIS_URL": redis_url, **env}
    return subprocess.run(argv, cwd=ROOT, env={**os.environ, **settings}, capture_output=True, text=True, timeout=PROCESS_S)


def test_a_worker_refuses_a_redis_that_may_lose_work(tmp_path: Path, volatile: RedisServer) -> None:
    done = start_worker(tmp_path / "home", volatile.url)
    assert done.returncode == 1
    critical = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")][-1]
    assert critical["level"] == "CRITICAL"
    assert "appendfsync always" in critical["message"]
    assert "PATCHYARD_ALLOW_VOLATILE_REDIS" in critical["message"]
    assert "Traceback" not in done.stderr


def test_a_worker_without_redis_says_so(tmp_path: Path) -> None:
    done = start_worker(tmp_path / "home", f"unix://{tmp_path}/absent")
    assert done.returncode == 1
    assert "The queue is not available" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_doctor_names_each_problem_with_its_remedy(
    tmp_path: Path, volatile: RedisServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    for name, value in {
        "HOME": home,
        "REDIS_URL": volatile.url,
        "DOCKER_HOST": f"unix://{tmp_path}/no-engine",
        "MODEL_BASE_URL": "http://127.0.0.1:9/v1",
        "MODEL_API_KEY": "sk-a-secret-value",
    }.items():
        monkeypatch.setenv(f"PATCHYARD_{name}", str(value))
    assert main(["--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    failed = {check["name"]: check for check in report["checks"] if check["status"] == "failed"}
    assert set(failed) == {"engine", "image", "redis", "catalog", "model"}
    assert all(check["remedy"] for check in failed.values())
    assert "appendfsync" in failed["redis"]["detail"]
    assert "sk-a-secret-value" not in json.dumps(report)
    assert not (home / "catalog.db").exists()
    assert main([]) == 1
    text = capsys.readouterr().out
    assert "FAIL  engine" in text
    assert "build.py" in text
    assert main(["--nonsense"]) == 2


def test_a_bad_setting_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setenv("PATCHYARD_HOME", str(tmp_path))
    monkeypatch.setenv("PATCHYARD_WORKER_CONCURRENCY", "many")
    assert main([]) == 1
    assert "PATCHYARD_WORKER_CONCURRENCY" in capsys.readouterr().out


def test_the_model_is_reached_without_spending_tokens(tmp_path: Path) -> None:
    import asyncio

    async def run() -> None:
        model = ReplayServer(Script.model_validate({"steps": [{"items": [{"message": "x"}]}]}))
        await model.start()
        try:
            settings = Settings(
                home=tmp_path, redis_url=f"unix://{tmp_path}/absent", model_base_url=model.base_url, model_api_key="sk-x-key"
            )
            report = await examine(settings)
        finally:
            await model.close()
        checks = [check for check in report.checks if check.name == "model"]
        assert [check.status for check in checks] == ["ok"], render(report)
        assert model.log.all() == ()
        assert model.violations.all() == ()

    asyncio.run(run())
