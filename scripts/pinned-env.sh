# Sourced by engine-env.sh, trainer-env.sh and agent-env.sh, which set `me`: a Python environment of pinned packages, built
# once, outside the clone, shared by all clones with the same pins. Found again in milliseconds; two builds at once wait for
# each other; an interrupted one is thrown away by the next. Changed pins are a new directory; old ones may be deleted by hand.
#
#   SANDGATE_UV      uv to use             (default: uv on PATH, else this clone's .venv/bin/uv)
#   SANDGATE_PYTHON  interpreter to use    (default: python3.11)
#   XDG_CACHE_HOME   where caches live     (default: ~/.cache)
#   UV_CACHE_DIR     uv's download cache   (default: <caches>/sandgate/uv; on the same disk files are linked, not copied)
# shellcheck shell=bash
set -euo pipefail

say() { printf '%s: %s\n' "${me:?}" "$*" >&2; }
die() { say "$*"; exit 1; }

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
caches="${XDG_CACHE_HOME:-${HOME:?HOME is not set; set XDG_CACHE_HOME}/.cache}/sandgate"
uv=${SANDGATE_UV:-uv} python=${SANDGATE_PYTHON:-python3.11}

# pinned_env NAME PINS [OPTION...]: print the path of <caches>/NAME-<first 12 hex digits of PINS' sha256>, built from PINS by
# `uv pip install` with the OPTIONs if it is not there. Before a build it calls `needs`, and after it `works`: functions of
# the caller that die, or fail, when the environment cannot be, or is not, what it is for.
pinned_env() {
    local name=$1 pins=$2 digest
    shift 2
    [ -r "$pins" ] || die "cannot read $pins: is this a whole clone?"
    digest=$(sha256sum "$pins")
    venv="$caches/$name-${digest:0:12}"
    ready="$venv/.sandgate-ready" # written last: a venv cannot be renamed into place, so this file is what publishes it
    if ! have; then
        mkdir -p "$caches" || die "cannot create $caches"
        exec 9>"$venv.lock"
        flock -n 9 || { say "another run is building $venv, waiting for it"; flock 9; }
        have || build "$pins" "$@"
    fi
    printf '%s\n' "$venv"
}

# A marker whose interpreter is gone (Python upgraded or removed) is no environment: it is built again.
have() { [ -e "$ready" ] && [ -x "$venv/bin/python" ]; }

needs() { :; }
works() { :; }

build() {
    local pins=$1 began=$SECONDS
    shift
    if ! command -v "$uv" >/dev/null 2>&1; then
        [ -z "${SANDGATE_UV:-}" ] || die "SANDGATE_UV=$SANDGATE_UV is not a program"
        uv="$root/.venv/bin/uv"
        [ -x "$uv" ] || die "uv not found: 'pip install uv', or set SANDGATE_UV, or make this clone's .venv"
    fi
    "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null \
        || die "'$python' is not Python 3.11 (the pins were resolved for 3.11); set SANDGATE_PYTHON"
    needs
    export UV_CACHE_DIR=${UV_CACHE_DIR:-$caches/uv} UV_PYTHON_DOWNLOADS=never UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-300}
    # The machine's own certificates, as pip uses them.
    export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-1}
    # uv does not read pip's settings; a machine that names its package index to pip only should still work.
    if [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}${UV_CONFIG_FILE:-}" ] && [ -n "${PIP_INDEX_URL:-}" ]; then
        export UV_DEFAULT_INDEX="$PIP_INDEX_URL"
    fi
    unset VIRTUAL_ENV PYTHONPATH PYTHONHOME CONDA_PREFIX
    say "building $venv"
    rm -rf -- "$venv"
    "$uv" venv --quiet --python "$python" "$venv" || die "uv could not make a virtual environment"
    # --compile-bytecode: without it each process (an engine's three, a Ray cluster's, every agent, which may not write
    # there) compiles for seconds at every start.
    "$uv" pip install --quiet --python "$venv/bin/python" --compile-bytecode --no-deps "$@" -r "$pins" 9>&- \
        || die "installation failed (see uv's message above); nothing was published, run again to start over"
    works 9>&- || die "the environment was installed, but does not work (see above)"
    date -u +%FT%TZ >"$ready"
    say "ready after $((SECONDS - began)) s"
}

linux_x86_64() { [ "$(uname -sm)" = "Linux x86_64" ] || die "the pins are wheels for Linux x86_64, this is $(uname -sm)"; }
