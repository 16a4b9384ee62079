#!/bin/bash
# Build (once) the environment of the real engine, a vLLM that runs on a CPU, and print its path as the last line of stdout:
# ~/.cache/sandgate/engine-<digest of engine/requirements.lock>, of 5 GB. How, and what it can be told: pinned-env.sh.
me=engine-env
. "$(dirname -- "${BASH_SOURCE[0]}")/pinned-env.sh"

needs() {
    linux_x86_64
    "$python" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null \
        || die "the engine needs the system library libnuma.so.1: apt-get install libnuma1"
    local free_gib=$(($(df -Pk "$caches" | awk 'NR==2 {print $4}') / 1048576))
    [ "$free_gib" -ge 10 ] || die "$caches has $free_gib GiB free; the build needs 10 (3 download, 5 installed, room to work)"
    say "about 3 GB to download on a cold cache"
}
works() { "$venv/bin/python" -c 'import torch, transformers, vllm.platforms as p; assert p.current_platform.is_cpu()' >&2; }

pinned_env engine "$root/engine/requirements.lock" --require-hashes
