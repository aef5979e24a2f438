"""Builds the image of the boxes: `python sandbox_images/build.py [--offline | --registry] [--home DIR]`.

Writes the image's id to <home>/images.lock.json. Does nothing, in under a second, when an image of the same inputs exists.
"""

import argparse
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import docker
from docker.errors import DockerException

HERE = Path(__file__).resolve().parent
BOXD_SOURCES = ("main.c", "tree.c", "confine.c", "files.c", "patches.c", "apply_patch.c", "boxd.h", "Makefile")
PROGRAMS = ("boxd", "apply_patch")
INPUTS = ("base/Dockerfile", "base/bootstrap.sh", *(f"boxd/{name}" for name in BOXD_SOURCES))
REGISTRY_BASE = "debian:bookworm-slim"
SUITE = "bookworm"
INPUTS_LABEL = "patchyard.inputs"
BASE_LABEL = "patchyard.base"
REPOSITORY = "patchyard/sandbox-base"
PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy", "default-timeout", "timeout", "retries")
CA_VARIABLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


def say(text: str) -> None:
    """A step, on stderr: stdout holds the image id only."""
    print(f"image: {text}", file=sys.stderr, flush=True)


def fail(text: str) -> NoReturn:
    """Stop with a message that says what to do."""
    say(text)
    raise SystemExit(1)


def content_hash(names: Sequence[str]) -> str:
    """Of the files by name, content and architecture."""
    digest = hashlib.sha256(platform.machine().encode())
    for name in names:
        digest.update(name.encode() + b"\0" + hashlib.sha256((HERE / name).read_bytes()).digest())
    return digest.hexdigest()[:32]


def image_tag() -> str:
    """A name per version, so that checkouts side by side do not take each other's image away."""
    return f"{REPOSITORY}:{content_hash(INPUTS)[:12]}"


# --- engine ---------------------------------------------------------------------------------------------------------


def find_image(client: docker.DockerClient, labels: Mapping[str, str]) -> str | None:
    """Id of the newest image with all labels that has a name: the builder's stages inherit labels."""
    images = client.api.images(filters={"label": [f"{key}={value}" for key, value in labels.items()], "dangling": False})
    newest = max(images, key=lambda image: int(image["Created"]), default=None)
    return str(newest["Id"]) if newest else None


def follow(stream: Iterator[Mapping[str, Any]]) -> str | None:
    """Show a build's or pull's progress; the id of the image that was built. SystemExit with the engine's error."""
    built: str | None = None
    for event in stream:
        if (text := str(event.get("stream", "")).strip()).startswith("Step "):
            say(text.split(" && ")[0][:120])
        if "aux" in event and "ID" in event["aux"]:
            built = str(event["aux"]["ID"])
        if "error" in event:
            fail(f"the engine says: {event['error']}")
    return built


def build(client: docker.DockerClient, context: Path, *, tag: str | None, base: str, labels: Mapping[str, str]) -> str:
    """`docker build` of a folder with the classic builder. The network is the host's: only it may know the mirrors."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(context, arcname=".", filter=_root_owned)
    archive.seek(0)
    proxies = {name: os.environ[name] for name in PROXY_VARIABLES if name in os.environ}
    built = follow(
        client.api.build(
            fileobj=archive,
            custom_context=True,
            tag=tag,
            labels=dict(labels),
            buildargs={"BASE_IMAGE": base, **proxies},
            network_mode="host",
            rm=True,
            forcerm=True,
            decode=True,
        )
    )
    return built or fail("the engine built no image")


def _root_owned(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mtime = 0  # the engine's cache goes by content, and so should ours
    return member


# --- steps ----------------------------------------------------------------------------------------------------------


def pull(client: docker.DockerClient) -> str | None:
    """The registry's base image, or None where no registry can be reached."""
    try:
        return str(client.images.pull(REGISTRY_BASE).id)
    except DockerException as error:
        say(f"no registry ({str(error).splitlines()[0][:100]})")
        return None


def bootstrap(client: docker.DockerClient) -> str:
    """A base image made from Debian packages; made once per content of bootstrap.sh."""
    labels = {INPUTS_LABEL: content_hash(["base/bootstrap.sh"]), BASE_LABEL: "bootstrap"}
    if known := find_image(client, labels):
        return known
    with tempfile.TemporaryDirectory(prefix="patchyard-image-") as folder:
        tar = Path(folder) / "base.tar"
        say(f"building Debian {SUITE} from its packages (about a minute)")
        if subprocess.run([HERE / "base" / "bootstrap.sh", tar, SUITE], stdout=sys.stderr, check=False).returncode:
            fail("bootstrap.sh failed, see above")
        say("importing it into the engine")
        changes = [f"LABEL {key}={value}" for key, value in labels.items()]
        with tar.open("rb") as stream:
            chunks = iter(lambda: stream.read(1 << 20), b"")  # a plain file would be sent with two contradicting lengths
            client.api.import_image_from_stream(chunks, repository="patchyard/bootstrap", tag=SUITE, changes=changes)
    return find_image(client, labels) or fail("the engine lost the image that it imported")


def base_image(client: docker.DockerClient, source: str) -> tuple[str, str]:
    """(image id, how it was made)."""
    if source != "offline":
        say(f"asking the registry for {REGISTRY_BASE}")
        if pulled := pull(client):
            return pulled, "registry"
        if source == "registry":
            fail("the registry can't be reached: check the engine's network, or use --offline")
    return bootstrap(client), "offline"


def compile_boxd(client: docker.DockerClient, base: str, target: Path) -> None:
    """PROGRAMS for the engine's architecture into a folder: on this host if it has musl-gcc, else in a container."""
    here = sys.platform == "linux" and client.info()["Architecture"] == platform.machine()
    with tempfile.TemporaryDirectory(prefix="patchyard-boxd-") as folder:
        for name in (*BOXD_SOURCES, "Dockerfile"):
            shutil.copy(HERE / "boxd" / name, folder)
        if here and shutil.which("musl-gcc") and shutil.which("make"):
            say("compiling boxd")
            subprocess.run(["make", "-s", "-C", folder], stdout=sys.stderr, check=True)
            for name in PROGRAMS:
                shutil.copy(Path(folder) / name, target)
            return
        say("compiling boxd in a container: this host has no musl-gcc")
        image = build(client, Path(folder), tag=None, base=base, labels={"patchyard.stage": "boxd"})
    container = client.containers.create(image, command=["true"], labels={"patchyard.kind": "image-build"})
    try:
        for name in PROGRAMS:
            stream, _ = container.get_archive(f"/src/{name}")
            with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as tar:
                program = tar.extractfile(name)
                (target / name).write_bytes(program.read() if program else fail("the compiler left no program"))
            (target / name).chmod(0o755)
    finally:
        container.remove(force=True)


def pip_context(folder: Path, ca_file: Path | None) -> None:
    """What pip needs inside the build to reach the index that it reaches here; local folders stay out."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False).stdout
    if not listed and (pip := shutil.which("pip3")):
        listed = subprocess.run([pip, "config", "list"], capture_output=True, text=True, check=False).stdout
    found: dict[str, str] = {}
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):
        key, _, value = line.partition("=")
        name, value = key.rpartition(".")[2], value.strip("'\"")
        urls = [url for url in value.split() if not url.startswith(("file:", "/"))]
        if name in PIP_SETTINGS and urls:
            found[name] = " ".join(urls)
    folder.mkdir()
    (folder / "pip.conf").write_text("[global]\n" + "".join(f"{name} = {value}\n" for name, value in found.items()))
    candidates = [ca_file, *(Path(os.environ[name]) for name in CA_VARIABLES if os.environ.get(name))]
    bundle = next((path for path in candidates if path and path.is_file()), None)
    (folder / "ca.pem").write_bytes(bundle.read_bytes() if bundle else b"")


def make_image(client: docker.DockerClient, source: str, ca_file: Path | None) -> str:
    """Build the image, whatever exists already."""
    base, made_by = base_image(client, source)
    with tempfile.TemporaryDirectory(prefix="patchyard-image-") as folder:
        context = Path(folder)
        shutil.copy(HERE / "base" / "Dockerfile", context)
        compile_boxd(client, base, context)
        pip_context(context / "pip", ca_file)
        say("building the image")
        labels = {INPUTS_LABEL: content_hash(INPUTS), BASE_LABEL: made_by}
        image = build(client, context, tag=image_tag(), base=base, labels=labels)
    for stage in client.api.images(filters={"label": "patchyard.stage", "dangling": True}):
        try:  # holds the builder's pip settings
            client.api.remove_image(stage["Id"])
        except DockerException:
            say(f"could not remove the intermediate image {stage['Id'][:19]}")
    return str(client.api.inspect_image(image)["Id"])


def write_lock(home: Path, image: str) -> None:
    """Record the image id atomically, beside whatever other images the file names."""
    path = home / "images.lock.json"
    lock: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    entry = {"id": image, "inputs": content_hash(INPUTS), "tag": image_tag()}
    if lock.get("base") == entry:
        return
    home.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps({**lock, "base": entry}, indent=2) + "\n")
    draft.replace(path)
    say(f"recorded in {path}")


def connect(url: str | None) -> docker.DockerClient:
    """The engine that answers at `url`, or where the environment says."""
    try:
        client = docker.DockerClient(base_url=url, timeout=600) if url else docker.from_env(timeout=600)
        client.ping()
    except DockerException as error:
        fail(f"no Docker engine answers ({error}): start one, or name it with --docker-host or DOCKER_HOST")
    return client


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Build the image of Patchyard's sandboxes.")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--offline", action="store_true", help="make the base from Debian packages; use no image registry")
    choice.add_argument("--registry", action="store_true", help=f"use {REGISTRY_BASE} from the registry or fail")
    parser.add_argument("--home", type=Path, default=Path(os.environ.get("PATCHYARD_HOME") or "~/.patchyard").expanduser())
    parser.add_argument("--docker-host", default=os.environ.get("PATCHYARD_DOCKER_HOST"))
    parser.add_argument("--ca-file", type=Path, help="CA bundle for pip inside the build (default: this environment's)")
    parser.add_argument("--force", action="store_true", help="build although an image of the same inputs exists")
    options = parser.parse_args()
    source = "offline" if options.offline else "registry" if options.registry else "auto"
    client = connect(options.docker_host)
    wanted = {INPUTS_LABEL: content_hash(INPUTS)} | ({BASE_LABEL: source} if source != "auto" else {})
    image = None if options.force else find_image(client, wanted)
    if image is None:
        started = time.monotonic()
        image = make_image(client, source, options.ca_file)
        say(f"built in {time.monotonic() - started:.0f} s")
    else:
        say("up to date")
    write_lock(options.home, image)
    print(image)


if __name__ == "__main__":
    main()
