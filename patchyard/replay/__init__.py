"""The replay model: a server (Responses over SSE and WebSocket, Chat Completions) that answers from a script and checks every request.

ReplayServer     the server                  Script, load_script     what it says
RequestLog       what it was asked           Violation               what was wrong with it
"""

from patchyard.replay.builders import usage_payload
from patchyard.replay.errors import ReplayError, ScriptError
from patchyard.replay.log import RequestEntry, RequestLog
from patchyard.replay.script import (
    PerThreadScript,
    Script,
    SharedSequence,
    Step,
    StepSource,
    ThreadScript,
    load_script,
    parse_script,
)
from patchyard.replay.server import Demands, ReplayServer
from patchyard.replay.violations import Violation, ViolationKind

__all__ = [
    "Demands",
    "PerThreadScript",
    "ReplayError",
    "ReplayServer",
    "RequestEntry",
    "RequestLog",
    "Script",
    "ScriptError",
    "SharedSequence",
    "Step",
    "StepSource",
    "ThreadScript",
    "Violation",
    "ViolationKind",
    "load_script",
    "parse_script",
    "usage_payload",
]
