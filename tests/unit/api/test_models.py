"""A model that nobody serves is refused when it is named, where the configuration lists what there is."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from patchyard.protocol.model_offers import ModelOffer, find_offer, nearest_models
from tests.unit.api.kit import AUTH, OTHER_AUTH, Api, body, serving

CLOSED = {
    "azure": {"base_url": "https://x.example/v1", "models": ["gpt-5.5", "gpt-5.5-mini", "o*"], "tenants": ["default"]},
    "local": {"base_url": "http://127.0.0.1:8000/v1", "models": ["qwen3-coder"]},
}
OPEN = {**CLOSED, "any": {"base_url": "https://y.example/v1", "tenants": ["default"]}}


async def post(api: Api, model: str | None, headers: dict[str, str] = AUTH) -> Any:
    return await api.http.post("/v1/tasks", json=body(model=model), headers=headers)


def test_an_unknown_model_is_refused_with_the_known_ones_nearest_first(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path, providers=CLOSED) as api:
            response = await post(api, "gpt-5.5-mimi")
            assert response.status_code == 400
            assert response.headers["content-type"] == "application/problem+json"
            problem = response.json()
            assert (problem["code"], problem["retryable"]) == ("invalid_request", False)
            (error,) = problem["errors"]
            assert error["field"] == "spec.model"
            assert "'gpt-5.5-mimi'" in error["message"]
            assert "there is gpt-5.5-mini, gpt-5.5, " in problem["detail"]
            assert "qwen3-coder" in problem["detail"]
            assert (await api.http.get("/v1/tasks")).json()["data"] == []
            assert api.bell.rings == 0

    asyncio.run(run())


@pytest.mark.parametrize("model", [None, "gpt-5.5", "o9", "azure/gpt-5.5", "local/qwen3-coder", "qwen3-coder"])
def test_what_a_provider_serves_is_accepted(tmp_path: Path, model: str | None) -> None:
    async def run() -> None:
        async with serving(tmp_path, providers=CLOSED) as api:
            assert (await post(api, model)).status_code == 202

    asyncio.run(run())


@pytest.mark.parametrize("model", ["azure/nothing", "local/o9", "GPT-5.5"])
def test_a_providers_name_does_not_open_it(tmp_path: Path, model: str) -> None:
    async def run() -> None:
        async with serving(tmp_path, providers=CLOSED) as api:
            assert (await post(api, model)).status_code == 400

    asyncio.run(run())


def test_each_tenant_has_its_own_models(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path, providers=OPEN) as api:
            assert (await post(api, "whatever/there-is")).status_code == 202
            refused = await post(api, "gpt-5.5", OTHER_AUTH)
            assert refused.status_code == 400
            assert "azure" not in refused.text
            assert refused.json()["detail"].endswith("; there is qwen3-coder.")

    asyncio.run(run())


@pytest.mark.parametrize("values", [{}, {"providers": CLOSED, "model_base_url": "https://z.example/v1"}])
def test_a_provider_that_takes_any_name_lets_all_pass(tmp_path: Path, values: dict[str, Any]) -> None:
    async def run() -> None:
        async with serving(tmp_path, **values) as api:
            assert (await post(api, "some/model")).status_code == 202

    asyncio.run(run())


OVERRIDES = {"overrides": {"model": "qwen4"}}


@pytest.mark.parametrize(
    "op",
    [
        {"type": "turn_input", "items": [{"type": "text", "text": "go on"}], **OVERRIDES},
        {"type": "thread_settings", **OVERRIDES},
        {"type": "turn_settings", "turn_id": "01890000-0000-7000-8000-000000000000", **OVERRIDES},
    ],
    ids=lambda op: op["type"],
)
def test_the_same_holds_for_a_change_of_the_model(tmp_path: Path, op: dict[str, Any]) -> None:
    async def run() -> None:
        async with serving(tmp_path, providers=CLOSED) as api:
            created = (await post(api, None)).json()
            response = await api.http.post(f"/v1/threads/{created['thread_id']}/ops", json={"op": op})
            assert response.status_code == 400
            assert response.json()["errors"][0]["field"] == "op.overrides.model"
            assert "there is qwen3-coder, " in response.json()["detail"]
            known = {**op, "overrides": {"model": "qwen3-coder"}}
            response = await api.http.post(f"/v1/threads/{created['thread_id']}/ops", json={"op": known})
            assert response.status_code == 200

    asyncio.run(run())


def test_many_models_are_not_all_listed(tmp_path: Path) -> None:
    many = {"big": {"base_url": "https://x.example/v1", "models": [f"model-{n}" for n in range(100)]}}

    async def run() -> None:
        async with serving(tmp_path, providers=many) as api:
            detail = (await post(api, "model-17x")).json()["detail"]
            assert "there is model-17, " in detail
            assert "and 80 more" in detail

    asyncio.run(run())


def test_nearest_looks_past_the_providers_name() -> None:
    offers = [ModelOffer("azure", ("gpt-5.5", "o3")), ModelOffer("vendor", ("azure-gpt", "o3"))]
    assert nearest_models(offers, "azure/gpt-5", "t")[0] == "gpt-5.5"
    assert sorted(nearest_models(offers, "x", "t")) == ["azure-gpt", "gpt-5.5", "o3"]
    assert nearest_models([], "x", "t") == []
    assert find_offer([], "x", "t") is None
