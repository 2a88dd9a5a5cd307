#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# From a clean clone to a running server: installs packages, builds, serves the model in models/tenon-mini.
#   ./quickstart.sh                       serve on http://127.0.0.1:8888 until Ctrl-C
#   ./quickstart.sh --ask "QUESTION"      answer once and exit
set -euo pipefail
cd "$(dirname "$0")"

ask=""
case "${1:-}" in
"") ;;
--ask)
    ask="${2:?usage: $0 --ask \"QUESTION\"}"
    ;;
*)
    echo "usage: $0 [--ask \"QUESTION\"]" >&2
    exit 2
    ;;
esac

step() { echo "== $*" >&2; }

step "packages"
packaging/packages.sh build >&2
step "configure (build/quickstart)"
cmake --preset release -B build/quickstart -DTENON_TESTS=OFF -DTENON_CUDA=OFF -DCMAKE_CXX_COMPILER_LAUNCHER=ccache >build-quickstart.log 2>&1 || {
    tail -20 build-quickstart.log >&2
    exit 1
}
mkdir -p build && mv build-quickstart.log build/quickstart/configure.log
step "build (a few minutes the first time)"
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
"$tenon" serve profiles/mini.toml &
server=$!
trap 'kill -TERM $server 2>/dev/null; wait $server 2>/dev/null || true' EXIT
for _ in $(seq 600); do
    if ! kill -0 $server 2>/dev/null; then
        wait $server && code=0 || code=$?
        echo "tenon ended with exit code $code before it was ready; its messages are above" >&2
        exit "$code"
    fi
    if (exec 3<>/dev/tcp/127.0.0.1/8888 && printf 'GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&3 &&
        head -1 <&3 | grep -q " 200 ") 2>/dev/null; then
        cat <<TEXT

Tenon is ready: http://127.0.0.1:8888/v1    (Ctrl-C ends it)

  curl http://127.0.0.1:8888/v1/chat/completions -H 'content-type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "What is 17 plus 25?"}]}'

TEXT
        wait $server
        exit $?
    fi
    sleep 0.1
done
echo "tenon did not become ready within 60 s" >&2
exit 1
