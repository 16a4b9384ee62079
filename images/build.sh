#!/usr/bin/env bash
# Build Sandgate's images with buildah or docker, whichever is there.
#
#   images/build.sh [--registry PREFIX] [--tag TAG] [--base IMAGE] [--push] [operator|gateway|fetcher|shop ...]
#
# Default: all four, tagged `<PREFIX/>sandgate-<name>:<the chart's appVersion>`, which is what the chart asks for, on
# python:3.11-slim. BUILD_ARGS are further options of the
# builder, e.g. BUILD_ARGS="--isolation chroot --network host -v /etc/pip.conf:/etc/pip.conf:ro" for buildah in a
# container. The last line of output is the images, separated by blanks.
set -euo pipefail
cd "$(dirname "$0")/.."

registry="" tag="$(sed -n 's/^appVersion: "\(.*\)"$/\1/p' charts/sandgate/Chart.yaml)" base=python:3.11-slim push="" names=()
while [ $# -gt 0 ]; do
  case "$1" in
    --registry) registry="${2%/}/"; shift 2 ;;
    --tag) tag="$2"; shift 2 ;;
    --base) base="$2"; shift 2 ;;
    --push) push=yes; shift ;;
    operator | gateway | fetcher | shop) names+=("$1"); shift ;;
    *) echo "$0: what is $1? See the head of this file." >&2; exit 2 ;;
  esac
done
[ ${#names[@]} -gt 0 ] || names=(operator gateway fetcher shop)

if command -v buildah >/dev/null; then
  build=(buildah bud --layers) send=(buildah push)
elif command -v docker >/dev/null; then
  build=(docker build) send=(docker push)
else
  echo "$0: neither buildah nor docker is here" >&2
  exit 1
fi

built=()
for name in "${names[@]}"; do
  file="images/$name.Dockerfile"
  [ "$name" != shop ] || file=examples/shop/Dockerfile
  image="${registry}sandgate-$name:$tag"
  # shellcheck disable=SC2086 # several options in one variable
  "${build[@]}" ${BUILD_ARGS:-} --build-arg "BASE=$base" -t "$image" -f "$file" . >&2
  [ -z "$push" ] || "${send[@]}" "$image" >&2
  built+=("$image")
done
echo "${built[@]}"
