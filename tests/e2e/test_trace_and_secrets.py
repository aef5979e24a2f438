"""What leaves the service: one trace from a client's request to each model request and tool call, and never a secret."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from bench.released_bugs import Bug, bugs
from tests.e2e.fleet import MODEL_KEY, Fleet, docker, fleet
from tests.e2e.repositories import FIX, VERIFY, buggy_repository, git
from tests.e2e.test_patch import call, patch, say
from tests.waiting import WAIT_S, wait_for

pytestmark = [pytest.mark.engine, pytest.mark.redis, pytest.mark.timeout(300)]

CLIENT_TRACE = "0af7651916cd43dd8448eb211c80319c"
CLIENT_SPAN = "b7ad6b7169203331"
TAIL = "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"
GITHUB_TOKEN = f"ghp_{TAIL}"
LEAK = f"printf 'token ghp_%s end\\n' {TAIL}; printf 'key %s%s\\n' {MODEL_KEY[:12]} {MODEL_KEY[12:]}"
"""Prints two secrets that are whole in its output only."""
MODULES = ("pathspec", "jwt", "h11", "humanize", "jsonpatch", "parse", "pyflakes", "zipp")
LOOK = (
    "cd / && for m in " + " ".join(MODULES) + "; do python3 -c \"import $m; print('$m is at', $m.__file__)\"; done; echo looked"
)
CASES: dict[str, list[dict[str, Any]]] = {
    "traced": [call("cat calc.py"), patch(FIX), say("Fixed.")],
    "leak": [call(LEAK), say("Done.")],
    "look": [call(LOOK + "; cd /workspace && python3 -c 'import pathspec; print(pathspec.__file__)'; ls"), say("Done.")],
    "prepared": [call(LOOK), say("Done.")],
}
SCRIPT = {"threads": [{"match": {"contains": f"case {name}."}, "steps": steps} for name, steps in CASES.items()]}


@dataclass
class Collector:
    """An OTLP/HTTP receiver."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def of_trace(self, trace_id: str) -> list[Span]:
        return [span for span in self.spans if span.trace_id.hex() == trace_id]


@contextmanager
def collector() -> Iterator[Collector]:
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            found.bodies.append(body)
            if self.path == "/v1/traces":
                request = ExportTraceServiceRequest.FromString(body)
                found.spans += [span for r in request.resource_spans for s in r.scope_spans for span in s.spans]
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class Observed:
    """A service and its collector."""

    fleet: Fleet
    collector: Collector


@pytest.fixture(scope="module")
def observed() -> Iterator[Observed]:
    settings = {"PATCHYARD_SETUP_CA_FILE": os.environ["SSL_CERT_FILE"]} if "SSL_CERT_FILE" in os.environ else {}
    with collector() as spans, fleet(SCRIPT, PATCHYARD_OTLP_ENDPOINT=spans.url, **settings) as running:
        yield Observed(running, spans)
        assert [str(violation) for violation in running.model.violations] == []


@pytest.fixture(scope="module")
def repository(observed: Observed) -> Path:
    folder = observed.fleet.home.root / "bug"
    folder.mkdir()
    return buggy_repository(folder)


def test_one_trace_from_the_request_to_every_model_request_and_tool_call(observed: Observed, repository: Path) -> None:
    service = observed.fleet
    spec = {
        "repository": {"type": "git", "url": str(repository)},
        "instruction": "case traced. x",
        "approval": "never",
        "verify": {"command": VERIFY},
    }
    headers = {
        "authorization": f"Bearer {(service.root / 'token').read_text().strip()}",
        "traceparent": f"00-{CLIENT_TRACE}-{CLIENT_SPAN}-01",
    }
    url = service.home.json("status")["url"]
    created = httpx.post(f"{url}/v1/tasks", json={"spec": spec}, headers=headers, timeout=WAIT_S, trust_env=False).json()
    assert created["trace_id"] == CLIENT_TRACE
    service.home.cli("tail", created["task_id"])
    requests = [entry for entry in service.model.requests if entry.body and "case traced." in json.dumps(entry.body)]
    parents = [entry.headers["traceparent"].split("-") for entry in requests]
    assert [parent[1] for parent in parents] == [CLIENT_TRACE] * 3

    wait_for(lambda: len(_named(observed, "invoke_agent")) == 1, "the worker has exported the turn's span, its last")
    chats = _named(observed, "chat gpt-5.5")
    assert [parent[2] for parent in parents] == [span.span_id.hex() for span in chats], "each request names its own span"
    tools = _named(observed, "execute_tool")
    assert [span.name for span in tools] == ["execute_tool exec_command", "execute_tool apply_patch"]
    for span in [*chats, *tools]:
        # The API exports its part when it likes.
        wait_for(lambda span=span: CLIENT_SPAN in _ancestors(span, observed), f"{span.name} hangs below the client's span")
    attributes = {attribute.key for span in chats for attribute in span.attributes}
    assert {"gen_ai.request.model", "gen_ai.usage.input_tokens", "patchyard.attempt"} <= attributes
    assert service.home.json("trace", created["task_id"])["trace_id"] == CLIENT_TRACE


def _named(observed: Observed, start: str) -> list[Span]:
    found = [span for span in observed.collector.of_trace(CLIENT_TRACE) if span.name.startswith(start)]
    return sorted(found, key=lambda span: span.start_time_unix_nano)


def _ancestors(span: Span, observed: Observed) -> list[str]:
    spans = {span.span_id.hex(): span for span in observed.collector.of_trace(CLIENT_TRACE)}
    found = []
    parent = span.parent_span_id.hex()
    while parent:
        found.append(parent)
        parent = spans[parent].parent_span_id.hex() if parent in spans else ""
    return found


def test_a_secret_that_a_command_prints_is_nowhere(observed: Observed, repository: Path) -> None:
    service = observed.fleet
    done = service.fix(repository, "leak")
    assert done.task is not None
    (item,) = [msg["item"] for msg in done.of_type("item_completed") if msg["item"]["type"] == "command_execution"]
    assert item["aggregated_output"] == "token [redacted] end\nkey [redacted]\n"
    wait_for(lambda: bool(observed.collector.of_trace(done.task["trace_id"] if done.task else "")), "spans are exported")
    record = service.home.cli("rollout", "cat", done.task["id"]).stdout
    live = "".join(msg["delta"] for msg in done.of_type("exec_output_delta"))
    service.home.cli("down")
    written = {path: path.read_bytes() for path in service.root.rglob("*") if path.is_file() and path.name != "token"}
    assert any("redis" in str(path) for path in written)
    assert any("catalog.db" in path.name for path in written)
    assert any(path.suffix == ".log" for path in written)
    for secret in (GITHUB_TOKEN, MODEL_KEY):
        assert secret not in json.dumps(done.events)
        assert secret not in record
        assert secret not in live
        assert [path for path, data in written.items() if secret.encode() in data] == []
        assert not any(secret.encode() in body for body in observed.collector.bodies)
    service.home.cli("up", "--detach")


def test_everything_is_kept_below_its_tenant(observed: Observed, repository: Path) -> None:
    service = observed.fleet
    done = service.fix(repository, "leak")
    assert done.task is not None
    assert done.task["tenant_id"] == "default"
    for folder in (service.root / "objects", service.root / "workspaces" / "mirrors"):
        assert {path.name for path in folder.iterdir() if not path.name.startswith(".")} == {"default"}, folder


def test_the_agent_has_the_repository_but_no_release_and_no_hidden_test(observed: Observed) -> None:
    """The packages whose bugs the suite fixes are not installed in the image: the fixed release can't be looked at."""
    service = observed.fleet
    folder = service.home.root / "package"
    (folder / "pathspec").mkdir(parents=True)
    (folder / "pathspec" / "__init__.py").write_text("")
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "base"]):
        git(folder, *words)
    done = service.fix(folder, "look")
    output = _output(done.of_type("item_completed"))
    assert output.count("ModuleNotFoundError") == len(MODULES), output
    assert "is at" not in output
    assert "/workspace/pathspec/__init__.py" in output


@pytest.mark.registry
@pytest.mark.parametrize("bug", [bug for bug in bugs() if bug.setup], ids=lambda bug: bug.id)
def test_nor_does_the_set_up_phase_bring_it(observed: Observed, repository: Path, bug: Bug) -> None:
    done = observed.fleet.fix(repository, "prepared", "--setup", str(bug.setup))
    docker("rmi", "-f", *(msg["image"] for msg in done.of_type("setup_completed") if msg["image"]))
    assert done.code == 0, (done.error, done.of_type("setup_completed"))
    output = _output(done.of_type("item_completed"))
    assert "looked" in output
    assert "is at" not in output


def _output(completed: list[dict[str, Any]]) -> str:
    (item,) = [msg["item"] for msg in completed if msg["item"]["type"] == "command_execution"]
    return str(item["aggregated_output"])
