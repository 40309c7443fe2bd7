#!/usr/bin/env bash
# Makes .venv from uv.lock, by the Python that PYTHON names, or else the best one here. Uses uv from
# PATH, else installs it into build/uv by pip. Spark needs Java: installs it where that is possible,
# and says so where it is not.
set -euo pipefail
cd "$(dirname "$0")/.."

# What an interpreter is: "optimised" (built with profile-guided optimisation, as distributions and
# the official images build theirs), "plain", or nothing where it is too old or cannot make a venv.
readonly KIND='
import ensurepip, sys, sysconfig
if sys.version_info >= (3, 11):
    arguments = sysconfig.get_config_var("CONFIG_ARGS") or ""
    optimised = sys.base_prefix == "/usr" or "--enable-optimizations" in arguments
    print("optimised" if optimised else "plain")
'

# The first optimised one, since a plain one runs our code a sixth slower; else the first plain one.
find_python() {
    local name candidate plain=
    for name in python3.11 python3.12 python3.13 python3; do
        while IFS= read -r candidate; do
            case $("$candidate" -c "$KIND" 2>/dev/null) in
            optimised) echo "$candidate" && return ;;
            plain) plain=${plain:-$candidate} ;;
            esac
        done < <(type -ap "$name" || true; echo "/usr/bin/$name")
    done
    if [ -z "$plain" ]; then
        echo "setup: Python 3.11 or newer is needed; install python3 and python3-venv" >&2
        return 1
    fi
    echo "$plain"
}

# The major version of the java that Spark would start; 0 if there is none.
java_version() {
    local java=${JAVA_HOME:+$JAVA_HOME/bin/}java
    { "$java" -version 2>&1 || true; } | sed -n 's/.* version "\([0-9]*\).*/\1/p' | grep . || echo 0
}

install_java() {
    [ "$(java_version)" -lt 17 ] || return 0
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "setup: Java 17 or newer is missing: backups and compaction, and their tests, need" \
            "it; install a JRE (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME" >&2
        return 0
    fi
    echo "setup: Java 17 or newer is missing; installing it for Spark by apt-get"
    apt-get update -qq
    local name
    for name in openjdk-17-jre-headless default-jre-headless; do
        if DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$name" \
            >/dev/null; then
            return 0
        fi
    done
    echo "setup: apt-get could not install a JRE; see above" >&2
    return 1
}

install_java
python=${PYTHON:-$(find_python)}
if command -v uv >/dev/null; then
    uv=uv
else
    if [ ! -x build/uv/bin/uv ]; then
        echo "setup: uv is not on PATH; installing it into build/uv"
        "$python" -m venv build/uv
        build/uv/bin/pip install --quiet --disable-pip-version-check --require-hashes \
            --requirement scripts/uv.txt
    fi
    uv=build/uv/bin/uv
fi
UV_PYTHON_DOWNLOADS=never "$uv" sync --frozen --all-extras --quiet --python "$python"
echo "setup: .venv is ready ($(.venv/bin/python --version))"
