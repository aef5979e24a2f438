"""What can go wrong with a box.

SandboxError (patchyard.agent.ports)
├── EngineUnavailable   no engine answers, or it did not do what it was asked
├── ImageMissing        the image of the box is not in the engine
├── DiskFull            no space, on the engine's disk or in the box
├── BoxRefused          confinement that must hold does not, or a policy forbids it
├── BoxLost             the box, or the stream to it, ended under us
├── BadCommand          a command or a file operation that can't work: no such program, no such directory
└── SetupFailed         the set-up command failed or took too long

Messages are fit for the model: what happened, what to do next, never a path of the host.
"""

from patchyard.agent.ports import SandboxError
from patchyard.protocol.errors import ErrorCode, ErrorInfo


class EngineUnavailable(SandboxError):
    """No engine answers, or it did not do what it was asked."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorInfo.of(ErrorCode.ENGINE_UNAVAILABLE, message))


class ImageMissing(SandboxError):
    """The image of the box is not in the engine."""

    def __init__(self, image: str) -> None:
        message = f"The image {image} is not in the Docker engine: build it with `python sandbox_images/build.py`."
        super().__init__(ErrorInfo.of(ErrorCode.IMAGE_MISSING, message, image=image))


class DiskFull(SandboxError):
    """No space, on the engine's disk or in the box."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorInfo.of(ErrorCode.DISK_FULL, message))


class BoxRefused(SandboxError):
    """Confinement that must hold does not, or a policy forbids what was asked."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorInfo.of(ErrorCode.SANDBOX_REFUSED, message))


class BoxLost(SandboxError):
    """The box, or the stream to it, ended under us."""

    def __init__(
        self, message: str = "The sandbox is gone: its container or its engine ended. A new one can be started."
    ) -> None:
        super().__init__(ErrorInfo.of(ErrorCode.SANDBOX_LOST, message))


class BadCommand(SandboxError):
    """A command or a file operation that can't work as it was asked."""

    def __init__(self, message: str, *, code: ErrorCode = ErrorCode.INVALID_REQUEST) -> None:
        super().__init__(ErrorInfo.of(code, message))


class SetupFailed(SandboxError):
    """The set-up command failed or took too long."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorInfo.of(ErrorCode.SETUP_FAILED, message))
