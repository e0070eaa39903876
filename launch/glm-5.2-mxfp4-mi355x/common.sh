# shellcheck shell=bash
# GLM-5.2-MXFP4 on four MI355X: the one configuration, and what must hold before anything is loaded.
# Sourced by the scripts beside it. Source: "Serving GLM-5.2-MXFP4 on AMD Instinct MI355X: When Prefill Context
# Parallelism Pays" (ROCm blogs), whose command this is, flag for flag.

readonly tp_size=4
readonly rocm=7.2
readonly served_model_name=glm-5.2-mxfp4

model=${MODEL_PATH:-/models/GLM-5.2-MXFP4}
port=${PORT:-30003}
gpus=${HIP_VISIBLE_DEVICES:-4,5,6,7}

refuse() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 2
}

refuse_unknown() {
    refuse "Unknown argument $1: see --help; what is meant for SGLang goes after --."
}

# parse "NAME ..." ARGUMENT ...: `--NAME VALUE` sets the variable NAME, other words go to the array `words`, and what
# follows `--` to the array `more`.
parse() {
    local names=" $1 "
    shift
    words=()
    more=()
    while (($# > 0)); do
        case $1 in
            -h | --help)
                usage
                exit 0
                ;;
            --)
                more=("${@:2}")
                return
                ;;
            --*)
                [[ $names == *" ${1#--} "* ]] || refuse_unknown "$1"
                (($# > 1)) || refuse "$1 needs a value: see --help."
                printf -v "${1#--}" %s "$2"
                shift 2
                ;;
            -*)
                refuse_unknown "$1"
                ;;
            *)
                words+=("$1")
                shift
                ;;
        esac
    done
}

check_port() {
    if [[ ! $port =~ ^[1-9][0-9]{0,4}$ ]] || ((port > 65535)); then
        refuse "--port takes a number from 1 to 65535; not '$port'."
    fi
}

check_model() {
    local hint="name a local copy of amd/GLM-5.2-MXFP4 with --model"
    [[ -d $model ]] || refuse "There is no model directory '$model': $hint."
    [[ -f $model/config.json ]] || refuse "'$model' holds no model (no config.json): $hint."
    grep -q '"GlmMoeDsaForCausalLM"' "$model/config.json" ||
        refuse "'$model' holds another model than GLM-5.x (GlmMoeDsaForCausalLM): $hint."
}

check_port_is_free() {
    if (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
        refuse "Port $port is in use: end what listens there, or choose another with --port."
    fi
}

readonly image="use the image that the Dockerfile beside this script makes"

# The package, SGLang's release against the pin (UPSTREAM), the patches: the last two in the words of the patch tool.
check_package() {
    command -v python3 >/dev/null || refuse "There is no python3 on the PATH: $image."
    python3 -c 'import importlib.metadata as installed; installed.version("sglang-cp")' 2>/dev/null ||
        refuse "sglang-cp is not installed for $(command -v python3): run \`python3 -m pip install .\` in a checkout."
    local said
    said=$(python3 -m sglang_cp.cli patch status 2>&1) || refuse "${said#sglang-cp: }"
}

# ROCm and the GPUs as torch, and so SGLang, will see them.
check_gpus() {
    local probe='import torch; print(torch.version.hip, torch.cuda.device_count())' found hip count
    found=$(HIP_VISIBLE_DEVICES=$gpus python3 -c "$probe" 2>/dev/null) ||
        refuse "\`$(command -v python3) -c 'import torch'\` fails: $image."
    read -r hip count <<<"$found"
    [[ $hip != None ]] || refuse "The torch of $(command -v python3) is not built for ROCm: $image."
    [[ $hip == "$rocm".* ]] || refuse "torch is built for ROCm $hip, this configuration is for ROCm $rocm: $image."
    ((count >= tp_size)) || refuse "$tp_size GPUs are needed, and of the GPUs $gpus torch sees $count:" \
        "name others with --gpus, or give the container /dev/kfd and /dev/dri."
}

# What makes a serving script different, set by it: a sentence, the arms (the first by default), flags of SGLang's.
about=""
arms=""
flags=()

# serve ARGUMENT ...: check everything that can be told without loading a weight, then become the server.
serve() {
    read -r arm _ <<<"$arms"
    parse "model port gpus arm" "$@"
    ((${#words[@]} == 0)) || refuse_unknown "${words[0]}"
    [[ " $arms " == *" $arm "* ]] || refuse "--arm is one of: $arms; not '$arm'."
    [[ $gpus =~ ^[0-9]+(,[0-9]+)*$ ]] || refuse "--gpus takes numbers with commas, such as 4,5,6,7; not '$gpus'."
    check_port
    check_model
    check_port_is_free
    check_package
    check_gpus

    local cp=()
    [[ $arm == off ]] || cp=(--enable-prefill-cp --cp-strategy interleave --cp-attn-weights "$arm")
    export HIP_VISIBLE_DEVICES=$gpus
    export SGLANG_USE_AITER=1
    export SGLANG_DSA_NO_PAD_HEADS=1
    exec python3 -m sglang.launch_server \
        --model-path "$model" --tp-size "$tp_size" \
        --trust-remote-code \
        --served-model-name "$served_model_name" \
        --attention-backend dsa --dsa-prefill-backend aiter --dsa-decode-backend aiter \
        --dsa-topk-backend sgl-kernel \
        --kv-cache-dtype bfloat16 \
        --chunked-prefill-size 32768 --mem-fraction-static 0.85 \
        --reasoning-parser glm45 --tool-call-parser glm47 \
        "${flags[@]}" --host 0.0.0.0 --port "$port" \
        "${cp[@]}" \
        --speculative-algorithm EAGLE --speculative-num-steps 5 \
        --speculative-eagle-topk 1 --speculative-num-draft-tokens 6 \
        "${more[@]}"
}

usage() {
    cat <<END
Usage: ${0##*/} [--NAME VALUE ...] [-- MORE_SGLANG_ARGUMENTS ...]

$about

  --model DIR   local copy of amd/GLM-5.2-MXFP4 [$model] (environment: MODEL_PATH)
  --port N      where the server listens [$port] (environment: PORT)
  --gpus LIST   GPUs, at least $tp_size [$gpus] (environment: HIP_VISIBLE_DEVICES)
  --arm ARM     context parallelism, one of: $arms [$arm]

If the launch cannot succeed: one sentence and exit code 2, before anything is loaded.
END
}
