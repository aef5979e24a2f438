"""What the replay model knows of its threads, and the judgement of each request: the same over every wire."""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from patchyard.replay.checks import History, Items, check_history, check_pairs, digest_items
from patchyard.replay.log import RequestEntry, RequestLog, texts_of
from patchyard.replay.player import Names, Performance, perform
from patchyard.replay.reading import ModelCall, malformed
from patchyard.replay.script import FirstRequest, Played, Step, StepSource
from patchyard.replay.violations import Violation, ViolationKind, Violations

KEPT_THREADS = 100_000
"""Threads whose place in the history is remembered; the oldest go first."""


@dataclass
class ThreadMemory:
    """A thread as far as it was seen."""

    digest: str
    history: History = field(default_factory=History)
    responses: int = 0
    input_tokens: int = 0


class Exchange:
    """One request and what becomes of it."""

    def __init__(
        self, call: ModelCall, thread: ThreadMemory, entry: RequestEntry, digests: bytes, played: Played | None
    ) -> None:
        self.call, self.entry, self.played = call, entry, played
        self._thread, self._digests = thread, digests

    @property
    def step(self) -> Step | None:
        """The step that answers; None when the script is used up."""
        return self.played.step if self.played is not None else None

    @property
    def request_id(self) -> str:
        """For the answer's headers."""
        return f"req_{self._thread.digest}_{self.call.number}"

    def perform(self, step: Step) -> Performance:
        """The response of a step that answers 200; from here on the next request must extend this one."""
        call, thread = self.call, self._thread
        tokens = call.body_bytes // 4
        cached = thread.input_tokens if thread.history.window == call.window else 0
        names = Names(thread.digest, thread.responses)
        performance = perform(step, names, model=call.model, input_tokens=tokens, cached_tokens=cached)
        thread.responses += 1
        if call.kind != "compaction":
            thread.input_tokens = tokens
            thread.history.record(call.items, self._digests, call.window)
            thread.history.emitted_calls = []
        self.entry.outcome = "client_closed"
        return performance

    def ended(self, performance: Performance) -> None:
        """The whole response is about to be out. Called before its last bytes: a client that saw the end finds this done."""
        self.entry.outcome = "completed" if performance.ending == "complete" else "cut"
        if self.call.kind != "compaction":
            self._thread.history.emitted_calls = list(performance.emitted_calls)


class Conversation:
    """Threads, log and violations of one server."""

    def __init__(self, log: RequestLog, violations: Violations) -> None:
        self._log, self._violations = log, violations
        self._threads: dict[str, ThreadMemory] = {}
        self.prewarms = 0
        """Requests over WebSockets that asked for no output. They are no steps of a script."""

    @property
    def threads(self) -> int:
        """How many were seen."""
        return len(self._threads)

    def clear(self) -> None:
        """Forget all threads."""
        self._threads.clear()

    def begin(
        self,
        call: ModelCall,
        body: dict[str, Any] | None,
        headers: Mapping[str, str],
        source: StepSource,
        *,
        problems: list[str] | None = None,
    ) -> Exchange:
        """Log and judge a request, and find the step that answers it. `problems`: None asks the body's own check."""
        thread = self._thread(call.thread)
        played = source.next_step(call.thread, lambda: FirstRequest(call.model, texts_of(call.items)))
        entry = RequestEntry(
            call.number, call.thread, played.number if played else None, call.window, call.kind, headers,
            body, call.body_bytes, len(call.items), time.time_ns() // 1_000_000, wire=call.wire,
        )  # fmt: skip
        self._log.add(entry)
        digests = digest_items(call.items)
        thread.history.settle(call.items, digests)
        self._check(call, thread, digests, played, malformed(body) if problems is None else problems, entry)
        return Exchange(call, thread, entry, digests, played)

    def remember_output(self, thread: str, first: int, output: Items) -> None:
        """The server itself joined these items to the history: the client may tell them again in its own words."""
        self._thread(thread).history.own(first, output)

    def _thread(self, key: str) -> ThreadMemory:
        thread = self._threads.get(key)
        if thread is None:
            if len(self._threads) >= KEPT_THREADS:
                del self._threads[next(iter(self._threads))]
            thread = self._threads[key] = ThreadMemory(hashlib.blake2b(key.encode(), digest_size=4).hexdigest())
        return thread

    def _check(
        self,
        call: ModelCall,
        thread: ThreadMemory,
        digests: bytes,
        played: Played | None,
        problems: list[str],
        entry: RequestEntry,
    ) -> None:
        def report(kind: ViolationKind, message: str) -> None:
            entry.violations.append(f"{kind}: {message}")
            self._violations.add(Violation(kind, message, call.thread, call.number))

        for problem in problems:
            report(ViolationKind.MALFORMED_REQUEST, problem)
        findings = check_pairs(call.items)
        if call.kind != "compaction":
            findings += check_history(thread.history, call.items, digests, call.window)
        for finding in findings:
            report(finding.kind, finding.message)
        if played is None:
            report(ViolationKind.UNEXPECTED_REQUEST, "the script has no further step for this thread")
            return
        start = thread.history.items if digests.startswith(thread.history.digests) else 0
        fresh = texts_of(call.items[start:]) if played.step.expect.contains else ""
        for text in played.step.expect.contains:
            if text not in fresh:
                report(ViolationKind.EXPECTATION, f"step {played.number} expects {text!r} in the new items; it is not there")
