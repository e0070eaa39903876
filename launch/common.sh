# shellcheck shell=bash disable=SC2034,SC2154 # variables that the scripts set, or use
# What the launch scripts share: arguments, and what must hold before anything is loaded. Sourced by them, with $model,
# $port and $gpus set; a check that fails ends the script with one sentence and exit code 2.

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

check_port_is_free() {
    if (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
        refuse "Port $port is in use: end what listens there, or choose another with --port."
    fi
}

check_gpu_list() { # EXAMPLE
    [[ $gpus =~ ^[0-9]+(,[0-9]+)*$ ]] || refuse "--gpus takes numbers with commas, such as $1; not '$gpus'."
}

check_model() { # HINT
    [[ -d $model ]] || refuse "There is no model directory '$model': $1."
    [[ -f $model/config.json ]] || refuse "'$model' holds no model (no config.json): $1."
    grep -q '"GlmMoeDsaForCausalLM"' "$model/config.json" ||
        refuse "'$model' holds another model than GLM-5.x (GlmMoeDsaForCausalLM): $1."
}

# The package, SGLang's release against the pin (UPSTREAM), the patches: the last two in the words of the patch tool.
check_package() { # HINT
    command -v python3 >/dev/null || refuse "There is no python3 on the PATH: $1."
    python3 -c 'import importlib.metadata as installed; installed.version("sglang-cp")' 2>/dev/null ||
        refuse "sglang-cp is not installed for $(command -v python3): run \`python3 -m pip install .\` in a checkout."
    local said
    said=$(python3 -m sglang_cp.cli patch status 2>&1) || refuse "${said#sglang-cp: }"
}
