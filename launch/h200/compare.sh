#!/usr/bin/env bash
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

readonly geometries="every-layer index-share"
output=results
load=full
lengths=
concurrency=
rounds=

usage() {
    cat <<END
Usage: ${0##*/} [--NAME VALUE ...] [GEOMETRIES ...] [-- MORE_SGLANG_ARGUMENTS ...]

Measure CP against unpatched SGLang, side by side, on two Hopper GPUs. For each geometry six servers are started one
after the other; points, tables and plots go to DIR, and a run that was stopped goes on where it was.

GEOMETRIES, by default both; GLM-5.2's, random weights:
  every-layer   6 layers, each with an indexer
  index-share   8 layers, of which those after the third share top-k as GLM-5.2's do

  --output DIR        where results go [$output]
  --gpus LIST         GPUs, at least $tp_size [$gpus] (environment: CUDA_VISIBLE_DEVICES)
  --load LOAD         full, or smoke for a few short points [$load]
  --lengths LIST      prompt tokens in place of the load's, such as 1024,40960
  --concurrency LIST  requests at a time in place of the load's, such as 1,16
  --rounds N          requests of a point over its concurrency, in place of the load's

A copy of SGLang and the models go to $work (environment: WORK), logs beside the results.
Exit code 1 if a point failed or a goal was missed. If nothing can be measured: one sentence and exit code 2.
END
}

# A copy of the installed SGLang with upstream's own files, in $upstream.
upstream_tree() {
    local root
    upstream=$work/sglang-$(python3 -c 'from sglang_cp.pin import read_pin; print(read_pin().release)')
    [[ ! -d $upstream ]] || return 0
    root=$(python3 -c 'from sglang_cp.patching.tree import installed_root; print(installed_root())')
    rm -rf "$upstream.partial"
    mkdir -p "$upstream.partial"
    cp -RL "$root/sglang" "$upstream.partial/"
    python3 -m sglang_cp.cli patch revert --root "$upstream.partial"
    mv "$upstream.partial" "$upstream"
}

parse "output gpus load lengths concurrency rounds" "$@"
((${#words[@]} > 0)) || read -ra words <<<"$geometries"
for name in "${words[@]}"; do
    [[ " $geometries " == *" $name "* ]] || refuse "There is no geometry '$name': see --help."
done
[[ $load =~ ^(full|smoke)$ ]] || refuse "--load is one of: full smoke; not '$load'."
check_package "$environment"
python3 -c 'import httpx, matplotlib' 2>/dev/null ||
    refuse "The comparison needs httpx and matplotlib: run \`python3 -m pip install httpx matplotlib\`."
check_gpus
mkdir -p "$output" 2>/dev/null || refuse "The directory '$output' cannot be made: name another with --output."
output=$(cd "$output" && pwd)
upstream_tree

arguments=(--tp-size "$tp_size" --unpatched-path "$upstream")
[[ $load == full ]] || arguments+=(--smoke)
[[ -z $lengths ]] || arguments+=(--lengths "$lengths")
[[ -z $concurrency ]] || arguments+=(--concurrency "$concurrency")
[[ -z $rounds ]] || arguments+=(--rounds "$rounds")
export CUDA_VISIBLE_DEVICES=$gpus
cd "$checkout"
worst=0
for name in "${words[@]}"; do
    geometry "$name"
    code=0
    python3 -m evals.throughput --model-path "$model" --output "$output/$name.jsonl" "${arguments[@]}" \
        -- "${server_flags[@]}" --load-format dummy "${more[@]}" || code=$?
    ((code < 2)) || exit "$code"
    ((code == 0)) || worst=$code
done
exit "$worst"
