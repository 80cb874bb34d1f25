#!/bin/sh
# Installs phi4mm for the user who runs this, on Debian, Ubuntu or macOS:
#   sh deploy/install.sh
# Makes a virtual environment in $PHI4MM_HOME (default: ~/.local/share/phi4mm) and a link to the
# command in $PHI4MM_BIN (default: ~/.local/bin).  What the system lacks is installed with apt-get
# or Homebrew, through sudo where this is not root.  A second run updates the first.
#   --dry-run   say what would be done
#   --extras L  optional parts, such as media or media,ray (default: media)
set -eu

HOME_DIR=${PHI4MM_HOME:-$HOME/.local/share/phi4mm}
BIN_DIR=${PHI4MM_BIN:-$HOME/.local/bin}
SOURCE=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
EXTRAS=media
DRY_RUN=

say() { printf 'install: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

run() {
    say "$*"
    [ -n "$DRY_RUN" ] || "$@"
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        run "$@"
    elif command -v sudo >/dev/null; then
        run sudo "$@"
    else
        fail "needs root for: $*"
    fi
}

while [ $# -gt 0 ]; do
    case $1 in
        --dry-run) DRY_RUN=1 ;;
        --extras) shift; EXTRAS=${1:?--extras needs a value} ;;
        *) fail "unknown argument $1: use --dry-run, --extras L" ;;
    esac
    shift
done
[ -f "$SOURCE/pyproject.toml" ] || fail "$SOURCE: no pyproject.toml, run this from a checkout"

# A Python that is new enough and can make environments with pip in them.
is_python() {
    "$1" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

find_python() {
    for name in python3 python3.13 python3.12 python3.11 python3.10; do
        if is_python "$name"; then
            command -v "$name"
            return
        fi
    done
}

has_openmp() {
    ldconfig -p 2>/dev/null | grep -q 'libgomp\.so\.1' ||
        /sbin/ldconfig -p 2>/dev/null | grep -q 'libgomp\.so\.1'
}

prepare_linux() {
    packages=
    [ -n "$(find_python)" ] || packages="$packages python3 python3-venv"
    has_openmp || packages="$packages libgomp1"
    if [ "$(uname -m)" != x86_64 ]; then  # the native library is compiled
        command -v c++ >/dev/null || packages="$packages build-essential"
        command -v cmake >/dev/null || packages="$packages cmake"
        is_python python3 && [ ! -f "$(python3 -c 'import sysconfig; print(
            sysconfig.get_path("include"))')/Python.h" ] && packages="$packages python3-dev"
    fi
    [ -n "$packages" ] || return 0
    command -v apt-get >/dev/null ||
        fail "install these with your system's package manager, then run this again:$packages"
    as_root apt-get update -qq
    # one word for each package
    # shellcheck disable=SC2086
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends $packages
}

prepare_macos() {
    xcode-select -p >/dev/null 2>&1 || fail "run xcode-select --install first: it has the compiler"
    [ -z "$(find_python)" ] || return 0
    command -v brew >/dev/null || fail "no Python 3.10 or newer: install one, or https://brew.sh"
    run brew install python@3.12
}

case $(uname -s) in
    Linux) prepare_linux ;;
    Darwin) prepare_macos ;;
    *) fail "$(uname -s): only Linux and macOS are known, see docs/platforms.md" ;;
esac

PYTHON=$(find_python)
if [ -z "$PYTHON" ]; then
    [ -n "$DRY_RUN" ] || fail "no Python 3.10 or newer that can make virtual environments"
    PYTHON=python3
fi
run mkdir -p "$HOME_DIR" "$BIN_DIR"
run "$PYTHON" -m venv "$HOME_DIR/venv"
run "$HOME_DIR/venv/bin/python" -m pip install --quiet --upgrade "${SOURCE}[${EXTRAS}]"
run ln -sf "$HOME_DIR/venv/bin/phi4mm" "$BIN_DIR/phi4mm"
run "$BIN_DIR/phi4mm" devices
case :$PATH: in
    *":$BIN_DIR:"*) say "done: try  phi4mm demo" ;;
    *) say "done: add $BIN_DIR to your PATH, then try  phi4mm demo" ;;
esac
