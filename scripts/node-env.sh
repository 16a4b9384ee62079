#!/bin/bash
# Install (once) the Node packages of a folder's package.json, whose versions are exact, and print the path of the folder that
# has their node_modules as the last line of stdout. It is ~/.cache/sandgate/node-<name>-<digest of package.json>.
# Packages' own install scripts are not run but those named in SCRIPTS: they fetch nothing, and put a program in its place.
set -euo pipefail
SCRIPTS=(@anthropic-ai/claude-code opencode-ai)

say() { printf 'node-env: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

[ $# -eq 1 ] || die "usage: node-env.sh FOLDER (one that has a package.json)"
package="$1/package.json"
[ -r "$package" ] || die "cannot read $package: is this a whole clone?"
command -v npm >/dev/null 2>&1 || die "npm not found: install Node 20"
caches="${XDG_CACHE_HOME:-${HOME:?HOME is not set; set XDG_CACHE_HOME}/.cache}/sandgate"
digest=$(sha256sum "$package")
folder="$caches/node-$(basename -- "$(cd -- "$1" && pwd)")-${digest:0:12}"
if [ ! -e "$folder/.sandgate-ready" ]; then
    mkdir -p "$caches"
    exec 9>"$folder.lock"
    flock 9
    if [ ! -e "$folder/.sandgate-ready" ]; then
        say "building $folder"
        rm -rf -- "$folder"
        mkdir -p "$folder"
        cp "$package" "$folder/package.json"
        (cd "$folder" && npm install --silent --ignore-scripts --no-audit --no-fund --no-package-lock >&2) || die "npm install failed"
        for name in "${SCRIPTS[@]}"; do
            (cd "$folder" && npm rebuild --silent --foreground-scripts "$name" >&2) || die "the install script of $name failed"
        done
        : > "$folder/.sandgate-ready"
    fi
fi
printf '%s\n' "$folder"
