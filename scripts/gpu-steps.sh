# The steps of gpu-check, as functions: each runs in a shell of its own, prints what it finds, its last line for the
# report's row, and ends with a status (see `step` there). Source it, do not run it. The variables are gpu-check's.
# shellcheck shell=bash disable=SC2154

machine() {
    uname -srm
    LC_ALL=C lscpu | sed -n 's/^Model name: *//p'
    awk '/MemTotal/ { printf "%d GiB of memory\n", $2 / 1048576 }' /proc/meminfo
    cc --version | head -n 1
    nvcc --version 2>/dev/null | tail -n 2
    nvidia-smi 2>/dev/null | grep -o 'CUDA Version: [0-9.]*' # the newest that the driver runs
    nvidia-smi --query-gpu=name,memory.total,driver_version,compute_mode,mig.mode.current,ecc.mode.current,clocks.max.sm,clocks.max.mem,power.limit \
        --format=csv 2>/dev/null
    pgrep -x nvidia-cuda-mps >/dev/null && echo "MPS runs"
    ls /dev/shm >/dev/null 2>&1 || echo "no /dev/shm"
    echo "$cores cores, $(nvidia-smi -L 2>/dev/null | head -n 1 | sed 's/ (UUID.*//' || true)"
}

# Names everything that a build lacks at once; notes a host compiler that nvcc takes in $work/env.
needs() {
    local missing=() tool wanted found compiler
    for tool in cc c++ cmake awk sed xargs; do
        command -v $tool >/dev/null || missing+=("$tool")
    done
    command -v ninja >/dev/null || command -v make >/dev/null || missing+=("ninja or make")
    wanted=$(sed -n 's/^cmake_minimum_required(VERSION \([0-9]*\.[0-9]*\).*/\1/p' "$root/CMakeLists.txt")
    found=$(cmake --version 2>/dev/null | awk 'NR == 1 { print $3 }')
    if [ -n "$found" ] && [ "$(printf '%s\n%s\n' "$wanted" "$found" | sort -V | head -n 1)" != "$wanted" ]; then
        missing+=("CMake $wanted or newer (this is $found; 'pip install cmake' has one)")
    fi
    if [ -n "$debs" ]; then
        command -v dpkg-deb >/dev/null || missing+=("dpkg-deb, for --debs")
    else
        for tool in mpicc mpirun pkg-config; do
            command -v $tool >/dev/null || missing+=("$tool")
        done
        pkg-config --exists hwloc 2>/dev/null || missing+=("hwloc's headers")
    fi
    if [ "$kind" = CUDA ]; then
        echo '__global__ void nothing() {}' >"$work/try.cu"
        if ! command -v nvcc >/dev/null; then
            missing+=("nvcc: put it in PATH, or set CUDA_HOME")
        elif ! nvcc -c "$work/try.cu" -o "$work/try.o"; then
            for compiler in g++-14 g++-13 g++-12 g++-11; do
                command -v $compiler >/dev/null && nvcc -ccbin $compiler -c "$work/try.cu" -o "$work/try.o" &&
                    echo "export NVCC_CCBIN=$compiler" >"$work/env" && break
            done
            if [ ! -s "$work/env" ]; then
                nvcc -allow-unsupported-compiler -c "$work/try.cu" -o "$work/try.o" &&
                    echo "export NVCC_APPEND_FLAGS=-allow-unsupported-compiler" >"$work/env"
            fi
            [ -s "$work/env" ] || missing+=("a host compiler that nvcc takes (the log has its words)")
        fi
    fi
    if [ ${#missing[@]} -gt 0 ]; then
        printf 'missing: %s\n' "$(printf '%s; ' "${missing[@]}")"
        exit 1
    fi
    echo "CMake $found, $(cc -dumpfullversion 2>/dev/null || echo '?') as cc$(sed 's/^export /, /' "$work/env" 2>/dev/null)"
}

# Unpacks the packages into a prefix. Nothing outside it is touched.
unpack() {
    rm -rf "$prefix"
    mkdir -p "$prefix"
    local deb n=0
    for deb in "$debs"/*.deb; do
        [ -f "$deb" ] || continue
        dpkg-deb -x "$deb" "$prefix" || exit 1
        n=$((n + 1))
    done
    [ -e "$lib/libmpi.so.40" ] || {
        echo "$debs holds no libopenmpi3: fill it with --pack"
        exit 1
    }
    ln -sf orterun "$prefix/usr/bin/mpirun"
    # Links of the packages are made when they are configured, which does not happen here.
    [ -e "$lib/libmpi.so" ] || ln -sf libmpi.so.40 "$lib/libmpi.so"
    local unfit
    unfit=$(LD_LIBRARY_PATH=$lib ldd "$lib/libmpi.so.40" "$lib/libhwloc.so.15" 2>&1 | grep 'not found' | sort -u)
    if [ -n "$unfit" ]; then
        echo "the packages do not fit this system, pack them on one of its kind: $(tr -s '\t\n ' ' ' <<<"$unfit")"
        exit 1
    fi
    echo "$n packages, Open MPI $(sed -n 's/^Version: //p' "$lib/pkgconfig/ompi-c.pc" 2>/dev/null)"
}

build_all() {
    local capability
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -dc 0-9)
    [ -n "$capability" ] || capability=$(__nvcc_device_query 2>/dev/null | tr -dc '0-9,' | cut -d, -f1)
    local options=(-DCMAKE_BUILD_TYPE=Release -DSHEAF_BUILD_TESTS=HELPERS -DSHEAF_CUDA=AUTO
        -DSHEAF_NCCL=AUTO) generator=()
    [ -z "$capability" ] || options+=("-DSHEAF_CUDA_ARCHITECTURES=$capability")
    command -v ninja >/dev/null && generator=(-G Ninja)
    if [ -n "$debs" ]; then
        local include=$lib/openmpi/include
        options+=(-DMPI_SKIP_COMPILER_WRAPPER=ON -DMPI_C_LIB_NAMES=mpi -DMPI_mpi_LIBRARY="$lib/libmpi.so"
            -DMPI_C_HEADER_DIR="$include" -DMPI_C_ADDITIONAL_INCLUDE_DIRS="$include/openmpi"
            -DPKG_CONFIG_EXECUTABLE="$prefix/usr/bin/pkgconf"
            "-DCMAKE_SHARED_LINKER_FLAGS=-Wl,-rpath-link,$lib" "-DCMAKE_EXE_LINKER_FLAGS=-Wl,-rpath-link,$lib"
            "-DCMAKE_MODULE_LINKER_FLAGS=-Wl,-rpath-link,$lib")
        export PKG_CONFIG_LIBDIR=$lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$prefix
        export CPATH=$prefix/usr/include/${lib##*/}      # hwloc has headers there, too
        export LD_LIBRARY_PATH=$lib:${LD_LIBRARY_PATH:-} # of pkgconf
    fi
    cmake -S "$root" -B "$work/build" "${generator[@]}" "${options[@]}" >"$work/logs/configure.log" 2>&1 || {
        tail -n 30 "$work/logs/configure.log"
        exit 1
    }
    cmake --build "$work/build" -j "$cores" || exit 1
    if [ "$kind" = CUDA ] && [ ! -e "$work/build/lib/libsheaf-cuda.so" ]; then
        echo "built without a CUDA device: $(grep -m 1 'CUDA:' "$work/logs/configure.log")"
        exit 1
    fi
    echo "built$(find "$work/build/lib" -maxdepth 1 -name 'libsheaf-*.so' -printf ' %f')"
}

probe() {
    command -v nvcc >/dev/null || {
        echo "nvcc is not there: shares of the bandwidth are unknown"
        exit 78
    }
    nvcc -O3 -arch=native "$root/scripts/gpu-probe.cu" -lcublas -o "$work/gpu-probe" || exit 1
    "$work/gpu-probe" 4096 14336 1024 512 >"$work/probe" || exit 1
    cat "$work/probe"
    awk '{ v[$1] = $2 } END { printf "reads %s GB/s, cuBLAS F16 %s TFLOP/s\n", v["read_gbps"], v["layer_tflops"] }' "$work/probe"
}

devices() {
    "$bin/sheaf-info" || exit 1
    "$bin/sheaf-info" | grep -o "\b${kind}[0-9][0-9@]*" | sort -u >"$work/devices"
    if [ ! -s "$work/devices" ]; then
        "$bin/helper-gpu" why "$kind" || echo "no $kind device"
        exit 3
    fi
    xargs echo <"$work/devices"
}

# ranks N COMMAND...
ranks() {
    local n=$1
    shift
    mpirun -np "$n" "$@"
}
# on_one N COMMAND...: ranks that share the first GPU, also where there are more.
on_one() {
    CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
    export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES%%,*}
    ranks "$@"
}

# ops NAME LEAST COMMAND...: sheaf-backend-ops; the line of device NAME must show that many runs beside the unsupported
# ones, and nothing wrong or refused. Unsupported ops are the host's: a test of the CUDA module lists them. On the
# emulation 3974 runs of CUDA0 count, 412 of them of MUL_MAT, and 30138 of two members.
ops() {
    local name=$1 least=$2
    shift 2
    local begin=$SECONDS
    "$@" | tee "$work/ops.$$"
    local status=${PIPESTATUS[0]}
    awk -v name="$name" -v least="$least" -v s=$((SECONDS - begin)) '
        $1 == name && $3 == "cases," { n++; runs = $4 - $10; bad = $6 + $8; line = $0 }
        END { if (!n) { print "no line of " name; exit 1 }
              printf "%s, %d runs/s\n", line, s ? runs / s : runs; exit !(runs >= least && bad == 0) }' "$work/ops.$$" || status=1
    rm -f "$work/ops.$$"
    exit "$status"
}

# scenario MEMBERS COMMAND...: helper-mixed over that many members.
scenario() {
    local n=$1
    shift
    "$@" | tee "$work/scenario.$$"
    grep -q "^ok $n members" "$work/scenario.$$" || {
        echo "the scenarios did not run on $n members"
        exit 1
    }
    rm -f "$work/scenario.$$"
}

# same_text COMMAND... [ARGUMENT...]: the tokens of the bundled model are those of one CPU device.
same_text() {
    local model=$root/models/kjv-f32.gguf want got
    local text_args=(-p 'the old man and the sea' -n 64 --temp 0 --ignore-eos --ids --kv-type f32)
    want=$("$bin/sheaf-run" -m "$model" "${text_args[@]}" --single | grep '^ids: ') || { echo "no tokens of the CPU"; exit 1; }
    got=$("$@" -m "$model" "${text_args[@]}" | tee "$work/text.$$" | grep '^ids: ')
    grep '^split' "$work/text.$$"
    rm -f "$work/text.$$"
    if [ "$want" != "$got" ]; then
        printf '%s\n' "want $want" "got  $got" "the tokens differ"
        exit 1
    fi
    echo "64 tokens, the same"
}

# same_perplexity COMMAND...
same_perplexity() {
    local model=$root/models/kjv-f32.gguf text=(--perplexity "$root/tests/golden/heldout.txt"
        --ppl-lines --ppl-tokens 1024 --kv-type f32) want got
    want=$("$bin/sheaf-run" -m "$model" "${text[@]}" --single | sed -n 's/^perplexity_tokens .* perplexity //p')
    got=$("$@" -m "$model" "${text[@]}" | sed -n 's/^perplexity_tokens .* perplexity //p')
    awk -v a="$want" -v b="$got" 'BEGIN { d = b / a - 1; if (d < 0) d = -d
        printf "perplexity %s, on the CPU %s\n", b, a; exit !(a > 1 && d < 1e-4) }' </dev/null
}

# ggml_ops TARGET LIST OPTION...: sheaf-backend-ops with the devices LIST, of which one is a ggml library's; ggml
# lacks some ops and rounds activations of quantized weights to 8 bits. Without a ggml library that has such a
# device (SHEAF_GGML_LIB names its file, SHEAF_GGML_BACKENDS the folder of its backends) there is nothing to check.
ggml_ops() {
    local target=$1 list=$2
    shift 2
    has_ggml
    SHEAF_DEVICES=$list "$bin/sheaf-backend-ops" test -e 5e-4 "$@" | tee "$work/ggml-ops.$$"
    local status=${PIPESTATUS[0]}
    awk -v name="$target" '$1 == name && $3 == "cases," { n = 1; ok = $4 > 2 * $10; print }
        END { exit !(n && ok) }' "$work/ggml-ops.$$" || status=1
    rm -f "$work/ggml-ops.$$"
    exit "$status"
}

# has_ggml: is there a ggml library with the device?
has_ggml() {
    if ! SHEAF_DEVICES="CPU0,$ggml" "$bin/sheaf-info" >"$work/ggml.$$" 2>&1; then
        tail -n 1 "$work/ggml.$$"
        rm -f "$work/ggml.$$"
        exit 77
    fi
    rm -f "$work/ggml.$$"
}

# ggml_text: the same tokens with ggml's kernels, on weights that are not rounded.
ggml_text() {
    has_ggml
    same_text env SHEAF_DEVICES="CPU0,$ggml" "$bin/sheaf-run" --devices "$ggml"
}

# ggml_rates: tokens/s of one model with our kernels and with ggml's.
ggml_rates() {
    local model figures
    has_ggml
    figures=$work/figures/$(file_of "$ggml: tokens/s")
    model=$(model_of 8B-Q4_0 6) || exit 1
    paste <(csv_of "$model" -p "$prompt" -n "$tokens") <(SHEAF_DEVICES="CPU0,$ggml" on=$ggml csv_of "$model" -p "$prompt" -n "$tokens") |
        awk -v kind="$kind" -v ggml="$ggml" 'NF == 6 { n++; printf "%s %s0 %.1f tokens/s, %s %.1f\n", $1, kind, $3, ggml, $6 }
            END { exit n != 2 }' | tee "$figures"
    exit "${PIPESTATUS[1]}"
}

# findings LOG: what compute-sanitizer found, a line for each kernel and kind of finding, with how often.
findings() { sed -n 's/^=* *\(Error\|Warning\|Invalid\|Uninitialized\|Barrier\|Program hit\)/\1/p' "$1" | sed 's/+0x[0-9a-f]*//g' | sort | uniq -c | head -n 8; }

# sanitize TOOL: compute-sanitizer on ops, several processes at a time, and on models, for launches that no single op
# makes: memcheck on every op, the others on those with barriers or shuffles. Racecheck leaves cuBLASLt out, whose
# kernels are not ours. At its limit it names what was running: nothing here may have a process group of its own, as
# timeout makes one, or it would run on.
sanitize() {
    local tool=$1 sanitizer blas='' name found=0
    sanitizer=$(command -v compute-sanitizer)
    [ -x "$sanitizer" ] || {
        echo "compute-sanitizer is not installed"
        exit 78
    }
    "$bin/sheaf-backend-ops" support -b "${kind}0" >"$work/support.$tool"
    awk -F'|' '/^\| [A-Z]/ { gsub(/ /, "", $2); if (!seen[$2]++) print $2 }' "$work/support.$tool" >"$work/ops.$tool"
    [ -s "$work/ops.$tool" ] || exit 1
    [ "$tool" != racecheck ] || blas=blas=0
    if [ "$tool" != memcheck ]; then
        printf '%s\n' FLASH_ATTN_EXT MUL_MAT MUL_MAT_ID SET_ROWS RMS_NORM SOFT_MAX TOP_K ARGMAX NORM L2_NORM GROUP_NORM SUM \
            SUM_ROWS MEAN ROPE SSM_SCAN GATED_DELTA_NET >"$work/ops.$tool"
    fi
    local files=("$root/models/kjv-f32.gguf")
    if [ -n "$small" ]; then
        printf '%s\n' SET_ROWS ROPE >"$work/ops.$tool"
    else # rows of whole chunks, products by integers and halves
        files+=("$models/$tool.gguf")
        "$bin/sheaf-make-model" -o "$models/$tool.gguf" --mix Q4_K_M --layers 2 --embd 2048 --ff 4096 --heads 16 --kv-heads 8 \
            --head-dim 128 --vocab 512 --ctx 512 >&2 || exit 1
    fi
    export CUDA_MODULE_LOADING=LAZY # or every process instruments all kernels before the first runs
    rm -rf "$work/running.$tool" "$work/found.$tool"
    mkdir "$work/running.$tool" || exit 1
    trap 'echo "not done: $(ls "$work/running.$tool" | xargs); findings: $(cat "$work/found.$tool" | xargs)"; exit 143' TERM
    for file in "${files[@]}"; do # beside the ops, which take longer
        name=$(basename "$file" .gguf)
        rm -f "$work/found.$tool.$name"
        : >"$work/running.$tool/$name"
        (SHEAF_CUDA_PARAMS=graphs=0${blas:+,$blas} "$sanitizer" --tool "$tool" --error-exitcode 9 --log-file "$work/logs/$tool-$name.log" \
            "$bin/sheaf-run" -m "$file" -p "$(head -c 200 "$root/tests/golden/heldout.txt" | tr '\n' ' ')" -n 4 --temp 0 --ignore-eos --devices "${kind}0" \
            >"$work/logs/$tool-$name.out" 2>&1 || echo "$name" >"$work/found.$tool.$name"
            rm "$work/running.$tool/$name") &
    done
    # a line for each process: an op, or of those with the most cases, which come first, an op and a type
    awk -F'|' -v ops="$work/ops.$tool" '
        BEGIN { while ((getline op < ops) > 0) wanted[order[++n] = op] = 1 }
        { gsub(/ /, "") }
        $2 == "op" { for (i = 3; i < NF; i++) type[i] = $i }
        $2 in wanted && ($2 == "MUL_MAT" || $2 == "CPY") { for (i = 3; i < NF; i++) if ($i != "" && $i != "no") print $2, type[i] }
        END { for (i = 1; i <= n; i++) if (order[i] != "MUL_MAT" && order[i] != "CPY") print order[i] }' \
        "$work/support.$tool" >"$work/parts.$tool"
    # shellcheck disable=SC2016  # expanded by the inner shell
    SHEAF_CUDA_PARAMS=$blas xargs -P "$beside" -I{} bash -c 'set -- "$@" {}; name=$6${7:+-$7}
        : >"$4/running.$2/$name"
        "$1" --tool "$2" --error-exitcode 9 --log-file "$4/logs/$2-$name.log" \
            "$3/sheaf-backend-ops" test -b "$5" -o "$6" ${7:+-t "$7"} >"$4/logs/$2-$name.out" 2>&1 || echo "$name"
        rm "$4/running.$2/$name"' \
        _ "$sanitizer" "$tool" "$bin" "$work" "${kind}0" <"$work/parts.$tool" >"$work/found.$tool"
    wait
    for file in "${files[@]}"; do
        name=$(basename "$file" .gguf)
        [ ! -e "$work/found.$tool.$name" ] || cat "$work/found.$tool.$name" >>"$work/found.$tool"
    done
    while read -r name; do
        echo "$tool, $name:"
        findings "$work/logs/$tool-$name.log"
        tail -n 2 "$work/logs/$tool-$name.log"
        found=$((found + 1))
    done <"$work/found.$tool"
    echo "$tool: $(wc -l <"$work/ops.$tool") ops and ${#files[@]} models, $found with findings"
    [ $found -eq 0 ]
}

# ---- models of real shapes: two layers, or --layers ----

# type_option TYPE: the option of sheaf-make-model that takes it, a type of tensors or a mix of types.
type_option() { case $1 in *_M) echo --mix ;; *) echo --type ;; esac; }

# model_of NAME LAYERS: the file of the shape with that many layers, made if it is not there.
model_of() {
    local shape name type n_layers embd ff heads kv dim vocab file shapes
    mapfile -t shapes <<<"$shapes_text"
    for shape in "${shapes[@]}"; do
        read -r name type n_layers embd ff heads kv dim vocab <<<"$shape"
        [ "$name" = "$1" ] || continue
        file=$models/$name-$2.gguf
        [ -e "$file" ] || { "$bin/sheaf-make-model" -o "$file.$$" "$(type_option "$type")" "$type" --layers "$2" --embd "$embd" --ff "$ff" \
            --heads "$heads" --kv-heads "$kv" --head-dim "$dim" --vocab "$vocab" --ctx 40960 >&2 && mv "$file.$$" "$file"; } || return 1
        echo "$file"
        return
    done
    return 1
}

# same_logits NAME: the logits of a prompt and of generated tokens on the GPU and on the CPU, mean square of the
# differences over that of the logits. With one column the GPU rounds columns of block types to 8 bits.
same_logits() {
    local model bound=1e-3 out=$work/logits.$$
    model=$(model_of "$1" 2) || exit 1
    [[ $1 != *F16 ]] || bound=1e-4
    for device in CPU0 "${kind}0"; do
        SHEAF_CPU_DEVICES=1 "$bin/sheaf-run" -m "$model" --devices "$device@0" --logits "$out.$device" --temp 0 -n 3 --ignore-eos \
            -p "$(head -c 200 "$root/tests/golden/heldout.txt" | tr '\n' ' ')" >/dev/null || exit 1
    done
    paste <(od -An -v -w4 -tf4 "$out.CPU0") <(od -An -v -w4 -tf4 "$out.${kind}0") | awk -v bound=$bound '
        { d += ($1 - $2) ^ 2; s += $1 ^ 2; n++ }
        END { printf "%d logits, error %.2g (bound %s)\n", n, d / s, bound; exit !(n > 1000 && d / s <= bound) }'
    local status=$?
    rm -f "$out".*
    exit $status
}

# switches NAME: the ids of 64 greedy tokens are the same with every switch, and each time. Finds races that a
# bound on errors and the sanitizers, which slow kernels down, do not.
switches() {
    local model want='' got params
    model=$(model_of "$1" 2) || exit 1
    local runs=0 each=('' 'ahead=0' 'graphs=0' 'fuse=0' 'ahead=0,graphs=0,fuse=0' single)
    for params in "${each[@]}" "${each[@]}" ''; do
        local more=(--devices "${kind}0") list=''
        [ "$params" != single ] || more=(--single) list=${kind}0 # the first device of the list
        got=$(SHEAF_DEVICES=$list SHEAF_CUDA_PARAMS=${params#single} "$bin/sheaf-run" -m "$model" "${more[@]}" --temp 0 -n "$tokens" \
            --ignore-eos --ids -p 'the old man and the sea' | grep '^ids: ') || exit 1
        runs=$((runs + 1))
        [ -n "$want" ] || want=$got
        [ "$want" = "$got" ] && continue
        printf '%s\n' "without switches: $want" "$params: $got" "the ids differ with '$params' in run $runs"
        exit 1
    done
    echo "$tokens tokens, the same in $runs runs"
}

# csv_of MODEL OPTION...: sheaf-bench as lines "TEST DEPTH TOKENS_PER_S"; $on: the devices, if not the first of the kind.
csv_of() {
    "$bin/sheaf-bench" -m "$1" --devices "${on:-${kind}0}" -r 3 -o csv "${@:2}" | awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
        { t = $at["test"]; gsub(/"/, "", t); print t, $at["depth"], $at["tokens_per_s_median"] }'
}

# counts NAME: a prompt and generated tokens go the fast ways: no capture is refused, most graphs are replayed, all
# products of few columns fetch their weights ahead, those of the prompt take cuBLASLt.
counts() {
    local model line ahead
    model=$(model_of "$1" 2) || exit 1
    SHEAF_CUDA_PARAMS=counts=1 "$bin/sheaf-run" -m "$model" --devices "${kind}0" --temp 0 -n "$tokens" --ignore-eos \
        -p "$(head -c 200 "$root/tests/golden/heldout.txt" | tr '\n' ' ')" >/dev/null 2>"$work/counts.$$" || { cat "$work/counts.$$"; exit 1; }
    line=$(sed -n 's/^sheaf: \(CUDA[0-9]*: graphs: \)/\1/p' "$work/counts.$$")
    rm -f "$work/counts.$$"
    ahead=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -dc 0-9)
    echo "${line:-no counts were printed}" | tee "$work/figures/$(file_of "counts: $1")"
    awk -v ahead="${ahead:-90}" '{
        for (i = 2; i <= NF; i++) v[$i] = $(i - 1)
        for (i = 1; i <= NF; i++) if ($i == "few") few = $(i - 2); else if ($i == "weights") early = $(i - 2)
            else if ($i == "by" && $(i + 1) ~ /^cuBLASLt/) blas = $(i - 1); else if ($i == "tiles") tiles = $(i - 2)
        refused = v["refused,"]; captured = v["captured,"]; replayed = v["replayed,"]
        if (refused) why = why "; captures were refused"
        if (!captured || replayed < captured) why = why "; graphs are not replayed"
        if (!few || (ahead >= 90 && early < few)) why = why "; weights are not fetched ahead"
        if (!blas || tiles) why = why "; the prompt does not take cuBLASLt"
        print substr(why, 3) (why ? ": " : "") $0
        exit why != "" }' <<<"$line"
}

# times NAME: microseconds and GB/s of each kernel in a few tokens.
times() {
    local model
    model=$(model_of "$1" 2) || exit 1
    SHEAF_CUDA_PARAMS=times=1 "$bin/sheaf-run" -m "$model" --devices "${kind}0" --temp 0 -n 32 --ignore-eos \
        -p 'the old man and the sea' >/dev/null 2>"$work/times.$$" || { cat "$work/times.$$"; exit 1; }
    sed -n '/microseconds of each/,$p' "$work/times.$$" >"$work/figures/$(file_of "times: $1")"
    rm -f "$work/times.$$"
    [ -s "$work/figures/$(file_of "times: $1")" ] || { echo "no times were printed"; exit 1; }
    echo "$(wc -l <"$work/figures/$(file_of "times: $1")") lines"
}

# slope NAME: a layer's time from 2 and 6 layers, with its share of the probed rate; what is left is the head's
# and the host's.
slope() {
    local a b bytes
    bytes=$(($(stat -c %s "$(model_of "$1" 6)") - $(stat -c %s "$(model_of "$1" 2)")))
    a=$(csv_of "$(model_of "$1" 2)" -p 0 -n "$tokens" | awk '{ print $3 }')
    b=$(csv_of "$(model_of "$1" 6)" -p 0 -n "$tokens" | awk '{ print $3 }')
    awk -v a="$a" -v b="$b" -v bytes="$bytes" -v probe="$work/probe" 'BEGIN {
        while ((getline line < probe) > 0) { split(line, f, " "); v[f[1]] = f[2] }
        if (!(a > 0 && b > 0)) { print "no result"; exit 1 }
        layer = (1e6 / b - 1e6 / a) / 4; gbps = layer > 0 ? bytes / 4 / layer / 1e3 : 0
        share = v["read_gbps"] > 0 ? 100 * gbps / v["read_gbps"] : 0
        printf "a layer %.1f us, %.0f GB/s of its weights, %.0f %% of the probed rate; the head and the host %.1f us%s\n", layer,
               gbps, share, 1e6 / a - 2 * layer, share < 70 ? ": below the goal of 70 %" : ""
        exit share < 70 ? 79 : 0 }' </dev/null | tee "$work/figures/$(file_of "layers: $1")"
    exit "${PIPESTATUS[0]}"
}

# depth NAME: tokens/s at depths of the cache. Goals: keys cost twice the time of their bytes at most, at 4096 and, of
# which some launches are paid, at 32768; a prompt behind 8192 keys has half the speed of one behind none.
depth() {
    local model figures
    figures=$work/figures/$(file_of "depth: $1")
    model=$(model_of "$1" 2) || exit 1
    csv_of "$model" -p 0 -n $((tokens / 2)) -d "$all_depths" | tee "$figures"
    csv_of "$model" -p "$prompt" -n 0 -d "0,$deep" | tee -a "$figures"
    awk -v probe="$work/probe" -v near="$shallow" -v far="$deepest" -v deep="$deep" -v small="$small" '
        BEGIN { while ((getline line < probe) > 0) { split(line, f, " "); v[f[1]] = f[2] } }
        /^tg/ { us[++n] = 1e6 / $3 }
        /^pp/ { pp[++m] = $3 }
        function cost(keys, took) {
            best = v["read_gbps"] > 0 ? 2 * 2 * keys * (small ? 2 * 64 : 8 * 128) * 2 / v["read_gbps"] / 1e3 : 0
            printf "%d keys cost %.0f us in 2 layers, their bytes %.1f us at the probed rate; ", keys, took, best
            return took > 2 * best + (keys == near ? 20 : 0)
        }
        END { if (n < 3 || m < 2) { print "no result"; exit 1 }
              slow = cost(near, us[2] - us[1]) + cost(far, us[3] - us[1]) + (pp[2] < pp[1] / 2)
              printf "a prompt behind %d keys has %.0f %% of the speed of one behind none\n", deep, 100 * pp[2] / pp[1]
              exit slow ? 79 : 0 }' "$figures"
}

# batches NAME: prompts of 1 to 16 tokens: steps at 5 and 9 columns show.
batches() {
    local model
    model=$(model_of "$1" 2) || exit 1
    csv_of "$model" -p 1,2,3,4,5,6,8,9,12,16,33 -n 0 | awk '{ n = substr($1, 3); printf "%s tokens: %.0f us, %.1f us each\n", n, n * 1e6 / $3, 1e6 / $3 }' |
        tee "$work/figures/$(file_of "batches: $1")"
    [ -s "$work/figures/$(file_of "batches: $1")" ]
}

# memory NAME: free bytes with the model, behind its first token and behind 300 graphs; a buffer that is too
# large is refused, and the model goes on.
memory() {
    local model
    [ "$kind" = CUDA ] || { echo "of CUDA only"; exit 77; }
    model=$(model_of "$1" 2) || exit 1
    "$bin/helper-gpu" memory "${kind}0" "$model" "$graphs" | tee "$work/figures/$(file_of "memory: $1")"
    exit "${PIPESTATUS[0]}"
}

# cublas: which cuBLASLt the backend took; without one products of prompts are many times slower.
cublas() {
    LD_DEBUG=files "$bin/sheaf-run" -m "$root/models/kjv-f32.gguf" -p 'and the' -n 2 --temp 0 --devices "${kind}0" >"$work/blas.$$" 2>&1
    local file missing
    file=$(grep -o '[^ ]*libcublasLt[^ ;]*' "$work/blas.$$" | grep / | tail -n 1)
    missing=$(grep -m 1 'cannot be used' "$work/blas.$$")
    rm -f "$work/blas.$$"
    [ -z "$missing" ] && [ -n "$file" ] && echo "$file" && return
    echo "no cuBLASLt: ${missing:-no file of it was opened}"
    exit 1
}

# small TYPE: the bundled model in another type, with a cache of F16: within 1 % of the CPU's perplexity.
small() {
    local model=$models/kjv-$1.gguf text=(--perplexity "$root/tests/golden/heldout.txt" --ppl-lines --ppl-tokens 1024) want got name
    case $1 in q4_K) name=Q4_K_M ;; *) name=${1^^} ;; esac
    "$bin/sheaf-quantize" "$root/models/kjv-f32.gguf" "$model" "$name" >/dev/null || exit 1
    want=$("$bin/sheaf-run" -m "$model" "${text[@]}" --devices CPU0@0 | sed -n 's/^perplexity_tokens .* perplexity //p')
    got=$("$bin/sheaf-run" -m "$model" "${text[@]}" --devices "${kind}0@0" | sed -n 's/^perplexity_tokens .* perplexity //p')
    rm -f "$model"
    awk -v a="$want" -v b="$got" 'BEGIN { d = b / a - 1; if (d < 0) d = -d
        printf "perplexity %s, on the CPU %s\n", b, a; exit !(a > 1 && d < 1e-2) }' </dev/null
}

# Processes with a context on a GPU.
gpu_processes() { nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>/dev/null | grep -c . || true; }

# killed DEVICES: one of two ranks dies in the middle; the other ends by itself and names it, and no process is left,
# here or on the GPU.
killed() {
    local model pid status rank before named start=on_one
    case $1 in *"${kind}1"*) start=ranks ;; esac
    before=$(gpu_processes)
    model=$(model_of 8B-Q4_0 2) || exit 1
    $start 2 "$bin/sheaf-run" -m "$model" --devices "$1" --temp 0 -n 100000 -c 40000 --ignore-eos -p 'and' >"$work/killed.$$" 2>&1 &
    pid=$!
    sleep "$wait_s"
    rank=$(pgrep -f "sheaf-run -m $model" | tail -n 1)
    [ -n "$rank" ] || { cat "$work/killed.$$"; exit 1; }
    kill -9 "$rank"
    local begin=$SECONDS
    wait $pid
    status=$?
    tail -n 12 "$work/killed.$$"
    named=$(tr '\n' ' ' <"$work/killed.$$" | grep -oE 'rank [01] .{0,80}(died|ended|killed|is gone|signal)[^.;]{0,40}' | head -n 1)
    rm -f "$work/killed.$$"
    if pgrep -f "sheaf-run -m $model" >/dev/null; then
        echo "a process is left"
        exit 1
    fi
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        [ "$(gpu_processes)" -gt "$before" ] || break
        sleep 1
    done
    if [ "$(gpu_processes)" -gt "$before" ]; then
        echo "the GPU has a process more than before"
        exit 1
    fi
    echo "ended after $((SECONDS - begin)) s with status $status: ${named:-no rank was named}"
    [ -n "$named" ] && [ $status -ne 0 ] && [ $((SECONDS - begin)) -le 30 ]
}

# older: the module built for an older architecture only, whose PTX the driver compiles: kernels that do not
# wait for the ones before them must not be started ahead.
older() {
    local capability
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -dc 0-9)
    [ "${capability:-0}" -ge 90 ] || { echo "the GPU is not newer than the code"; exit 77; }
    if [ -n "$made" ]; then
        [ -e "$made/older/lib/libsheaf-cuda.so" ] || { echo "--build $made holds no older module"; exit 78; }
        export SHEAF_BACKEND_PATH=$made/older/lib
    else
        build_older && export SHEAF_BACKEND_PATH=$work/older/lib || exit 1
    fi
    "$bin/sheaf-info" | grep -q 'runs code for 8.0' || echo "note: sheaf-info names no older code"
    (ops "${kind}0" 3900 "$o" test -b "${kind}0") || exit 1
    switches 8B-Q4_0
}
build_older() {
    cmake -S "$root" -B "$work/older" -DCMAKE_BUILD_TYPE=Release -DSHEAF_BUILD_TESTS=OFF -DSHEAF_CUDA=ON -DSHEAF_NCCL=OFF \
        -DSHEAF_CUDA_ARCHITECTURES=80 >/dev/null 2>&1 && cmake --build "$work/older" -j "$cores" --target sheaf-cuda >/dev/null
}

# two_gpus: needs a second GPU.
two_gpus() {
    [ "$(nvidia-smi -L 2>/dev/null | wc -l)" -ge 2 ] || { echo "one GPU"; exit 77; }
    "$@"
}
nccl_two() { # RANKS
    [ -e "$built_in/lib/libsheaf-nccl.so" ] || { echo "libsheaf-nccl.so was not built"; exit 78; }
    export SHEAF_COMM_DEVICE=nccl
    if [ "$1" -eq 1 ]; then
        CUDA_MODULE_LOADING=LAZY "$bin/helper-devcomm" "$kind" && CUDA_MODULE_LOADING=EAGER "$bin/helper-devcomm" "$kind"
    else
        ranks "$1" "$bin/helper-devcomm" "$kind"
    fi
}

# gpus copies|pipeline: between two GPUs, right and how fast.
gpus() {
    local number=()
    [ -z "$small" ] || number=(4)
    "$bin/helper-gpus" "$1" "${kind}0" "${kind}1" "${number[@]}" | tee "$work/figures/$(file_of "$1: 2 GPUs")"
    exit "${PIPESTATUS[0]}"
}

# two_rates: tokens/s of a model on one GPU and cut over two.
two_rates() {
    local model one two
    model=$(model_of 8B-Q4_0 6) || exit 1
    one=$(csv_of "$model" -p 0 -n "$tokens" | awk '{ print $3 }')
    two=$(on="${kind}0,${kind}1" csv_of "$model" -p 0 -n "$tokens" | awk '{ print $3 }')
    awk -v a="$one" -v b="$two" 'BEGIN { if (!(a > 0 && b > 0)) { print "no result"; exit 1 }
        printf "one GPU %.1f tokens/s, two %.1f\n", a, b; exit b > a ? 0 : 79 }' </dev/null |
        tee "$work/figures/$(file_of "tokens/s: 2 GPUs")"
    exit "${PIPESTATUS[0]}"
}

clocks() { nvidia-smi --query-gpu=clocks.sm,clocks.mem,temperature.gpu,clocks_throttle_reasons.active,power.draw --format=csv,noheader; }

# Models are generated on the CPU while the GPU is checked, or each before its turn.
generate() {
    local name type n_layers embd ff heads kv dim vocab
    read -r name type n_layers embd ff heads kv dim vocab <<<"${1/LAYERS/$layers}"
    "$bin/sheaf-make-model" -o "$models/$name.part" "$(type_option "$type")" "$type" --layers "$n_layers" --embd "$embd" \
        --ff "$ff" --heads "$heads" --kv-heads "$kv" --head-dim "$dim" --vocab "$vocab" --ctx 40960 \
        >"$work/logs/generate-$name.log" 2>&1 && mv "$models/$name.part" "$models/$name.gguf" && return
    rm -f "$models/$name.part"
}

# bench SHAPE: tokens/s of pp512 and tg64 at each depth, with the share of the memory bandwidth, or of cuBLAS's rate.
# Goals: decode 70 % of the bandwidth at depth 0 and 60 % at the largest, F16 prompts 70 % of cuBLAS.
bench() {
    local name type n_layers embd ff heads kv dim vocab
    read -r name type n_layers embd ff heads kv dim vocab <<<"${1/LAYERS/$layers}"
    if [ -z "$place" ]; then
        echo "no room for the model: $gib_of_one GiB are wanted in /dev/shm, TMPDIR or $work"
        exit 78
    fi
    # shellcheck disable=SC2064  # this shape's file
    trap "rm -f '$models/$name.gguf'" EXIT # also where this fails: the next one may need the room
    [ "$one_at_a_time" -eq 0 ] || generate "$1"
    if [ ! -e "$models/$name.gguf" ]; then # those that were made beside have ended by now
        echo "the model was not made: $(tail -n 1 "$work/logs/generate-$name.log")"
        exit 1
    fi
    csv_of "$models/$name.gguf" -p "$prompt" -n "$tokens" -d "$all_depths" >"$work/bench.$$" || exit 1
    local bytes row
    bytes=$(stat -c %s "$models/$name.gguf")
    case $type in
    q4_0 | Q4_K_M) row=$((embd * 18 / 32)) ;;
    q8_0) row=$((embd * 34 / 32)) ;;
    *) row=$((embd * 2)) ;;
    esac
    awk -v name="$name" -v bytes="$bytes" -v embeddings=$((vocab * row)) -v key=$((n_layers * 2 * kv * dim * 2)) \
        -v n_layers="$n_layers" -v type="$type" -v tokens="$tokens" -v probe="$work/probe" -v out="$work/bench.md" -v deepest="$deepest" '
        BEGIN { while ((getline line < probe) > 0) { split(line, f, " "); v[f[1]] = f[2] } }
        { if ($2 in seen == 0) order[++n] = $2
          seen[$2] = 1
          if ($1 ~ /^pp/) pp[$2] = $3; else tg[$2] = $3 }
        END {
            if (!n) { print "no result"; exit 1 }
            eight = name ~ /^8B/
            for (i = 1; i <= n; i++) {
                d = order[i]
                if (!(pp[d] > 0 && tg[d] > 0)) { print "no result at depth " d; exit 1 }
                # a token reads one row of the embeddings, and the keys and values before it
                gbps = tg[d] * (bytes - embeddings + key * (d + tokens / 2)) * 1e-9
                share = v["read_gbps"] > 0 ? gbps / v["read_gbps"] : 0
                # a prompt against the time of cuBLAS for the same products, in F16
                blas = eight && v["layer_ms"] > 0 ? v["layer_ms"] * 1e-3 * n_layers / (512 / pp[d]) : 0
                printf "| %s | %d | %.1f | %.0f | %.0f %% | %.0f | %s |\n", name, d, tg[d], gbps, 100 * share, pp[d],
                       blas ? sprintf("%.0f %%", 100 * blas) : "-" >> out
                text = text sprintf("%s%d: tg %.1f t/s, %.0f %%; pp %.0f t/s", i > 1 ? "; " : "depth ", d, tg[d], 100 * share, pp[d])
                if (blas) text = text sprintf(" (%.0f %%)", 100 * blas)
                slow = slow || (d == 0 && (share < 0.70 || (type == "f16" && blas < 0.70))) || (d == deepest && share < 0.60)
            }
            if (!eight) slow = 0
            print text (slow ? ": below the goal" : "")
            exit slow ? 79 : 0
        }' "$work/bench.$$"
    local status=$?
    rm -f "$work/bench.$$"
    exit $status
}

# nccl RANKS: collectives on device memory.
nccl() {
    if [ ! -e "$built_in/lib/libsheaf-nccl.so" ]; then
        echo "libsheaf-nccl.so was not built: no nccl.h was found (NCCL_ROOT says where it is)"
        exit 78
    fi
    export SHEAF_COMM_DEVICE=nccl
    if [ "$1" -gt 1 ]; then
        local version
        version=$("$bin/helper-devcomm" version) || exit 1
        if [ "$version" -lt 23000 ]; then
            echo "NCCL $version refuses two ranks on one GPU; from 2.30 on it can be asked to"
            exit 77
        fi
        export NCCL_MULTI_RANK_GPU_ENABLE=1
        on_one "$1" "$bin/helper-devcomm" "$kind"
    else
        "$bin/helper-devcomm" "$kind"
    fi
}

# sums: two ranks' collectives on the GPU that they share, of every kind and size.
sums() {
    SHEAF_COMM_DEVICE=shared-gpu on_one 2 "$bin/helper-devcomm" "$kind" 2>&1 | tee "$work/sums.$$"
    local status=${PIPESTATUS[0]}
    if [ "$status" -ne 0 ] && grep -qE 'sharing memory with other|reaching the memory of' "$work/sums.$$"; then
        rm -f "$work/sums.$$"
        echo "processes cannot share the memory of a GPU here (CUDA IPC): $(uname -r)"
        exit 77
    fi
    rm -f "$work/sums.$$"
    exit "$status"
}

functions=(machine needs unpack build_all probe devices ranks on_one ops scenario same_text same_perplexity ggml_ops sanitize findings
    generate bench nccl sums model_of same_logits switches csv_of times slope depth batches memory small killed older build_older type_option
    two_gpus nccl_two two_rates cublas clocks file_of counts gpu_processes gpus has_ggml ggml_text ggml_rates)
