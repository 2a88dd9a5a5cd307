#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# From a clean clone to a running server: installs packages, builds, serves the model in models/tenon-mini.
set -euo pipefail
cd "$(dirname "$0")"

usage() {
    cat <<'TEXT'
usage: ./quickstart.sh [--port N] [--ask "QUESTION"]
  (nothing)          serve on http://127.0.0.1:8888 until Ctrl-C
  --port N           serve on another port
  --ask "QUESTION"   answer once and exit; no server
Installs what is missing of the packages in packaging/packages.sh (as root or with sudo), builds into build/quickstart.
TEXT
}
wrong() {
    echo "quickstart: $*" >&2
    usage >&2
    exit 2
}

ask=""
port=8888
while [ $# -gt 0 ]; do
    case "$1" in
    -h | --help)
        usage
        exit 0
        ;;
    --ask)
        [ -n "${2:-}" ] || wrong "--ask needs a question"
        ask="$2"
        shift 2
        ;;
    --port)
        [[ "${2:-}" =~ ^[1-9][0-9]{0,4}$ && "$2" -le 65535 ]] || wrong "--port needs a number from 1 to 65535"
        port="$2"
        shift 2
        ;;
    *) wrong "unknown argument '$1'" ;;
    esac
done

step() { echo "== $*" >&2; }

# Before the build, which takes minutes; and so that the wait below does not take another server for ours.
if [ -z "$ask" ] && (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
    echo "quickstart: port $port is taken; choose another one with --port N" >&2
    exit 1
fi
step "packages"
packaging/packages.sh build >&2
step "configure (build/quickstart)"
mkdir -p build/quickstart
cmake --preset release -B build/quickstart -DTENON_TESTS=OFF -DTENON_CUDA=OFF -DCMAKE_CXX_COMPILER_LAUNCHER=ccache >build/quickstart/configure.log 2>&1 || {
    tail -20 build/quickstart/configure.log >&2
    exit 1
}
step "build (a few minutes the first time; progress: tail -f build/quickstart/build.log)"
cmake --build build/quickstart >build/quickstart/build.log 2>&1 || {
    grep -E "error|FAILED" build/quickstart/build.log | head -20 >&2
    echo "the whole log: build/quickstart/build.log" >&2
    exit 1
}
tenon=build/quickstart/bin/tenon

if [ -n "$ask" ]; then
    exec "$tenon" chat profiles/mini.toml --once "$ask"
fi

step "start"
"$tenon" serve profiles/mini.toml --set "frontend.bind=127.0.0.1:$port" &
server=$!
trap 'kill -TERM $server 2>/dev/null; wait $server 2>/dev/null || true' EXIT
for _ in $(seq 600); do
    if ! kill -0 $server 2>/dev/null; then
        wait $server && code=0 || code=$?
        echo "tenon ended with exit code $code before it was ready; its messages are above" >&2
        exit "$code"
    fi
    if (exec 3<>"/dev/tcp/127.0.0.1/$port" && printf 'GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&3 &&
        head -1 <&3 | grep -q " 200 ") 2>/dev/null; then
        cat <<TEXT

Tenon is ready: http://127.0.0.1:$port/v1    (Ctrl-C ends it)

  curl http://127.0.0.1:$port/v1/chat/completions -H 'content-type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "What is 17 plus 25?"}]}'

In another terminal:

  export PATH="$PWD/build/quickstart/bin:\$PATH"
  tenon chat http://127.0.0.1:$port

TEXT
        wait $server
        exit $?
    fi
    sleep 0.1
done
echo "tenon did not become ready within 60 s" >&2
exit 1
