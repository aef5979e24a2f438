"""The environment of commands in the box."""

from patchyard.protocol.policies import ExternalSandbox, ReadOnly, SandboxPolicy, WorkspaceWrite

from .config import SessionConfig

_ENVIRONMENT = {
    "NO_COLOR": "1",
    "TERM": "dumb",
    "COLORTERM": "",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "LC_CTYPE": "C.UTF-8",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GH_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "PATCHYARD_CI": "1",
}
"""What keeps programs from colours, pagers and questions. PATH is the image's own."""


def command_environment(config: SessionConfig, policy: SandboxPolicy, *, tty: bool = False) -> dict[str, str]:
    """Variables of a command that runs under this policy."""
    offline = isinstance(policy, ReadOnly) or (
        isinstance(policy, WorkspaceWrite | ExternalSandbox) and not policy.network_access
    )
    own = {"PATCHYARD_THREAD_ID": config.thread_id, "PATCHYARD_VERSION": config.patchyard_version}
    if offline:
        own["PATCHYARD_SANDBOX_NETWORK_DISABLED"] = "1"
    return {**_ENVIRONMENT, **({"TERM": "xterm"} if tty else {}), **own, **config.command_env}
