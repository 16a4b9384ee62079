#!/bin/bash
# Build (once) the environment of an example's agent from its pinned requirements.txt, and print its path as the last line of
# stdout.
#
#   scripts/agent-env.sh examples/mini_swe_agent   -> ~/.cache/sandgate/agent-mini_swe_agent-<12 hex digits of the pins' sha256>
#
# For agents whose packages have no place beside ours. Put its bin folder on PATH and run the job:
#
#   PATH="$(scripts/agent-env.sh examples/mini_swe_agent)/bin:$PATH" sandgate run examples/mini_swe_agent/job.yaml
#
# Outside the clone and found again in milliseconds, like scripts/engine-env.sh, whose SANDGATE_UV, SANDGATE_PYTHON and
# XDG_CACHE_HOME it knows.
set -euo pipefail

say() { printf 'agent-env: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

[ $# -eq 1 ] || die "usage: agent-env.sh FOLDER (one that has a requirements.txt)"
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
pins="$1/requirements.txt"
[ -r "$pins" ] || die "cannot read $pins"

caches="${XDG_CACHE_HOME:-${HOME:?HOME is not set; set XDG_CACHE_HOME}/.cache}/sandgate"
digest=$(sha256sum "$pins"); digest=${digest:0:12}
venv="$caches/agent-$(basename -- "$(cd -- "$1" && pwd)")-$digest"
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
export UV_CACHE_DIR=${UV_CACHE_DIR:-$caches/uv} UV_PYTHON_DOWNLOADS=never UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-300}
# uv does not read pip's settings; a machine that names its package index to pip only should still work.
if [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}${UV_CONFIG_FILE:-}" ] && [ -n "${PIP_INDEX_URL:-}" ]; then
    export UV_DEFAULT_INDEX="$PIP_INDEX_URL"
fi
unset VIRTUAL_ENV PYTHONPATH PYTHONHOME CONDA_PREFIX

say "building $venv"
began=$SECONDS
rm -rf -- "$venv"
"$uv" venv --quiet --python "${SANDGATE_PYTHON:-python3.11}" "$venv" || die "uv could not make a virtual environment"
# --compile-bytecode: else every session's agent, which may not write there, compiles for seconds.
"$uv" pip install --quiet --python "$venv/bin/python" --compile-bytecode --no-deps -r "$pins" 9>&- \
    || die "installation failed (see uv's message above); nothing was published, run again to start over"
date -u +%FT%TZ >"$ready"
say "ready after $(( SECONDS - began )) s"
printf '%s\n' "$venv"
