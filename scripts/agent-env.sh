#!/bin/bash
# Build (once) the environment of an example's agent from its pinned requirements.txt, and print its path as the last line of
# stdout. For agents whose packages have no place beside ours. Put its bin folder on PATH and run the job:
#
#   PATH="$(scripts/agent-env.sh examples/mini_swe_agent)/bin:$PATH" sandgate run examples/mini_swe_agent/job.yaml
#
# It is ~/.cache/sandgate/agent-mini_swe_agent-<digest of the pins>. How, and what it can be told: pinned-env.sh.
me=agent-env
. "$(dirname -- "${BASH_SOURCE[0]}")/pinned-env.sh"

[ $# -eq 1 ] || die "usage: agent-env.sh FOLDER (one that has a requirements.txt)"
pinned_env "agent-$(basename -- "$(cd -- "$1" && pwd)")" "$1/requirements.txt"
