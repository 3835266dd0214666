#!/bin/sh
# Lists what was merged since the last tag, or since the tag given as $1: one line for each change, oldest first.
set -eu
last=${1:-$(git describe --tags --abbrev=0)}
git log --first-parent --reverse --format='%h  %s' "$last"..HEAD
