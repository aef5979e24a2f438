"""Scripts of the replay model: shape, loading with places of mistakes, and the cursor of each thread."""

from patchyard.replay.script.loading import load_script, parse_script
from patchyard.replay.script.model import (
    CallStep,
    CustomStep,
    ErrorSpec,
    ExpectSpec,
    MatchSpec,
    MessageStep,
    ReasoningStep,
    Script,
    ScriptItem,
    Step,
    ThreadScript,
    UsageSpec,
)
from patchyard.replay.script.sources import FirstRequest, PerThreadScript, Played, SharedSequence, StepSource

__all__ = [
    "CallStep",
    "CustomStep",
    "ErrorSpec",
    "ExpectSpec",
    "FirstRequest",
    "MatchSpec",
    "MessageStep",
    "PerThreadScript",
    "Played",
    "ReasoningStep",
    "Script",
    "ScriptItem",
    "SharedSequence",
    "Step",
    "StepSource",
    "ThreadScript",
    "UsageSpec",
    "load_script",
    "parse_script",
]
