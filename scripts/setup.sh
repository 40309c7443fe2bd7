#!/usr/bin/env bash
# Makes .venv from uv.lock. Uses uv from PATH, else installs it into build/uv by pip.
set -euo pipefail
cd "$(dirname "$0")/.."

find_python() {
    local candidate
    for candidate in python3.11 python3.12 python3.13 python3; do
        if command -v "$candidate" >/dev/null &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    echo "setup: Python 3.11 or newer is needed; install python3 and python3-venv" >&2
    return 1
}

python=$(find_python)
if command -v uv >/dev/null; then
    uv=uv
else
    if [ ! -x build/uv/bin/uv ]; then
        echo "setup: uv is not on PATH; installing it into build/uv"
        "$python" -m venv build/uv
        build/uv/bin/pip install --quiet --disable-pip-version-check uv
    fi
    uv=build/uv/bin/uv
fi
UV_PYTHON_DOWNLOADS=never "$uv" sync --frozen --all-extras --quiet --python "$python"
echo "setup: .venv is ready ($(.venv/bin/python --version))"
