#!/bin/bash
# Build (once) the environment of one trainer's real packages, and print its path as the last line of stdout.
#
#   scripts/trainer-env.sh verl    -> ~/.cache/sandgate/trainer-verl-<first 12 hex digits of trainer/envs/verl.lock's sha256>
#
# verl, AReaL and TRL pin each other out, so each has an environment of its own, outside the clone, shared by all clones
# with the same lock. Nothing of ours is installed there: put the rooms on PYTHONPATH (tests/trainer/verl/test_verl.py does),
# so that one environment serves every clone. Found again in milliseconds; two runs at once wait for each other; an
# interrupted build is thrown away by the next run.
#
#   SANDGATE_UV      uv to use             (default: uv on PATH, else this clone's .venv/bin/uv)
#   SANDGATE_PYTHON  interpreter to use    (default: python3.11)
#   XDG_CACHE_HOME   where caches live     (default: ~/.cache)
#   UV_CACHE_DIR     uv's download cache   (default: <caches>/sandgate/uv; on the same disk files are linked, not copied)
set -euo pipefail

say() { printf 'trainer-env: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

[ $# -eq 1 ] || die "usage: trainer-env.sh NAME (of a trainer/envs/NAME.lock)"
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
lock="$root/trainer/envs/$1.lock"
[ -r "$lock" ] || die "cannot read trainer/envs/$1.lock"
[ "$(uname -sm)" = "Linux x86_64" ] || die "the lock holds wheels for Linux x86_64, this is $(uname -sm)"

caches="${XDG_CACHE_HOME:-${HOME:?HOME is not set; set XDG_CACHE_HOME}/.cache}/sandgate"
digest=$(sha256sum "$lock"); digest=${digest:0:12}
venv="$caches/trainer-$1-$digest"
ready="$venv/.sandgate-ready"   # written last: this is what publishes it

have() { [ -e "$ready" ] && [ -x "$venv/bin/python" ]; }
if have; then printf '%s\n' "$venv"; exit 0; fi
mkdir -p "$caches" || die "cannot create $caches"

exec 9>"$venv.lock"
flock -n 9 || { say "another run is building $venv, waiting for it"; flock 9; }
if have; then printf '%s\n' "$venv"; exit 0; fi

uv=${SANDGATE_UV:-uv}
if ! command -v "$uv" >/dev/null 2>&1; then
    [ -z "${SANDGATE_UV:-}" ] || die "SANDGATE_UV=$SANDGATE_UV is not a program"
    uv="$root/.venv/bin/uv"
    [ -x "$uv" ] || die "uv not found: 'pip install uv', or set SANDGATE_UV, or make this clone's .venv"
fi
python=${SANDGATE_PYTHON:-python3.11}
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null \
    || die "'$python' is not Python 3.11 (the lock was resolved for 3.11); set SANDGATE_PYTHON"
export UV_CACHE_DIR=${UV_CACHE_DIR:-$caches/uv} UV_PYTHON_DOWNLOADS=never UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-300}
# The machine's own certificates, as pip uses them.
export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-1}
# uv does not read pip's settings; a machine that names its package index to pip only should still work.
if [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}${UV_CONFIG_FILE:-}" ] && [ -n "${PIP_INDEX_URL:-}" ]; then
    export UV_DEFAULT_INDEX="$PIP_INDEX_URL"
fi
unset VIRTUAL_ENV PYTHONPATH PYTHONHOME CONDA_PREFIX

say "building $venv"
began=$SECONDS
rm -rf -- "$venv"
"$uv" venv --quiet --python "$python" "$venv" || die "uv could not make a virtual environment"
# --compile-bytecode: else every process of a Ray cluster compiles for itself at its first start.
"$uv" pip install --quiet --python "$venv/bin/python" --compile-bytecode --no-deps --require-hashes -r "$lock" 9>&- \
    || die "installation failed (see uv's message above); nothing was published, run again to start over"
date -u +%FT%TZ >"$ready"
say "ready after $(( SECONDS - began )) s"
printf '%s\n' "$venv"
