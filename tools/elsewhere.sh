#!/usr/bin/env bash
# Run the whole suite in an environment such as most people have.
#
#     tools/elsewhere.sh [--keep] [PYTHON]       # by default the python3 of the PATH
#     tools/elsewhere.sh /usr/bin/python3        # Debian's own, with python3-venv and python3-dev
#     tools/elsewhere.sh --with torch==2.9.0 --with numpy==1.26.0 python3.10    # the lowest
#
# Snip is developed beside a torch without CUDA, and with whatever else has gathered on a machine.
# Here `make test` runs in a fresh clone of the present commit, with no settings of pip or of the
# shell but the system's PATH: pip takes the torch that it takes by default, which has CUDA, in the
# version of constraints.txt or of --with, and a torchvision whose operators load. What works only
# where it was written fails here.
#
# It needs 15 GB of disk, which are given back unless --keep is there, and half an hour on two idle
# cores. The result takes the place of that of the same kind of environment in
# results/elsewhere.json, which is committed. The exit code is that of `make test`, or of `make check`
# (the tests without lint and types) where versions were chosen.
set -euo pipefail

usage="usage: tools/elsewhere.sh [--keep] [--with PACKAGE==VERSION]... [PYTHON]"
keep=false
python=python3
versions=()
while (($#)); do
    case $1 in
    --keep) keep=true ;;
    --with)
        case ${2:-} in
        *==*) versions+=("$2"); shift ;;
        *) echo "--with takes PACKAGE==VERSION, not '${2:-}'. $usage" >&2; exit 2 ;;
        esac
        ;;
    -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) echo "$usage" >&2; exit 2 ;;
    *) python=$1 ;;
    esac
    shift
done

root=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
clone=$folder/snip
finish() {
    if $keep; then echo "Kept: $clone"; else rm -rf "$folder"; fi
}
trap finish EXIT

ordinary() { # a command, as in a new shell of a user without any settings but a proxy's certificate
    env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME="$HOME" \
        PIP_CONFIG_FILE=/dev/null PIP_FIND_LINKS= PIP_CERT="${PIP_CERT:-}" "$@"
}

command -v "$python" >/dev/null || { echo "There is no Python at $python." >&2; exit 2; }
# The program itself: what chooses between several Pythons needs the PATH.
python=$("$python" -c 'import os, sys; print(os.path.realpath(sys.executable))')
"$python" -c 'import ensurepip, venv' || {
    echo "$python cannot make environments: install its venv (Debian: python3-venv)" >&2
    exit 1
}
free=$(df --output=avail --block-size=1G "$folder" | tail -1)
if ((free < 15)); then
    echo "$folder has $free GB of free disk, and 15 are needed: set TMPDIR" >&2
    exit 1
fi
[ -z "$(git -C "$root" status --porcelain)" ] || echo "Changes that are not committed are left out." >&2

git clone -q "$root" "$clone"
for wanted in "${versions[@]}"; do # in the place of the version that constraints.txt has
    sed -i "/^${wanted%%[=<>]*}[=<>]/d" "$clone/constraints.txt"
    echo "$wanted" >>"$clone/constraints.txt"
done
code=0
# Types and format are those of the versions in constraints.txt.
target=$( ((${#versions[@]})) && echo check || echo test)
ordinary make -C "$clone" "$target" PYTHON="$python" PYTEST="-n auto --junitxml=$folder/tests.xml" ||
    code=$?
[ -e "$folder/tests.xml" ] || { echo "No test ran." >&2; exit "$((code ? code : 1))"; }

PYTHONPATH=$clone/bench "$clone/.venv/bin/python" "$clone/tools/elsewhere_result.py" \
    "$folder/tests.xml" "$root/results/elsewhere.json" "make $target" "$code" "$(git -C "$clone" rev-parse --short=12 HEAD)"
exit "$code"
