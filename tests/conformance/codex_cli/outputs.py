"""Outputs of tools, reduced: exit code, text, and the class of a failure in place of its wording."""

import json
import re

_COMMAND = re.compile(
    r"Chunk ID: [0-9a-f]+\nWall time: [\d.]+ seconds\n(?P<state>.*?)\nOriginal token count: (?P<tokens>\d+)\nOutput:\n(?P<body>.*)",
    re.DOTALL,
)
_PATCH = re.compile(r"Exit code: (?P<code>\d+)\nWall time: [\d.]+ seconds\nOutput:\n(?P<body>.*)", re.DOTALL)
_WRAPPED = re.compile(r"Wall time: [\d.]+ seconds\nOutput:\n(?P<body>.*)", re.DOTALL)
_WARNED = re.compile(r"Warning: truncated output .*?\n\n(?P<body>.*)", re.DOTALL)
_CUT = re.compile(r"(?P<first>.*?)(?:…\d+ tokens truncated…|\n?\[… .*? left out .*?…\]\n)(?P<last>.*)", re.DOTALL)

_BAD_PATCH = r"(?:apply_patch verification failed: |The patch was not applied\. )"
_CLASSES = {
    "aborted by user": r"(Wall time: [\d.]+ seconds\n)?aborted by user( after [\d.]+ ?s(econds)?\.?)?",
    "unknown tool": r"unsupported (custom tool )?call: \w+",
    "bad arguments": r"failed to parse function arguments: .*|The arguments of \w+ can't be used: .*",
    "wrong kind of call": r"\w+ takes a JSON object as arguments, not plain text\..*",
    "no such working folder": r"exec_command failed: .*No such file or directory.*|The working directory \S+ can't be used: .*",
    "refused": r"exec_command failed: .*rejected: rm -f style commands are not permitted.*|Refused: `rm` with a force option .*",
    "unknown session": r"write_stdin failed: Unknown process id \d+|There is no running command with session ID \d+: .*",
    "standard input is closed": r"write_stdin failed: stdin is closed .*|The standard input of this command is closed\..*",
    "patch refused: lines not found": _BAD_PATCH + r".*(Failed to find expected lines|these lines were not found).*",
    "patch refused: not a patch": _BAD_PATCH + r".*first line .*must be.*",
    "patch refused: no such file": _BAD_PATCH + r".*(No such file or directory|there is no such file).*",
    "patch refused: two operations on one path": _BAD_PATCH + r".*multiple operations target .*",
    "patch refused: call apply_patch": _BAD_PATCH + r".*without explicit call to apply_patch.*",
    "no such image": r"unable to locate image at .*|There is no (image|file) .*",
    "not an image": r"unable to process image: .*|\S+ is not a PNG, .*",
}
"""Both programs' words for each class."""
_SHOWN = 12
"""Characters that are shown of both ends of a text that was cut."""


def shape_of_output(text: str) -> str:
    """One line."""
    if found := _COMMAND.fullmatch(text):
        return f"{_state(found['state'])}, {found['tokens']} tokens, {_body(found['body'])}"
    if found := _PATCH.fullmatch(text):
        return f"patch, exit {found['code']}, {_body(found['body'])}"
    if found := _WRAPPED.fullmatch(text):
        return f"as a command: {shape_of_output(found['body'])}"
    for name, pattern in _CLASSES.items():
        if re.fullmatch(pattern, text, re.DOTALL):
            return name
    return json.dumps(text, ensure_ascii=False)


def _state(text: str) -> str:
    text = re.sub(r"Process exited with code (\d+)", r"exit \1", text)
    return re.sub(r"Process running with session ID \d+", "still running", text)


def _body(text: str) -> str:
    if found := _WARNED.fullmatch(text):
        return f"warned, {_body(found['body'])}"
    if found := _CUT.fullmatch(text):
        first, last = found["first"], found["last"]
        # To 5 %: where exactly it is cut is nobody's business.
        size = round((len(first) + len(last)) / 4, -1 if len(text) < 4000 else -3)
        return f"{json.dumps(first[:_SHOWN])} … {json.dumps(last[-_SHOWN:])}, about {size:g} tokens kept"
    return json.dumps(text, ensure_ascii=False)
