"""Event streams: from the firehose to many subscribers. See docs/subsystems/queue.md."""

from ._frames import EventFrame, frame_of_line
from ._hub import EventHub
from ._source import EventSource, Fired, History, Line, Page, Text
from .errors import HistoryUnavailable, StreamsError

__all__ = [
    "EventFrame",
    "EventHub",
    "EventSource",
    "Fired",
    "History",
    "HistoryUnavailable",
    "Line",
    "Page",
    "StreamsError",
    "Text",
    "frame_of_line",
]
