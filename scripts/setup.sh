#!/usr/bin/env bash
# Makes a virtual environment with pinned versions: scripts/setup.sh VENV [EXTRA…]
# A stamp inside VENV remembers what was installed from which pyproject.toml and constraints.txt: a second call is instant.
# PYTHON=… names the interpreter, PIP_ARGS=… adds arguments for pip.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${1:?usage: scripts/setup.sh VENV [EXTRA…]}
shift
extras=$(printf '%s\n' "$@" | sort -u | paste -sd, -)
stamp=$venv/.uniarena-setup
log=$venv/setup.log

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$@"; exit 1; }

# The stamp: where this clone lay, what the pins were, which extras were installed.
key=$(cat pyproject.toml constraints.txt scripts/setup.sh | cksum)
if [ -f "$stamp" ]; then
    { read -r place; read -r old_key; read -r installed; } <"$stamp" || true
    if [ "$place" != "$PWD" ]; then
        say "$venv was made for $place: making it anew"
        rm -rf "$venv"
    elif [ "$old_key" = "$key" ]; then
        extras=$(printf '%s,%s' "$extras" "$installed" | tr , '\n' | sed '/^$/d' | sort -u | paste -sd, -)
        [ "$extras" != "$installed" ] || exit 0
    fi
fi

find_python() {
    local candidate without_venv=
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || continue
        if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
            echo "$candidate"
            return
        fi
        without_venv=$candidate
    done
    if [ -n "$without_venv" ]; then
        fail "$without_venv cannot make virtual environments. This one line brings what is missing:
    sudo apt-get install python3-venv"
    fi
    fail "no Python 3.11, 3.12 or 3.13 found (looked for: ${PYTHON:-python3 python3.13 python3.12 python3.11}).
    Install one, or name it: make train PYTHON=/path/to/python3.12"
}

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    say "making $venv with $("$python" --version)"
    rm -rf "$venv"
    "$python" -m venv "$venv" || fail "making $venv failed. On Debian and Ubuntu this brings what is missing:
    sudo apt-get install python3-venv"
fi

# What all but one extra live with, the extra that clashes must not be held to.
clash='^$'
case ,$extras, in
    *,metaworld,*) clash='^(mujoco|dm-control)==' ;;
    *,legacy-gym,*) clash='^numpy==' ;;
esac
grep -Ev "$clash" constraints.txt >"$venv/constraints.txt"

rm -f "$stamp"
say "installing uniarena${extras:+[$extras]} with the versions of constraints.txt into $venv (torch is most of it; a few minutes)"
started=$SECONDS
install() {
    # Word splitting is wanted: PIP_ARGS holds several arguments.
    # shellcheck disable=SC2086
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --quiet \
        -c "$venv/constraints.txt" ${PIP_ARGS:-} "$@" >>"$log" 2>&1 ||
        fail "pip failed. The end of $log:
$(tail -n 15 "$log" | cut -c1-300)"
}
: >"$log"
# The package itself is built by the pinned backend, hence without the isolation that would fetch the newest one.
install hatchling editables
install --no-build-isolation --no-deps -e .
install "uniarena${extras:+[$extras]}"
printf '%s\n%s\n%s\n' "$PWD" "$key" "$extras" >"$stamp"
say "done in $((SECONDS - started)) s"
