#!/usr/bin/env bash
# Runs programs under PyTorch on the stand-in, and compares what they print with what another device gave.
#
#   crates/plimsoll-standin/tests/pytorch/run.sh [VERSION [PROGRAM ...]]
#
# VERSION of PyTorch: 2.15.0 (CUDA 13), 2.11.0 (CUDA 13) or 2.8.0 (CUDA 12). PROGRAM: the name of a script in scripts/ or
# of a function of programs.py; without one, all of which something is expected.
#
# `.ci/pytorch` installs PyTorch, once. Where that is not possible (no Python 3 with venv, no registry) it says so, and this script ends
# with status 69. Where expected/ comes from, and with which GPU: expected/README.md.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
version=${1:-2.15.0}
programs=("${@:2}")
expected=$here/expected/$version.txt
if [ ${#programs[@]} = 0 ] && [ -e "$expected" ]; then
    mapfile -t programs < <(cut -d' ' -f1 "$expected" | uniq)
fi

python=$("$here/../../../../.ci/pytorch" "$version") || exit 69

# PLIMSOLL_STANDIN: the library, if it is already built.
library=${PLIMSOLL_STANDIN:-}
if [ -z "$library" ]; then
    (cd "$here" && cargo build --release --locked --quiet -p plimsoll-standin)
    target=$(cd "$here" && cargo metadata --format-version 1 --no-deps | "$python" -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')
    library=$target/release/libplimsoll_standin.so
fi
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
# The folder of src/place.rs.
ln -s "$library" "$folder/libplimsoll_standin.so"
for name in libcuda.so.1 libcuda.so libnvidia-ml.so.1; do ln -s libplimsoll_standin.so "$folder/$name"; done

# Which of the columns are the device's doing: on a card allocated bytes depend on its driver's order of addresses, too.
case $version in
    2.15.0 | 2.8.0) device=(PLIMSOLL_STANDIN_GPU=A100-80GB PLIMSOLL_STANDIN_MEMORY=$((80 << 30)) PLIMSOLL_STANDIN_ADDRESSES=up) columns=1-5 ;;
    2.11.0) device=(PLIMSOLL_STANDIN_GPU=H200) columns=1,2,5 ;;
    *) device=(PLIMSOLL_STANDIN_GPU=A100-80GB) columns=1-5 ;;
esac
# Python before 3.14 may abort (134) when it ends while PyTorch's thread for the backward pass waits for it, on any device;
# by then everything is printed, which is what is judged.
on_the_stand_in() {
    timeout 120 env "${device[@]}" HF_HUB_OFFLINE=1 LD_PRELOAD="$folder/libplimsoll_standin.so" \
        LD_LIBRARY_PATH="$folder" "$python" "$@" || [ $? = 134 ]
}
# Functions of programs.py share a process, as where expected/ comes from; a script's own output passes by.
scripts=() functions=()
for program in "${programs[@]}"; do
    if [ -e "$here/scripts/$program.py" ]; then scripts+=("$program"); else functions+=("$program"); fi
done
if [ ${#functions[@]} -gt 0 ] || [ ${#scripts[@]} = 0 ]; then
    on_the_stand_in "$here/programs.py" "${functions[@]}" > "$folder/printed"
fi
for script in "${scripts[@]}"; do
    (cd "$folder" && on_the_stand_in "$here/scripts/$script.py") | grep "^$script " >> "$folder/printed"
done
if [ ! -e "$expected" ]; then
    cat "$folder/printed"
    echo "PyTorch $version: runs; nothing to compare with" >&2
    exit
fi
for program in "${functions[@]}" "${scripts[@]}"; do grep "^$program " "$expected"; done > "$folder/expected"
diff <(cut -d' ' -f"$columns" "$folder/expected") <(cut -d' ' -f"$columns" "$folder/printed")
echo "PyTorch $version: $(wc -l < "$folder/expected") lines of ${#programs[@]} programs are equal in columns $columns"
