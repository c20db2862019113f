#!/usr/bin/env bash
# Entry point of the image: nox sessions (test bench -- --require-gpu), else a subcommand of sm70-kernels (doctor).
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"

refuse() {
    echo "entrypoint: $1" >&2
    exit 2
}

# A user that the image does not know has no name; tools that put one into the names of their folders in /tmp need it.
# id prints the number then, and fails.
USER="$(id -un 2>/dev/null)" || USER="user$(id -u)"
export USER LOGNAME="$USER"

is_session() {
    local listing # whole first: grep -q ends at its match, and nox would die of the broken pipe
    listing="$(scripts/nox --list)"
    grep -qE "^[*-] $1( |\$)" <<<"$listing"
}

(($#)) || refuse "got no argument, want nox sessions or a subcommand of sm70-kernels. Try: doctor"

# nox's own options, as in a checkout: -l, -s test bench
if [[ $1 == -* ]]; then
    exec scripts/nox "$@"
fi

if [[ $1 =~ ^[a-z_]+$ ]] && is_session "$1"; then
    [[ -w results ]] || refuse "user $(id -u) can't write results/. Make the mounted folder writable for it, or start \
the container as the folder's owner (docker run --user \"\$(id -u):\$(id -g)\")"
    # A folder mounted over results/ hides the commit's own recorded runs, with which tests compare.
    if [[ ! -e results/INDEX && -e build/recorded-results/INDEX ]]; then
        cp -R build/recorded-results/. results/
    fi
    exec scripts/nox -s "$@"
fi

exec "${UV_PROJECT_ENVIRONMENT:-.venv}/bin/sm70-kernels" "$@"
