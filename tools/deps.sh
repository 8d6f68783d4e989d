#!/usr/bin/env bash
# Installs the Debian packages that build, tests and demo need (docs/dependencies.md). Nothing to do when they are there.
# As root, or where a terminal can answer sudo; else stops with the one line to run.
set -euo pipefail
packages=(
  build-essential cmake ninja-build pkg-config python3
  libtorch-dev libopenblas0-openmp
  libfmt-dev nlohmann-json3-dev libtomlplusplus-dev libpcre2-dev libutf8proc-dev libxxhash-dev
  libopenmpi-dev openmpi-bin
  libgtest-dev libgmock-dev
)
if ! command -v dpkg-query >/dev/null; then
  echo "weft: this is not Debian: install the equivalents of: ${packages[*]}" >&2
  command -v cmake >/dev/null && exit 0
  exit 1
fi
missing=()
for p in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
[ ${#missing[@]} -eq 0 ] && exit 0
install=(apt-get install -y --no-install-recommends "${missing[@]}")
if [ "$(id -u)" = 0 ]; then
  run=()
elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
  run=(sudo)
else
  echo "weft: packages are missing; run this once, then make again:" >&2
  echo "  sudo apt-get update && sudo ${install[*]}" >&2
  exit 1
fi
echo "weft: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${run[@]}" apt-get update -qq
"${run[@]}" "${install[@]}" >/dev/null
