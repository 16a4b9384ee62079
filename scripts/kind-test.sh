#!/usr/bin/env bash
# tests/anycluster on a cluster: `make kind-test`.
#
#   scripts/kind-test.sh KUBECONFIG CONTEXT IMAGES TAG      any of them may be empty
#
# Without KUBECONFIG a cluster is made here, as kind makes it. Without IMAGES our images are built here and loaded with `kind load`,
# which needs a context kind-*; IMAGES is where `images/build.sh --registry IMAGES --tag TAG --push operator gateway fetcher`
# has put them for other clusters. A context that is not kind-* must be named: this installs Sandgate, and removes it.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
kubeconfig=$1 context=$2 images=$3 tag=$4
readonly NAMES=(operator gateway fetcher)

load_into_kind() { # name of the kind cluster
    local image
    command -v kind >/dev/null || { echo "$0: kind is not on the PATH; or say IMAGES=" >&2; exit 2; }
    for image in $(images/build.sh --registry localhost --tag any "${NAMES[@]}" | tail -n 1); do
        if command -v buildah >/dev/null; then # as images/build.sh chooses
            local archive
            archive=$(mktemp --suffix .tar)
            buildah push -q "$image" "docker-archive:$archive:$image"
            kind load image-archive --name "$1" "$archive"
            rm -f "$archive"
        else
            kind load docker-image --name "$1" "$image"
        fi
    done
}

if [ -n "$kubeconfig" ]; then
    case "$kubeconfig" in *:*) echo "$0: KUBECONFIG: one file, not several" >&2; exit 2 ;; esac
    [ -r "$kubeconfig" ] || { echo "$0: KUBECONFIG: $kubeconfig cannot be read" >&2; exit 2; }
    export SANDGATE_ANY_KUBECONFIG=$kubeconfig SANDGATE_ANY_CONTEXT=$context
    current=$(KUBECONFIG=$kubeconfig kubectl config current-context)
    if [ -n "$images" ]; then
        [ -n "$tag" ] || { echo "$0: TAG: say which of the images in IMAGES" >&2; exit 2; }
        export SANDGATE_ANY_REGISTRY=$images SANDGATE_ANY_TAG=$tag
    elif [ "${current#kind-}" != "$current" ]; then
        load_into_kind "${current#kind-}"
    else
        echo "$0: IMAGES: where the nodes of $current find Sandgate's images (only into kind they are loaded from here)" >&2
        exit 2
    fi
fi
exec .venv/bin/pytest -n0 tests/anycluster
