#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs the distribution's packages that building or testing needs: packages.sh build|test
# Debian 12 is what this list was run on; the Ubuntu 24.04 list is written from its archive and untested.
set -euo pipefail

build=(g++ cmake ninja-build pkg-config ccache git ca-certificates
    libboost-dev libpoco-dev libssl-dev libtomlplusplus-dev libspdlog-dev nlohmann-json3-dev libcli11-dev
    prometheus-cpp-dev libpcre2-dev libicu-dev libhwy-dev liburing-dev libxxhash-dev)
test=(libgtest-dev libgmock-dev libbenchmark-dev clang-14 clang-format-14 libclang-rt-14-dev python3 python3-venv
    binutils curl)

. /etc/os-release
case "${ID:-}:${VERSION_ID:-}" in
debian:12 | ubuntu:24.04) ;;
*) echo "packages: ${PRETTY_NAME:-this system} is neither Debian 12 nor Ubuntu 24.04; package names may differ" >&2 ;;
esac

case "${1:-}" in
build) want=("${build[@]}") ;;
test) want=("${build[@]}" "${test[@]}") ;;
*)
    echo "usage: $0 build|test" >&2
    exit 2
    ;;
esac

missing=()
for package in "${want[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q "install ok installed" || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
    echo "packages: all ${#want[@]} present"
    exit 0
fi
root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
        echo "packages: missing ${missing[*]}; run as root or install sudo" >&2
        exit 1
    }
    root=(sudo)
fi
echo "packages: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${root[@]}" apt-get update -qq
"${root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null || {
    echo "packages: apt-get could not install: ${missing[*]}" >&2
    exit 1
}
