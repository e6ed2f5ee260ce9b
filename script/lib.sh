# Shared by the scripts: makes .venv and installs a requirements file when it, or one it includes, has changed.
ensure_venv() {
  local python="${PYTHON:-python3}" stamp sum
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "cannot set up: Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11" >&2; exit 1; }
  [ -x .venv/bin/python ] || "$python" -m venv .venv
  stamp=".venv/installed-$1"
  sum="$(cat requirements*.txt | sha256sum)"
  if [ "$(cat "$stamp" 2>/dev/null)" != "$sum" ]; then
    echo "installing $1 …"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -r "$1"
    echo "$sum" > "$stamp"
  fi
}
