"""What a shell script would run, as far as that can be said without running it.

This is a conservative splitter, not a shell: where it does not understand, it says so (None), and the caller asks a person.
"""

import re
from collections.abc import Callable, Iterator, Sequence

Words = tuple[str, ...]

_OPERATORS = ("&&", "||", ";", "|", "\n")
_PLAIN = re.compile(r"[^\s'\"\\$`&|;<>(){}*?\[\]~#!\n]+")
_QUOTING = re.compile(r"[\\'\"]")
_MAX_NESTING = 5
"""Depth of scripts inside scripts that is looked into."""


def split_script(script: str) -> tuple[Words, ...] | None:
    """The commands of a script made only of plain or quoted words joined by `&&`, `||`, `;`, `|` or newlines.

    None when it has anything else: redirections, expansions, globs, assignments, subshells, background.
    """
    commands: list[Words] = []
    words: list[str] = []
    separated = True
    for kind, text in _plain_tokens(script):
        if kind == "bad":
            return None
        if kind == "word":
            words.append(text)
            separated = False
        elif words:
            commands.append(tuple(words))
            words, separated = [], text in (";", "\n")
        elif text != "\n":
            return None
    if words:
        commands.append(tuple(words))
    elif not separated:
        return None
    if not commands or any("=" in command[0] for command in commands):
        return None
    return tuple(commands)


def _plain_tokens(script: str) -> Iterator[tuple[str, str]]:
    position, end = 0, len(script)
    while position < end:
        char = script[position]
        if char in " \t":  # a carriage return is part of a word in bash
            position += 1
            continue
        operator = next((o for o in _OPERATORS if script.startswith(o, position)), None)
        if operator is not None:
            yield "operator", operator
            position += len(operator)
            continue
        word, position = _plain_word(script, position)
        if word is None:
            yield "bad", ""
            return
        yield "word", word


def _plain_word(script: str, position: int) -> tuple[str | None, int]:
    parts: list[str] = []
    while position < len(script) and script[position] not in " \t\n;|&":
        char = script[position]
        if char in "'\"":
            close = script.find(char, position + 1)
            text = script[position + 1 : close]
            if close < 0 or (char == '"' and any(c in text for c in '$`\\"!')):
                return None, position
            parts.append(text)
            position = close + 1
        elif (match := _PLAIN.match(script, position)) is not None:
            parts.append(match.group())
            position = match.end()
        else:
            return None, position
    return ("".join(parts), position) if parts else (None, position)


# --- known safe ---------------------------------------------------------------------------------

_SAFE_ANY_ARGUMENTS = frozenset(
    [
        "cat",
        "cd",
        "cut",
        "echo",
        "expr",
        "false",
        "grep",
        "head",
        "id",
        "ls",
        "nl",
        "paste",
        "pwd",
        "rev",
        "seq",
        "stat",
        "tail",
        "tr",
        "true",
        "uname",
        "uniq",
        "wc",
        "which",
        "whoami",
        "numfmt",
        "tac",
    ]
)
_FIND_UNSAFE = ("-exec", "-ok", "-delete", "-fls", "-fprint")
_RG_UNSAFE = ("--pre", "--hostname-bin", "--search-zip")
_SED_PRINT = re.compile(r"\d+(,\d+)?p")


def _safe_base64(arguments: Sequence[str]) -> bool:
    return not any(a.startswith("--output") or re.match(r"-[^-]*o", a) for a in arguments)


def _safe_find(arguments: Sequence[str]) -> bool:
    return not any(a.startswith(_FIND_UNSAFE) for a in arguments)


def _safe_rg(arguments: Sequence[str]) -> bool:
    return not any(a.startswith(_RG_UNSAFE) or re.match(r"-[a-zA-Z]*z", a) for a in arguments)


def _safe_sed(arguments: Sequence[str]) -> bool:
    return 2 <= len(arguments) <= 3 and arguments[0] == "-n" and _SED_PRINT.fullmatch(arguments[1]) is not None


def _safe_uniq(arguments: Sequence[str]) -> bool:
    return len([a for a in arguments if not a.startswith("-")]) <= 1


_SAFE_WHEN: dict[str, Callable[[Sequence[str]], bool]] = {
    "base64": _safe_base64,
    "find": _safe_find,
    "rg": _safe_rg,
    "sed": _safe_sed,
    "uniq": _safe_uniq,
}


def is_known_safe(script: str) -> bool:
    """Whether every command of the script only reads. Unknown or not understood counts as not safe."""
    commands = split_script(script)
    return commands is not None and all(_is_safe(command) for command in commands)


def _is_safe(command: Words) -> bool:
    program, arguments = command[0], command[1:]
    if program in _SAFE_WHEN:
        return _SAFE_WHEN[program](arguments)
    return program in _SAFE_ANY_ARGUMENTS


# --- dangerous ----------------------------------------------------------------------------------

_SCRIPT_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\r]+|\\\n)
    | (?P<comment>\#[^\n]*)
    | (?P<substitution>\$\(|`|<\(|>\()
    | (?P<break>\n|;;|;|&&|\|\||\||&(?!>)|\(|\)|\{(?=\s)|\})
    | (?P<redirect>\d*(?:&>>?|>>|<<<|<<-?|[<>]&?|>\|))
    | (?P<word>(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|\$(?!\()|[^\s'"\\;&|()<>`$])+)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_KEYWORDS = frozenset(
    ("if", "then", "elif", "else", "while", "until", "do", "for", "in", "case", "esac", "fi", "done", "!", "time", "{", "}")
) | {"coproc", "-p"}
"""What may stand before a command, `-p` of `time` included."""
_WRAPPERS = frozenset(
    {"sudo", "doas", "env", "command", "exec", "nohup", "xargs", "nice", "ionice", "stdbuf", "busybox", "timeout", "setsid"}
) | {"chroot", "unbuffer", "parallel"}
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh", "trap"})
"""They are given scripts as arguments."""
_FIND_ACTIONS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_QUOTED = re.compile(r"'([^']*)'|\"((?:\\.|[^\"\\])*)\"|\\(.)", re.DOTALL)
_SUBSTITUTION = re.compile(r"\$\(([^()]*(?:\([^()]*\)[^()]*)*)\)|`([^`]*)`")


def has_forced_rm(script: str) -> bool:
    """Whether `rm` with a force option runs anywhere: pipelines, blocks, substitutions, wrappers, nested shells."""
    return _forced_rm(script, _MAX_NESTING)


def _forced_rm(script: str, depth: int) -> bool:
    if depth == 0 or "rm" not in _QUOTING.sub("", script):
        return False
    inner = [a or b for a, b in _SUBSTITUTION.findall(script)]
    return any(_is_forced_rm(words, depth) for words in _commands(script)) or any(_forced_rm(s, depth - 1) for s in inner)


def _commands(script: str) -> Iterator[list[str]]:
    words: list[str] = []
    for token in _SCRIPT_TOKEN.finditer(script):
        if token.lastgroup == "word":
            words.append(_unquote(token.group()))
        elif token.lastgroup in ("break", "substitution"):
            yield words
            words = []
    yield words


def _unquote(word: str) -> str:
    return _QUOTED.sub(lambda m: m.group(1) or m.group(2) or m.group(3) or "", word)


def _is_forced_rm(words: list[str], depth: int) -> bool:
    index = 0
    wrapped = False
    while index < len(words):
        word = words[index]
        name = word.rsplit("/", 1)[-1]
        if name in _KEYWORDS or _ASSIGNMENT.match(word) or (wrapped and word.startswith("-")):
            index += 1
        elif name in _WRAPPERS:
            wrapped, index = True, index + 1
        elif name == "rm":
            return _has_force(words[index + 1 :])
        elif name == "eval":
            return _forced_rm(" ".join(words[index + 1 :]), depth - 1)
        elif name == "find":
            actions = [at for at, word in enumerate(words) if word in _FIND_ACTIONS]
            return any(_is_forced_rm(words[at + 1 :], depth) for at in actions)
        elif name in _SHELLS:
            return any(_forced_rm(w, depth - 1) for w in words[index + 1 :] if " " in w)
        elif wrapped and index + 1 < len(words):
            # An option's value, such as the user of `sudo -u`: look on.
            index += 1
        else:
            return False
    return False


def _has_force(arguments: list[str]) -> bool:
    for argument in arguments:
        if argument == "--":
            return False
        if (argument.startswith("--f") and "--force".startswith(argument)) or (
            re.fullmatch(r"-[A-Za-z]+", argument) and "f" in argument
        ):
            return True
    return False
