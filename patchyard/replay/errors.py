"""Errors of the replay model.

ReplayError
└── ScriptError    a script that cannot be played: names file, field and line
"""

from patchyard.protocol.errors import ErrorCode, ErrorInfo


class ReplayError(Exception):
    """The replay model cannot do what was asked."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message)
        self.info = info


class ScriptError(ReplayError):
    """The script is not valid; every problem is listed with its place."""

    def __init__(self, source: str, problems: tuple[str, ...]) -> None:
        lines = "\n".join(f"  {problem}" for problem in problems)
        message = f"replay script {source} is not valid; correct it and start again:\n{lines}"
        super().__init__(ErrorInfo.of(ErrorCode.INVALID_REQUEST, message))
        self.problems = problems
