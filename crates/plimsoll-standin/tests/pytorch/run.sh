#!/usr/bin/env bash
# Runs programs.py under PyTorch on the stand-in, and compares what it prints with what another device gave.
#
#   crates/plimsoll-standin/tests/pytorch/run.sh [VERSION]     2.15.0 (CUDA 13), 2.11.0 (CUDA 13) or 2.8.0 (CUDA 12)
#
# PyTorch comes from the package registry (about 3 GB) into PLIMSOLL_PYTORCH_CACHE, by default ~/.cache/plimsoll, and
# stays there. Where expected/ comes from, and with which GPU: expected/README.md.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
version=${1:-2.15.0}
venv=${PLIMSOLL_PYTORCH_CACHE:-$HOME/.cache/plimsoll}/pytorch-$version

if [ ! -e "$venv.complete" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --no-cache-dir "torch==$version" numpy
    touch "$venv.complete"
fi

(cd "$here" && cargo build --release --locked --quiet -p plimsoll-standin)
target=$(cd "$here" && cargo metadata --format-version 1 --no-deps | "$venv/bin/python" -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
# The folder of src/place.rs.
ln -s "$target/release/libplimsoll_standin.so" "$folder"
for name in libcuda.so.1 libcuda.so libnvidia-ml.so.1; do ln -s libplimsoll_standin.so "$folder/$name"; done

# Which of the columns are the device's doing: on a card allocated bytes depend on its driver's order of addresses, too.
case $version in
    2.15.0 | 2.8.0) device=(PLIMSOLL_STANDIN_GPU=A100-80GB PLIMSOLL_STANDIN_MEMORY=$((80 << 30))) columns=1-5 ;;
    2.11.0) device=(PLIMSOLL_STANDIN_GPU=H200) columns=1,2,5 ;;
    *) device=(PLIMSOLL_STANDIN_GPU=A100-80GB) columns=1-5 ;;
esac
expected=$here/expected/$version.txt
# Every program of which something is expected; all of them where nothing is.
programs=$([ ! -e "$expected" ] || cut -d' ' -f1 "$expected" | uniq)
env "${device[@]}" LD_PRELOAD="$folder/libplimsoll_standin.so" LD_LIBRARY_PATH="$folder" \
    "$venv/bin/python" "$here/programs.py" $programs > "$folder/printed"
if [ -e "$expected" ]; then
    diff <(cut -d' ' -f"$columns" "$expected") <(cut -d' ' -f"$columns" "$folder/printed")
    echo "PyTorch $version: $(wc -l < "$expected") lines are equal in columns $columns"
else
    cat "$folder/printed"
    echo "PyTorch $version: runs; nothing to compare with" >&2
fi
