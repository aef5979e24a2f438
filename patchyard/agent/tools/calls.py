"""A tool and its call."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json

from patchyard.agent.context.history import Call
from patchyard.agent.errors import ToolError
from patchyard.protocol.model_items import FunctionCall, InputImage, InputText

ToolOutput = str | tuple[InputText | InputImage, ...]
"""What a tool answers: text, or parts where an image is among them."""

_HOOK_FIELDS = {"exec_command": "cmd", "apply_patch": "input"}
"""Arguments that hooks know as `command`."""


@dataclass(frozen=True)
class ToolCall:
    """A call as the model made it."""

    item: Call
    turn_id: str
    started: float
    """Monotonic seconds when the call was complete."""

    @property
    def id(self) -> str:
        """The call id; also the id of the item that people see."""
        return self.item.call_id

    @property
    def name(self) -> str:
        """The tool's name as the model wrote it."""
        return self.item.name

    @property
    def payload(self) -> str:
        """JSON arguments of a function, text of a freeform tool."""
        return self.item.arguments if isinstance(self.item, FunctionCall) else self.item.input

    def hook_input(self) -> Any:
        """What hooks read: `{"command": …}` of a command or patch, else the arguments."""
        if not isinstance(self.item, FunctionCall):
            return {"command": self.item.input}
        arguments = self._arguments()
        if arguments is None:
            return {"arguments": self.item.arguments}
        field = _HOOK_FIELDS.get(self.name)
        return {"command": arguments.get(field)} if field and isinstance(arguments, dict) else arguments

    def with_hook_input(self, changed: Mapping[str, Any]) -> "ToolCall":
        """The call with the input that a hook put in its place. ToolError when it does not fit."""
        field = _HOOK_FIELDS.get(self.name)
        command = changed.get("command")
        if field is None:
            if not isinstance(self.item, FunctionCall):
                raise ToolError(f"A PreToolUse hook changed the input of {self.name}, which can't be changed. It was not run.")
            return replace(self, item=self.item.model_copy(update={"arguments": json.dumps(changed)}))
        if not isinstance(command, str):
            raise ToolError(f"A PreToolUse hook gave no `command` as new input of {self.name}. It was not run.")
        if not isinstance(self.item, FunctionCall):
            return replace(self, item=self.item.model_copy(update={"input": command}))
        known = self._arguments()
        arguments = {**(known if isinstance(known, dict) else {}), field: command}
        return replace(self, item=self.item.model_copy(update={"arguments": json.dumps(arguments)}))

    def _arguments(self) -> Any:
        """The JSON value; None when it can't be read, be it no JSON or nested too deeply."""
        try:
            return from_json(self.payload or "{}")
        except ValueError:
            return None


class Tool(Protocol):
    """Something that the model can call. Implemented in this package."""

    name: str
    kind: Literal["function", "custom"]
    parallel: bool
    """Whether it may run beside others; an exclusive one waits for all before it and holds back all after it."""

    def spec(self) -> Mapping[str, Any]:
        """The specification as the Responses API takes it."""
        ...

    async def run(self, call: ToolCall) -> ToolOutput:
        """The output for the model. ToolError for a failure in plain words; TurnError ends the turn."""
        ...

    def aborted(self, call: ToolCall, *, seconds: float, why: str) -> str:
        """The output of a call that was cut off."""
        ...


class Arguments(BaseModel):
    """Base of the arguments of function tools: unknown ones are ignored, since models invent some."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


A = TypeVar("A", bound=Arguments)


def parse_arguments(model: type[A], call: ToolCall) -> A:
    """The call's JSON arguments. ToolError says in plain words what is wrong with them."""
    if not isinstance(call.item, FunctionCall):
        raise ToolError(f"{call.name} takes a JSON object as arguments, not plain text. Call it as a function.")
    try:
        return model.model_validate_json(call.item.arguments or "{}")
    except ValidationError as error:
        raise ToolError(f"The arguments of {call.name} can't be used: {_plain(error)}.") from None


def _plain(error: ValidationError) -> str:
    words = []
    for problem in error.errors(include_url=False, include_input=False)[:5]:
        where = ".".join(str(part) for part in problem["loc"])
        match problem["type"]:
            case "json_invalid":
                words.append(f"they are not valid JSON ({problem.get('ctx', {}).get('error')})")
            case "missing":
                words.append(f"`{where}` is missing")
            case "model_type":
                words.append("they must be a JSON object")
            case _:
                words.append(f"`{where}`: {problem['msg'][:1].lower()}{problem['msg'][1:]}")
    return "; ".join(words)


def function_spec(
    name: str, description: str, properties: Mapping[str, Any], *, required: tuple[str, ...]
) -> Mapping[str, Any]:
    """Specification of a function tool."""
    return {
        "type": "function",
        "name": name,
        "description": description,
        "strict": False,
        "parameters": {
            "type": "object",
            "properties": dict(properties),
            "required": list(required),
            "additionalProperties": False,
        },
    }
