"""view_image: puts an image file of the box in front of the model."""

import base64
from collections.abc import Mapping
from typing import Any, Literal

from patchyard.agent.errors import ToolError
from patchyard.agent.ports import SandboxError
from patchyard.agent.prompts import tool_description
from patchyard.agent.thread import Thread
from patchyard.policy import resolve
from patchyard.protocol.model_items import InputImage

from .calls import Arguments, ToolCall, ToolOutput, function_spec, parse_arguments

MOST_BYTES = 5 * 1024 * 1024
"""Of the file: it is stored with the history and sent with every later request of the window."""


class ImageArguments(Arguments):
    """Arguments of view_image."""

    path: str
    detail: Literal["auto", "low", "high", "original"] | None = None


class ViewImage:
    """See the module."""

    name = "view_image"
    kind: Literal["function", "custom"] = "function"
    parallel = True

    def __init__(self, thread: Thread) -> None:
        self._thread = thread

    def spec(self) -> Mapping[str, Any]:
        """See Tool."""
        return function_spec(
            self.name,
            tool_description(self.name),
            {
                "path": {"type": "string", "description": "Path of the file, absolute or from the workspace."},
                "detail": {
                    "type": "string",
                    "enum": ["auto", "low", "high", "original"],
                    "description": "How closely to look; leave it out unless small print matters.",
                },
            },
            required=("path",),
        )

    def aborted(self, call: ToolCall, *, seconds: float, why: str) -> str:
        """See Tool."""
        return f"{why} after {seconds:.1f} seconds"

    async def run(self, call: ToolCall) -> ToolOutput:
        """See Tool."""
        arguments = parse_arguments(ImageArguments, call)
        settings = self._thread.active_settings
        path = resolve(arguments.path, settings.cwd)
        box = await self._thread.box()
        try:
            content = await box.read_file(path, policy=settings.sandbox, limit=MOST_BYTES)
        except SandboxError as error:
            raise ToolError(f"The image {arguments.path} can't be shown: {error.info.message}") from error
        if content is None:
            raise ToolError(f"There is no file {path}. Look for it with exec_command.")
        kind = media_type(content.data)
        if kind is None:
            raise ToolError(f"{path} is not a PNG, JPEG, GIF or WebP image. Read it with exec_command, or convert it first.")
        url = f"data:{kind};base64,{base64.b64encode(content.data).decode()}"
        return (InputImage(image_url=url, detail=arguments.detail),)


def media_type(data: bytes) -> str | None:
    """The media type of an image that models read, by its first bytes; None: it is none."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return None
