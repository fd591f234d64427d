"""What the Python scripts of this folder share: folders, messages, running a program, facts for the head of a table,
types of arguments. Import it, do not run it."""
import argparse, os, re, shlex, socket, subprocess, sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CACHE = os.environ.get("SHEAF_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or
                                                      os.path.expanduser("~/.cache"), "sheaf")
PEERS = os.path.join(CACHE, "peers")  # a folder for each program that --build of bench-peers and bench-hosts made
NAME = os.path.basename(sys.argv[0])
RATES = {"100mbit": "100 Mbit/s", "1gbit": "1 Gbit/s", "10gbit": "10 Gbit/s", "none": "no limit"}  # as tc has them


def die(text):
    sys.exit(f"{NAME}: {text}")


def say(text):
    print(f"{NAME}: {text}", file=sys.stderr, flush=True)


def run(cmd, limit=None, env=None, errors=False):
    """Standard output, and the errors behind it if asked for; ends the script with the command and its last words if it
    fails. A program that is too slow, or whose script is ended, gets SIGTERM, so that netns-run removes its namespaces
    and mpirun ends its ranks."""
    try:
        p = subprocess.Popen(cmd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env={**os.environ, **(env or {})})
    except FileNotFoundError:
        die(f"there is no program '{cmd[0]}'")
    try:
        out, err = p.communicate(timeout=limit)
    except BaseException as e:
        p.terminate()
        try:
            p.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            p.kill()
        if isinstance(e, subprocess.TimeoutExpired):
            die(f"no result within {limit} s (--limit): {shlex.join(cmd)}")
        raise
    if p.returncode:
        lines = err.strip().splitlines()
        own = [l for l in lines if l.startswith("sheaf-bench:")]  # before what a launcher has to say about it
        die(f"exit status {p.returncode}: {shlex.join(cmd)}\n" + "\n".join(own or lines[-8:]))
    return out + err if errors else out


def free_port():
    """A TCP port of this host that no program has."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def build_llama(name, source, targets, *options):
    """Programs of a source tree of llama.cpp or a fork in PEERS, with the tree's own defaults: native, with sgemm."""
    to = os.path.join(PEERS, name)
    say(f"building {source} in {to}, which takes minutes")
    run(["cmake", "-S", source, "-B", to, "-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF",
         "-DLLAMA_BUILD_SERVER=OFF", *options], 600)
    run(["cmake", "--build", to, "--target", *targets, "-j", str(os.cpu_count() or 1)], 7200)


def cpu_name():
    """As lscpu has it, which knows the numbers of ARM's processors, too."""
    text = subprocess.run(["lscpu"], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}).stdout
    found = re.search(r"^Model name: *(.*)", text, re.M)
    return found.group(1) if found else "unknown CPU"


def machine_and_commit():
    git = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True,
                         text=True)
    return cpu_name(), git.stdout.strip() or "of no repository"


def random_model(folder, name, limit, *options):
    """Path of a model in the cache, which sheaf-make-model of that folder writes once, with these options."""
    path = os.path.join(CACHE, name)
    if not os.path.exists(path):
        say(f"writing {path}")
        os.makedirs(CACHE, exist_ok=True)
        run([folder + "/sheaf-make-model", "-o", path, *options], limit)
    return path


# ---- types of arguments ----

def numbers(text):
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
        raise argparse.ArgumentTypeError(f"wants whole numbers like 1,2, not '{text}'")
    return [int(n) for n in text.split(",")]


def positive(text):
    if not re.fullmatch(r"[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"wants a whole number >= 1, not '{text}'")
    return int(text)


def named(text):
    if not re.fullmatch(r"[\w.-]+=.+", text):
        raise argparse.ArgumentTypeError(f"wants NAME=..., not '{text}'")
    return text
