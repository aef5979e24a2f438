"""The durable record of a thread: lines, segments, recovery and trace. Pure: everything outside is a port."""

from .errors import LineInvalid, OrdinalGap, RolloutError, SegmentConflict
from .lines import check_lineage, decode_line, encode_line
from .ports import NumberedLine, SegmentStore, StoredLine, TailPiece
from .restore import Question, RestoredThread, ToolCall, UnfinishedTurn, restore
from .usage import add_usage

__all__ = [
    "LineInvalid",
    "NumberedLine",
    "OrdinalGap",
    "Question",
    "RestoredThread",
    "RolloutError",
    "SegmentConflict",
    "SegmentStore",
    "StoredLine",
    "TailPiece",
    "ToolCall",
    "UnfinishedTurn",
    "add_usage",
    "check_lineage",
    "decode_line",
    "encode_line",
    "restore",
]
