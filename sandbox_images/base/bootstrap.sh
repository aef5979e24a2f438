#!/bin/sh
# Builds a slim Debian root file system without any image registry: `bootstrap.sh OUTPUT.tar [SUITE]`.
# Uses the mirrors and keys that this host's apt already trusts; build.py imports the tar into the engine.
set -eu

output=${1:?usage: bootstrap.sh OUTPUT.tar [SUITE]}
suite=${2:-bookworm}

if ! command -v mmdebstrap >/dev/null; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "mmdebstrap is missing: install it (Debian, Ubuntu: apt-get install mmdebstrap), or use --registry" >&2
        exit 69
    fi
    echo "installing mmdebstrap" >&2
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends mmdebstrap >&2
fi

# The host's own Debian mirrors for this suite; mmdebstrap's default mirror where the host runs something else.
sources() {
    apt-get indextargets --format '$(ORIGIN) $(CODENAME) deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 2>/dev/null |
        awk -v suite="$suite" '$1 == "Debian" && index($2, suite) == 1 { print $3, $4, $5, $6 }' | sort -u
}
mirrors=$(sources)

# Documentation and translations are most of a minimal system's size and of no use to an agent; licences stay.
set -- --variant=minbase --include=ca-certificates \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    "$suite" "$output"
if [ -n "$mirrors" ]; then
    printf '%s\n' "$mirrors" | mmdebstrap "$@" -
else
    mmdebstrap "$@"
fi
