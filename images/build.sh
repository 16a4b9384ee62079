#!/usr/bin/env bash
# Build Sandgate's images with buildah or docker, whichever is there.
#
#   images/build.sh [--registry PREFIX] [--tag TAG] [--base IMAGE] [--platform LIST] [--sbom FOLDER] [--source URL] [--push]
#                   [operator|gateway|fetcher|shop ...]
#
# Default: all four, tagged `<PREFIX/>sandgate-<name>:<the chart's appVersion>`, which is what the chart asks for, on
# python:3.11-slim, for this machine's platform.
#
#   --base python:3.11-slim@sha256:...   a base that cannot move; of a list of platforms, the digest of the list
#   --platform linux/amd64,linux/arm64   one image for each, tagged TAG-<arch>, and TAG as the list of them. What runs in
#                                        a build (pip) runs as the other platform: qemu-user-static, or such a machine
#   --sbom FOLDER                        FOLDER/sandgate-<name>[-<arch>].cdx.json: what each image holds (scripts/sbom.py,
#                                        with the Python of `make venv`, or $SBOM_PYTHON)
#   --source URL                         label org.opencontainers.image.source; default: git's origin, if it is a web address
#
# BUILD_ARGS and PUSH_ARGS are further options of the builder, e.g. BUILD_ARGS="--isolation chroot --network host
# -v /etc/pip.conf:/etc/pip.conf:ro" for buildah in a container. The last line of output is the images, separated by blanks.
set -euo pipefail
cd "$(dirname "$0")/.."

registry="" tag="$(sed -n 's/^appVersion: "\(.*\)"$/\1/p' charts/sandgate/Chart.yaml)" base=python:3.11-slim push="" names=()
platforms=() sbom="" source=""
while [ $# -gt 0 ]; do
  case "$1" in
    --registry) registry="${2%/}/"; shift 2 ;;
    --tag) tag="$2"; shift 2 ;;
    --base) base="$2"; shift 2 ;;
    --platform) IFS=, read -ra platforms <<<"$2"; shift 2 ;;
    --sbom) sbom="$2"; shift 2 ;;
    --source) source="$2"; shift 2 ;;
    --push) push=yes; shift ;;
    operator | gateway | fetcher | shop) names+=("$1"); shift ;;
    *) echo "$0: what is $1? See the head of this file." >&2; exit 2 ;;
  esac
done
[ ${#names[@]} -gt 0 ] || names=(operator gateway fetcher shop)
for platform in "${platforms[@]}"; do
  [[ "$platform" =~ ^linux/[a-z0-9]+(/v[0-9]+)?$ ]] || { echo "$0: --platform $platform: must be as linux/arm64" >&2; exit 2; }
done

if command -v buildah >/dev/null; then
  tool=buildah build=(buildah bud --layers) send=(buildah push)
elif command -v docker >/dev/null; then
  tool=docker build=(docker build) send=(docker push)
  [ ${#platforms[@]} -eq 0 ] || [ -n "$push" ] || { echo "$0: docker keeps a list of platforms in a registry only: --push" >&2; exit 2; }
else
  echo "$0: neither buildah nor docker is here" >&2
  exit 1
fi

[[ "$base" == *@sha256:* ]] || echo "$0: the base $base is a tag, which moves; --base NAME@sha256:... does not" >&2
if [ -x .venv/bin/python ]; then sbom_python=.venv/bin/python; else sbom_python=python3; fi
sbom_python="${SBOM_PYTHON:-$sbom_python}"
# Said before the first build, which takes minutes.
[ -z "$sbom" ] || "$sbom_python" scripts/sbom.py --help >/dev/null || { echo "$0: --sbom needs the Python of make venv" >&2; exit 1; }

# Labels say nothing of this machine: an origin that is a path, or has a name or a key in it, is left out, and so is a base
# that is a file.
[ -n "$source" ] || source="$(git config --get remote.origin.url 2>/dev/null | grep -E '^https?://[^@]+$' || true)"
revision="$(git rev-parse HEAD 2>/dev/null || true)"
[ -z "$revision" ] || git diff --quiet HEAD 2>/dev/null || revision+=-modified

labels_of() { # NAME: options, one a line
  local key
  declare -A said=([title]="sandgate-$1" [version]="$tag" [licenses]=Apache-2.0 [base.name]="${base%@sha256:*}")
  said[source]="$source" said[revision]="$revision"
  [[ "$base" != *@sha256:* ]] || said[base.digest]="${base##*@}"
  [[ "$base" != *:/* ]] || said[base.name]=""
  for key in base.digest base.name licenses revision source title version; do
    [ -z "${said[$key]:-}" ] || printf '%s\n' --label "org.opencontainers.image.$key=${said[$key]}"
  done
}

# What the image holds, read from outside: nothing of it runs.
write_sbom() { # IMAGE NAME FILE
  local container
  if [ "$tool" = buildah ]; then
    container="$(buildah from --pull-never "$1")"
    # shellcheck disable=SC2016 # the inner shell has a user namespace, where it needs one
    tar_of='tar -C "$(buildah mount "$0")" --one-file-system -c .'
    if [ "$(id -u)" -eq 0 ]; then sh -c "$tar_of" "$container"; else buildah unshare sh -c "$tar_of" "$container"; fi
    buildah rm "$container" >/dev/null
  else
    container="$(docker create "$1" none)"
    docker export "$container"
    docker rm "$container" >/dev/null
  fi | "$sbom_python" scripts/sbom.py --name "$2" --version "$tag" --out "$3"
}

build_one() { # NAME IMAGE FILE [PLATFORM]
  local labels
  mapfile -t labels < <(labels_of "$1")
  # shellcheck disable=SC2086 # several options in one variable
  "${build[@]}" ${BUILD_ARGS:-} ${4:+--platform "$4"} "${labels[@]}" --build-arg "BASE=$base" -t "$2" -f "$3" . >&2 || {
    [ -z "${4:-}" ] || echo "$0: $1 was not built for $4; 'exec format error' says that this machine cannot run its" \
      "programs: install qemu-user-static (binfmt), or build on such a machine" >&2
    exit 1
  }
}

join_list() { # IMAGE PART...
  local image="$1" part
  shift
  if [ "$tool" = buildah ]; then
    ! buildah manifest exists "$image" 2>/dev/null || buildah manifest rm "$image" >&2
    buildah manifest create "$image" >&2
    for part in "$@"; do # by its id: a name without a registry is taken for one of docker.io there
      buildah manifest add "$image" "containers-storage:$(buildah inspect --type image --format '{{.FromImageID}}' "$part")" >&2
    done
    # shellcheck disable=SC2086 # several options in one variable
    [ -z "$push" ] || buildah manifest push --all ${PUSH_ARGS:-} "$image" "docker://$image" >&2
  else
    # shellcheck disable=SC2086
    for part in "$@"; do docker push ${PUSH_ARGS:-} "$part" >&2; done
    docker manifest create "$image" "$@" >&2
    docker manifest push --purge "$image" >&2
  fi
}

built=()
for name in "${names[@]}"; do
  file="images/$name.Dockerfile"
  [ "$name" != shop ] || file=examples/shop/Dockerfile
  image="${registry}sandgate-$name:$tag"
  if [ ${#platforms[@]} -eq 0 ]; then
    build_one "$name" "$image" "$file"
    [ -z "$sbom" ] || write_sbom "$image" "sandgate-$name" "$sbom/sandgate-$name.cdx.json"
    # shellcheck disable=SC2086
    [ -z "$push" ] || "${send[@]}" ${PUSH_ARGS:-} "$image" >&2
  else
    parts=()
    for platform in "${platforms[@]}"; do
      arch="${platform#linux/}" arch="${arch/\//-}"
      parts+=("$image-$arch")
      build_one "$name" "$image-$arch" "$file" "$platform"
      [ -z "$sbom" ] || write_sbom "$image-$arch" "sandgate-$name" "$sbom/sandgate-$name-$arch.cdx.json"
    done
    join_list "$image" "${parts[@]}"
  fi
  built+=("$image")
done
echo "${built[@]}"
