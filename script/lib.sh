# Shared by the scripts.

# Prints the comment at the beginning of the script, and ends it, when its usage is asked for; nothing is installed.
tell_usage() {
  local arg
  for arg in "$@"; do
    case "$arg" in
      -h | --help) sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    esac
  done
}

# Makes .venv and installs a requirements file when it, or one it includes, has changed.
ensure_venv() {
  local python="${PYTHON:-python3}"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "cannot set up: Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11" >&2; exit 1; }
  [ -x .venv/bin/python ] || { echo "making .venv …" && "$python" -m venv .venv; }
  install_once "$1" "$1"
}

# install_once FILE WHAT [pip's options]: nothing to do while the requirements are what was installed.
install_once() {
  local file="$1" what="$2" stamp=".venv/installed-$1" sum
  shift 2
  sum="$(cat requirements*.txt | sha256sum)"
  if [ "$(cat "$stamp" 2>/dev/null)" != "$sum" ]; then
    echo "installing $what …"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@" -r "$file" || return
    echo "$sum" > "$stamp"
  fi
}
