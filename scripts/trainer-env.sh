#!/bin/bash
# Build (once) the environment of one trainer's real packages, and print its path as the last line of stdout.
#
#   scripts/trainer-env.sh verl    -> ~/.cache/sandgate/trainer-verl-<digest of trainer/envs/verl.lock>
#
# verl, AReaL and TRL pin each other out, so each has an environment of its own. Nothing of ours is installed there: put the
# rooms on PYTHONPATH (tests/trainer/verl/test_verl.py does). How, and what it can be told: pinned-env.sh.
me=trainer-env
. "$(dirname -- "${BASH_SOURCE[0]}")/pinned-env.sh"

needs() { linux_x86_64; }

[ $# -eq 1 ] || die "usage: trainer-env.sh NAME (of a trainer/envs/NAME.lock)"
pinned_env "trainer-$1" "$root/trainer/envs/$1.lock" --require-hashes
