"""Text from outside (models, commands, repositories) made harmless for a terminal, and numbers made short."""

import re

_SEQUENCES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[@-Z\\-_])")
"""CSI, OSC, DCS/SOS/PM/APC and two-character escape sequences (ECMA-48)."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters but tab and newline, and those that turn the writing direction around."""


def safe(text: str) -> str:
    """Without terminal control sequences; other control characters shown as escapes."""
    text = _SEQUENCES.sub("", text.replace("\r\n", "\n"))
    return _CONTROLS.sub(lambda match: f"\\x{ord(match.group()):02x}" if ord(match.group()) < 256 else "?", text)


def one_line(text: str, width: int) -> str:
    """The first line, cut to `width` characters."""
    lines = safe(text).strip().splitlines() or [""]
    line = lines[0].replace("\t", " ")
    cut = len(line) > width or len(lines) > 1
    return line[: width - 1] + "…" if cut else line


def duration(ms: int | None) -> str:
    """`850 ms`, `12.3 s`, `4 min 10 s`, `2 h 5 min`."""
    if ms is None:
        return "–"
    if ms < 1000:
        return f"{ms} ms"
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def amount(value: int) -> str:
    """`950`, `12.3k`, `4.5M`."""
    if value < 1000:
        return str(value)
    if value < 1_000_000:
        return f"{value / 1000:.1f}k"
    return f"{value / 1_000_000:.1f}M"


def money(usd: float | None) -> str:
    """A price; `unknown` is never shown as 0."""
    if usd is None:
        return "unknown"
    return f"${usd:.4f}" if usd < 0.1 else f"${usd:.2f}"
