#!/usr/bin/env bash
# Installs what the browser tests drive: Chromium, and axe-core, the judge of accessibility. Nothing where both are there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

axe_version=4.14.1
axe=.venv/browser/axe-$axe_version.js

if ! command -v chromium >/dev/null; then
  if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
    echo 'tests/browser: there is no Chromium, and only root can install it with apt-get: THE BROWSER TESTS WILL NOT RUN' >&2
    exit 0
  fi
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -qq -y --no-install-recommends chromium >/dev/null
fi

if [ ! -e "$axe" ]; then
  if ! command -v npm >/dev/null; then
    echo 'tests/browser: there is no npm to get axe-core with: THE TEST OF ACCESSIBILITY WILL NOT RUN' >&2
    exit 0
  fi
  got=$(mktemp -d)
  trap 'rm -rf "$got"' EXIT
  npm pack --silent --pack-destination "$got" "axe-core@$axe_version" >/dev/null
  tar -xzf "$got"/axe-core-*.tgz -C "$got"
  mkdir -p "$(dirname "$axe")"
  mv "$got/package/axe.min.js" "$axe"
fi
