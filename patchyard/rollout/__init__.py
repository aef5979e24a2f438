"""The durable record of a thread: lines, segments, recovery and trace. Pure: everything outside is a port."""

from .errors import LineInvalid, OrdinalGap, RolloutError, SegmentConflict
from .lines import check_lineage, decode_line, encode_line, number_line, split_segment
from .loading import RestoreWindow, load_thread
from .ports import NumberedLine, SegmentStore, StoredLine, TailPiece
from .reader import list_segments, read_batches, read_lines
from .recorder import SegmentRecorder
from .restore import Question, RestoredThread, ToolCall, UnfinishedTurn, restore
from .reverse import read_back, scan_back
from .segments import Segment, parse_key, segment_key, thread_prefix
from .trace import TraceKind, TraceNode, TraceTree, build_trace
from .usage import add_usage

__all__ = [
    "LineInvalid",
    "NumberedLine",
    "OrdinalGap",
    "Question",
    "RestoreWindow",
    "RestoredThread",
    "RolloutError",
    "Segment",
    "SegmentConflict",
    "SegmentRecorder",
    "SegmentStore",
    "StoredLine",
    "TailPiece",
    "ToolCall",
    "TraceKind",
    "TraceNode",
    "TraceTree",
    "UnfinishedTurn",
    "add_usage",
    "build_trace",
    "check_lineage",
    "decode_line",
    "encode_line",
    "list_segments",
    "load_thread",
    "number_line",
    "parse_key",
    "read_back",
    "read_batches",
    "read_lines",
    "restore",
    "scan_back",
    "segment_key",
    "split_segment",
    "thread_prefix",
]
