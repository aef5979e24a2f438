"""Mistakes in [providers.…] are found when the settings are read, not with the first request."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from patchyard.settings import load
from patchyard.settings_file import problems


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ('base_url = "http://[no-address"', 2),
        ('base_url = "ftp://models"', 2),
        ('base_url = "http://models:x"', 2),
        ('base_url = "http://models"\nproxy = "nonsense"', 3),
        ('base_url = "http://models"\nkey_header = "api key"', 3),
        ('base_url = "http://models"\nheaders = {"a\\nb" = "c"}', 3),
        ('base_url = "http://models"\nidle_timeout_s = inf', 3),
        ('base_url = "http://models"\nprices = {m = {input_per_million = inf, output_per_million = 1}}', 3),
    ],
)
def test_a_mistake_is_told_with_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, line: int) -> None:
    monkeypatch.setenv("PATCHYARD_HOME", str(tmp_path))
    (tmp_path / "patchyard.toml").write_text(f"[providers.mine]\n{lines}\n")
    with pytest.raises(ValidationError) as caught:
        load()
    (problem,) = problems(caught.value)
    assert problem.place == f"{tmp_path}/patchyard.toml:{line}"


@pytest.mark.parametrize("setting", ['model_base_url = "nonsense"', "hold_time_s = inf", "model_price_input = nan"])
def test_the_short_form_is_checked_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    monkeypatch.setenv("PATCHYARD_HOME", str(tmp_path))
    (tmp_path / "patchyard.toml").write_text(f"{setting}\n")
    with pytest.raises(ValidationError) as caught:
        load()
    assert problems(caught.value)[0].place == f"{tmp_path}/patchyard.toml:1"
