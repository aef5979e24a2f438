"""The set-up phase: a command that may use the network prepares the image that the task's boxes share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from patchyard.agent.ports import ExecLimits, SandboxExecRequest
from patchyard.protocol.policies import ExternalSandbox

from ._box import Box
from ._confinement import WORKSPACE
from ._spec import BoxLabels, BoxMount, BoxSpec
from .errors import SetupFailed

_SOURCE = "/run/patchyard/workspace"
_CA_FILE = "/run/patchyard/ca.pem"
_CA_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS")
_TAIL = 2000
_COPY = f'cp -a {_SOURCE}/. {WORKSPACE}/ && exec sh -c "$0"'


@dataclass(frozen=True)
class SetupSpec:
    """A set-up command."""

    image: str
    """Image id that it starts from."""
    command: str
    """Shell text, run in a copy of the workspace."""
    labels: BoxLabels
    cache_key: str = ""
    """Names the result: tenant, image, command and base revision. Empty: always run."""
    workspace: Path | None = None
    """Folder on the engine's host that is copied; None: an empty workspace."""
    mounts: tuple[BoxMount, ...] = ()
    """What else the workspace needs, such as its Git objects; always read-only here."""
    network: str = "bridge"
    ca_file: Path | None = None
    """Extra CA bundle."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of the command only, such as an index URL; they are not kept in the image."""
    timeout_s: float = 900
    memory_mb: int = 2048
    cpus: float = 2.0
    pids: int = 512


def setup_box(spec: SetupSpec) -> BoxSpec:
    """Its box: a network and a writable root, and otherwise as hard as an agent's."""
    mounts = [BoxMount(mount.source, mount.target, read_only=True) for mount in spec.mounts]
    mounts += [BoxMount(spec.workspace, _SOURCE, read_only=True)] if spec.workspace else []
    mounts += [BoxMount(spec.ca_file, _CA_FILE, read_only=True)] if spec.ca_file else []
    return BoxSpec(
        image=spec.image,
        labels=spec.labels,
        policy=ExternalSandbox(network_access=True),
        mounts=tuple(mounts),
        memory_mb=spec.memory_mb,
        cpus=spec.cpus,
        pids=spec.pids,
        disk=(WORKSPACE,),  # neither this nor /tmp is part of the image that is kept
        network=spec.network,
        read_only_root=False,
    )


async def run_in_box(box: Box, spec: SetupSpec, *, on_output: Callable[[bytes], None]) -> None:
    """Run the command and pass on its output. SetupFailed with the end of it."""
    trust = dict.fromkeys(_CA_VARIABLES, _CA_FILE) if spec.ca_file else {}
    process = await box.spawn(
        SandboxExecRequest(
            argv=("sh", "-c", _COPY, spec.command) if spec.workspace else ("sh", "-c", spec.command),
            cwd=WORKSPACE,
            env={**trust, **spec.env},
            policy=ExternalSandbox(network_access=True),
            limits=ExecLimits(wall_time_s=spec.timeout_s),
        )
    )
    await process.write(b"", eof=True)
    tail = b""
    while chunk := await process.read():
        on_output(chunk)
        tail = (tail + chunk)[-_TAIL:]
    status = await process.wait()
    if status.code == 0:
        await process.kill()  # daemons that it left behind are not to be part of the image's files in motion
        return
    reason = f"took longer than {spec.timeout_s:.0f} s" if status.timed_out else f"ended with exit code {status.code}"
    raise SetupFailed(f"The set-up command {reason}. Its last output:\n{tail.decode(errors='replace')}")
