#!/usr/bin/env bash
# Sets a machine up for Patchyard. Repeatable; a second run takes a few seconds.
# Usage: scripts/setup.sh python | demo | test      (each includes the ones before it)
set -euo pipefail
cd "$(dirname "$0")/.."
want=${1:-demo}
if [ -t 1 ]; then b=$'\e[1m' d=$'\e[2m' r=$'\e[31m' n=$'\e[0m'; else b= d= r= n=; fi
say()  { printf '%s==>%s %s\n' "$b" "$n" "$*"; }
note() { printf '    %s%s%s\n' "$d" "$*" "$n"; }
die()  { printf '%serror:%s %s\n' "$r" "$n" "$*" >&2; exit 1; }
debian_root() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

# need PROGRAM PACKAGE: have the program, or install Debian's package, or say what to do.
need() {
  command -v "$1" >/dev/null || [ -x "$1" ] && return 0
  debian_root || die "$1 is missing: install it (on Debian or Ubuntu: apt-get install $2) and run this again"
  say "Installing $2 (for $1)"
  [ -n "${apt_updated:-}" ] || { apt-get -qq update; apt_updated=1; }
  env DEBIAN_FRONTEND=noninteractive ${quiet_services:+RUNLEVEL=1} apt-get -qq install -y --no-install-recommends $2 >.patchyard/apt.log 2>&1 \
    || { tail -n 5 .patchyard/apt.log >&2; die "apt-get could not install $2"; }
}

mkdir -p .patchyard && chmod 700 .patchyard
need git git
python=
for p in python3.11 python3.12 python3.13 python3 "$HOME"/.pyenv/versions/3.1[1-9]*/bin/python3; do
  if command -v "$p" >/dev/null && "$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$p; break; fi
done
[ -n "$python" ] || die "Python 3.11 or newer is missing: install it (Debian 12: apt-get install python3 python3-venv)"

stamp=$(cat requirements.lock pyproject.toml | sha256sum 2>/dev/null || cat requirements.lock pyproject.toml | shasum -a 256)
if [ "$(cat .venv/stamp 2>/dev/null)" != "$stamp" ]; then
  say "Python: installing the locked dependencies into .venv"
  if [ ! -x .venv/bin/python ]; then
    "$python" -c 'import ensurepip' 2>/dev/null || need /nonexistent python3-venv
    "$python" -m venv .venv
  fi
  # uv comes first, by its own hashes: it installs the rest ten times faster than pip.
  awk '/^[a-z]/{on=/^uv==/} on' requirements.lock >.venv/uv.txt
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r .venv/uv.txt
  .venv/bin/uv pip install --quiet --require-hashes --python .venv/bin/python -r requirements.lock
  .venv/bin/uv pip install --quiet --no-deps --python .venv/bin/python -e .
  printf '%s\n' "$stamp" >.venv/stamp
else
  note "Python: .venv is up to date"
fi
[ "$want" = python ] && exit 0

engine_up() { docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }
if ! engine_up; then
  debian_root || die "no Docker engine answers: start Docker (or set DOCKER_HOST) and run this again"
  need dockerd docker.io
  need iptables iptables
  say "Docker: starting the engine"
  if ! service docker start >/dev/null 2>&1 || ! timeout 20 sh -c 'until docker version >/dev/null 2>&1; do sleep 0.3; done'; then
    setsid nohup dockerd >.patchyard/dockerd.log 2>&1 </dev/null &
  fi
  timeout 60 sh -c 'until docker version >/dev/null 2>&1; do sleep 0.3; done' \
    || { tail -n 5 .patchyard/dockerd.log >&2; die "the Docker engine did not start: see .patchyard/dockerd.log"; }
else
  note "Docker: engine $(docker version --format '{{.Server.Version}}') answers"
fi
say "Sandbox image"
.venv/bin/python sandbox_images/build.py --home "$PWD/.patchyard"
# `patchyard` looks for its image in its own home.
home=${PATCHYARD_HOME:-$HOME/.patchyard}
[ "$home" -ef .patchyard ] || { mkdir -p -m 700 "$home"; cp .patchyard/images.lock.json "$home/images.lock.json"; }
[ "$want" = demo ] && exit 0

say "Test tools"
quiet_services=1 # the packages' own servers stay off: tests start and stop theirs
need redis-server redis-server
need unshare util-linux
need ip iproute2
need gcc gcc
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || need /usr/lib/postgresql/bin postgresql
need musl-gcc musl-tools
need node nodejs
need npm npm
