# shellcheck shell=bash
# GLM-5.2's geometry on two Hopper GPUs: the one configuration. Sourced by the scripts beside it.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
checkout=$(cd "$here/../.." && pwd)
# shellcheck source=../common.sh
source "$here/../common.sh"

readonly tp_size=2
readonly work=${WORK:-$checkout/.work/h200}
readonly environment="use a Python environment with SGLang and sglang-cp (see the README beside this script)"
gpus=${CUDA_VISIBLE_DEVICES:-0,1}

# Of every server, whatever its arm Graphs are captured up to the largest concurrency that is measured.
# shellcheck disable=SC2034
readonly server_flags=(
    --attention-backend dsa --dsa-prefill-backend flashmla_sparse --dsa-decode-backend flashmla_sparse
    --kv-cache-dtype bfloat16
    --chunked-prefill-size 32768 --context-length 131072 --mem-fraction-static 0.8
    --cuda-graph-max-bs 16
)

# The GPUs as torch, and so SGLang, will see them.
check_gpus() {
    check_gpu_list 0,1
    local probe found cuda count capabilities
    probe='import torch; gpus = range(torch.cuda.device_count())
print(torch.version.cuda, len(gpus), *{torch.cuda.get_device_capability(gpu)[0] for gpu in gpus})'
    found=$(CUDA_VISIBLE_DEVICES=$gpus python3 -c "$probe" 2>/dev/null) ||
        refuse "\`$(command -v python3) -c 'import torch'\` fails: $environment."
    read -r cuda count capabilities <<<"$found"
    [[ $cuda != None ]] || refuse "The torch of $(command -v python3) is not built for CUDA: $environment."
    ((count >= tp_size)) ||
        refuse "$tp_size GPUs are needed, and of the GPUs $gpus torch sees $count: name others with --gpus."
    [[ $capabilities == 9 ]] ||
        refuse "The GPUs $gpus are of compute capability ${capabilities// /.x and }.x, this configuration is for" \
            "Hopper (9.x): name others with --gpus."
}

# geometry NAME: a model directory of GLM-5.2's geometry without weights, made if need be; its path in $model.
geometry() {
    local sizes=(--layers 6 --experts 32)
    [[ $1 == every-layer ]] || sizes=(--layers 8 --experts 32 --index-share)
    model=$work/$1
    (cd "$checkout" && python3 -m evals.geometry "$model" "${sizes[@]}")
}
