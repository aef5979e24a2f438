"""A replay model in a thread of its own, for tests of any kind of client."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from patchyard.replay import Demands, ReplayServer, RequestEntry, Script, SharedSequence, Step, Violation, load_script

T = TypeVar("T")
START_S = 60.0

Response = Step | Sequence[Mapping[str, Any]]
"""One response: a step, or raw events as `patchyard.testing.events.sse` makes them."""


class Mounted:
    """The requests that one mount answered."""

    def __init__(self, model: "ReplayModel", numbers: Sequence[int]) -> None:
        self._model = model
        self._numbers = frozenset(numbers)

    @property
    def requests(self) -> tuple[RequestEntry, ...]:
        """In the order of their arrival."""
        return tuple(entry for entry in self._model.requests if entry.step in self._numbers)

    def single_request(self) -> RequestEntry:
        """The only request. AssertionError when there were none or more."""
        found = self.requests
        if len(found) != 1:
            raise AssertionError(f"one request was expected, {len(found)} came")
        return found[0]

    def last_request(self) -> RequestEntry:
        """The newest request. AssertionError when there was none."""
        if not self.requests:
            raise AssertionError("a request was expected, none came")
        return self.requests[-1]

    def function_call_output(self, call_id: str) -> Mapping[str, Any]:
        """The output of a call, in the first request that has it. LookupError when none has."""
        for entry in self.requests:
            for item in entry.input:
                if item.get("call_id") == call_id and str(item.get("type", "")).endswith("_output"):
                    return item
        raise LookupError(f"none of {len(self.requests)} requests has an output for {call_id}")


class ReplayModel:
    """A running replay model. Leave it with `close`, which tells what the client did wrong."""

    def __init__(self, *, demands: Demands | None = None, upgrade_status: int | None = None) -> None:
        """See ReplayServer."""
        self._sequence = SharedSequence()
        self._loop = asyncio.new_event_loop()
        self._server = ReplayServer(self._sequence, demands=demands, upgrade_status=upgrade_status)
        self._scripted = False
        self._thread = threading.Thread(target=self._run, name="replay-model", daemon=True)
        self._thread.start()
        self._call(self._server.start())

    @property
    def base_url(self) -> str:
        """What the client under test takes as its base URL."""
        return self._server.base_url

    @property
    def requests(self) -> tuple[RequestEntry, ...]:
        """All requests."""
        return self._server.log.all()

    @property
    def violations(self) -> tuple[Violation, ...]:
        """What was wrong with them."""
        return self._server.violations.all()

    def single_request(self) -> RequestEntry:
        """The only request. AssertionError when there were none or more."""
        return self._server.log.single_request()

    def mount_once(self, response: Response) -> Mounted:
        """Answer one request with this, after all that is mounted already."""
        return self.mount_sequence([response])

    def mount_sequence(self, responses: Sequence[Response]) -> Mounted:
        """Answer so many requests, one after the other."""
        if self._scripted:
            raise AssertionError("a script is mounted; it can't be mixed with single responses")
        steps = [response if isinstance(response, Step) else Step(events=tuple(map(dict, response))) for response in responses]
        return Mounted(self, self._on_loop(lambda: [self._sequence.add(step) for step in steps]))

    def mount_script(self, script: Script | Path) -> None:
        """Answer each thread from a script. Its steps need not all be used."""
        loaded = load_script(script) if isinstance(script, Path) else script
        self._scripted = True
        self._on_loop(lambda: self._server.replace(loaded))

    def close(self, *, check: bool = True) -> None:
        """Stop. With `check`, AssertionError on violations, unexpected requests and unused responses."""
        unused = self._on_loop(self._server.unused_steps)
        violations = self.violations
        self._call(self._server.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_S)
        self._loop.close()
        problems = [str(violation) for violation in violations]
        if unused:
            problems.append(f"{unused} mounted responses were not asked for")
        if check and problems:
            raise AssertionError("the replay model found:\n" + "\n".join(problems))

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_S)

    def _on_loop(self, work: Callable[[], T]) -> T:
        async def run() -> T:
            return work()

        return self._call(run())
