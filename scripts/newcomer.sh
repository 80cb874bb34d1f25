#!/bin/sh
# A newcomer's path: the lines of README.md, "The whole path, without the weights", in a copy of this
# checkout, with an empty environment and an empty home.
#   scripts/newcomer.sh [FOLDER]      (default: a temporary one, removed at the end)
# Nothing is done that the README does not say.  The first line that fails ends it.
set -eu

SOURCE=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
HEADING='## The whole path, without the weights'

lines() {
    awk -v heading="$HEADING" '
        $0 == heading { found = 1; next }
        found && /^## / { exit }
        found && /^```sh$/ { inside = 1; next }
        inside && /^```$/ { exit }
        inside
    ' "$SOURCE/README.md"
}

if [ $# -gt 0 ]; then
    FOLDER=$1
    mkdir -p "$FOLDER"
else
    FOLDER=$(mktemp -d)
    trap 'rm -rf "$FOLDER"' EXIT
fi
[ -z "$(ls -A "$FOLDER")" ] || { echo "newcomer: $FOLDER is not empty" >&2; exit 2; }
mkdir "$FOLDER/home" "$FOLDER/phi4mm"
tar -c -C "$SOURCE" --exclude=./.git --exclude=./.venv --exclude=./build --exclude=__pycache__ . |
    tar -x -C "$FOLDER/phi4mm"
[ -n "$(lines)" ] || { echo "newcomer: README.md has no lines below '$HEADING'" >&2; exit 2; }
cd "$FOLDER/phi4mm"
{ echo "set -e; trap 'kill %1 2>/dev/null' EXIT"; lines; } > "$FOLDER/path.sh"
# bash -m: the server is job 1, as at a terminal
env -i PATH="${NEWCOMER_PATH:-/usr/local/bin:/usr/bin:/bin}" HOME="$FOLDER/home" LANG=C.UTF-8 ${PIP_CERT:+PIP_CERT="$PIP_CERT"} \
    bash -m -x "$FOLDER/path.sh"
echo "newcomer: all of it works" >&2
