"""The Sandbox port over boxd: boxes as containers of a Docker engine.

DockerBoxes    start, set-up, reap, doctor
BoxSpec        what a box is made from; BoxMount, BoxLabels
SetupSpec      a set-up command
Box            the Sandbox; BoxProcess its commands
"""

from ._box import Box, PlainStream
from ._confinement import PROTECTED_NAMES, WORKSPACE, Confinement
from ._docker import DockerBoxes, EngineInfo, Finding
from ._process import BoxProcess
from ._setup import SetupSpec
from ._spec import BoxLabels, BoxMount, BoxSpec
from .errors import BadCommand, BoxLost, BoxRefused, DiskFull, EngineUnavailable, ImageMissing, SetupFailed

__all__ = [
    "PROTECTED_NAMES",
    "WORKSPACE",
    "BadCommand",
    "Box",
    "BoxLabels",
    "BoxLost",
    "BoxMount",
    "BoxProcess",
    "BoxRefused",
    "BoxSpec",
    "Confinement",
    "DiskFull",
    "DockerBoxes",
    "EngineInfo",
    "EngineUnavailable",
    "Finding",
    "ImageMissing",
    "PlainStream",
    "SetupFailed",
    "SetupSpec",
]
