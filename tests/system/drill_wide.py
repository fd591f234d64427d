#!/usr/bin/env python3
"""Breaks what is around a job, where drill.py breaks its ranks: signals to each part of it, disks and memory that are
full, a rank that is slow, very many ranks, starts and tokens.

Prints a line a case. A case is wrong if the job hangs, ends with the wrong status, says nothing or says something twice,
or leaves a process or a file. Without --full a choice that takes less than half a minute. Exit status 0 if all
were right."""
import argparse, os, re, shutil, signal, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODEL = os.path.join(ROOT, "models/kjv-q8_0.gguf")
FOREVER = ["-n", "100000", "--ignore-eos", "--temp", "0", "-c", "20000"]  # longer than any case
quick, full = {}, {}


def case(in_ci=False):
    def add(function):
        full[function.__name__] = function
        if in_ci:
            quick[function.__name__] = function
        return function
    return add


class Job:
    """mpirun with ranks of a tool, a folder of its own, and what is left of it at the end."""

    def __init__(self, n, tool, arguments, env=None, before=()):
        self.where = tempfile.mkdtemp(prefix="drill-wide-")
        self.shm = tempfile.mkdtemp(prefix="test-drill-", dir="/dev/shm")
        self.out = os.path.join(self.where, "out")
        # UCX, which MPICH loads, takes SIGHUP for its own log and the process goes on (docs/clusters.md).
        env = dict(os.environ, TMPDIR=self.where, OMPI_MCA_btl_vader_backing_directory=self.shm,
                   OMPI_MCA_btl_sm_backing_directory=self.shm,
                   **{"SHEAF_TIMEOUT_MS": "20000", "UCX_DEBUG_SIGNO": "0", **(env or {})})
        program = list(before) + [os.path.join(BUILD, "bin", tool)] + arguments
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1",
                                "-np", str(n)] + program
        with open(self.out, "wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env,
                                            stdin=subprocess.DEVNULL, start_new_session=True, cwd=self.where)
        self.start = time.monotonic()

    def text(self):
        with open(self.out, errors="replace") as f:
            return f.read()

    def below(self):
        """Processes of the job: those of the session."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/stat" % pid) as f:
                    fields = f.read().rsplit(")", 1)[1].split()
                with open("/proc/%s/environ" % pid, "rb") as f:
                    ours = self.where.encode() in f.read()
                with open("/proc/%s/cmdline" % pid, "rb") as f:
                    line = f.read().split(b"\0")
            except OSError:
                continue
            if ours and fields[0] != "Z":
                found.append((int(pid), line[0].decode(errors="replace")))
        return found

    def ranks(self):
        """By rank: pids."""
        found = {}
        for pid, name in self.below():
            try:
                with open("/proc/%d/environ" % pid, "rb") as f:
                    rank = re.search(rb"\0(?:OMPI_COMM_WORLD_RANK|PMI_RANK)=(\d+)", b"\0" + f.read())
            except OSError:
                continue
            if rank and "/bin/sheaf-" in name:
                found[int(rank.group(1))] = pid
        return found

    def wait_for(self, condition, seconds=40):
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            if condition():
                return True
            time.sleep(0.02)
        return False

    def runs(self):
        return self.wait_for(lambda: len(self.text()) > 40)

    def end(self, seconds):
        """The status, or None if it had to be ended here."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            for pid, _ in self.below():
                os.kill(pid, signal.SIGKILL)
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            return None

    def leftovers(self):
        wrong = []
        for _ in range(30):
            left = self.below()
            if not left:
                break
            time.sleep(0.1)
        if left:
            wrong.append("processes left: %s" % left[0][1])
            for pid, _ in left:
                os.kill(pid, signal.SIGKILL)
        if os.listdir(self.shm):
            wrong.append("left in shared memory: " + " ".join(os.listdir(self.shm)))
        shutil.rmtree(self.where, ignore_errors=True)
        shutil.rmtree(self.shm, ignore_errors=True)
        return wrong


def messages(text):
    return [l for l in text.splitlines() if l.startswith("sheaf: ") and "the context has" not in l]


def run_job(*arguments, seconds=90, **how):
    job = Job(*arguments, **how)
    status = job.end(seconds)
    text = job.text()
    return job, status, text


# ---- signals ----

def signalled(number, target):
    job = Job(3, "sheaf-run", ["-m", MODEL, "-p", "And"] + FOREVER)
    wrong = [] if job.runs() else ["it does not run: " + job.text()[-300:]]
    ranks = job.ranks()
    sent = time.monotonic()
    if target == "group":
        os.killpg(job.process.pid, number)
    else:
        os.kill(job.process.pid if target == "mpirun" else ranks.get(target, job.process.pid), number)
    status = job.end(20)
    seconds = time.monotonic() - sent
    said = messages(job.text())
    if status is None:
        wrong.append("it hangs")
    elif status == 0:
        wrong.append("status 0")
    if len(said) > 1:
        wrong.append("%d messages: %s" % (len(said), " | ".join(said)))
    if target not in (0, 1) and not ranks:
        wrong.append("it had no ranks")
    return wrong + job.leftovers(), "%.1f s, status %s%s" % (seconds, status, ", " + said[0][:60] if said else "")


def add_signals():
    for name, target in [(n, t) for n in ("INT", "TERM", "HUP") for t in (0, 1, "group", "mpirun")] + [("KILL", "mpirun")]:
        number = getattr(signal, "SIG" + name)
        label = "%s to %s" % (name, "rank %d" % target if isinstance(target, int) else target)

        def run(number=number, target=target):
            return signalled(number, target)
        full[label] = run
        if (name, target) in (("INT", "mpirun"), ("TERM", 1), ("HUP", 0), ("KILL", "mpirun")):
            quick[label] = run


add_signals()


def passes_on_lines():
    """mpirun of Open MPI 5 passes on whole lines of text, and the model writes none."""
    return "(Open MPI) 5" in subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout


@case(in_ci=True)
def mpirun_stopped_for_3_s():
    """Its ranks wait, and go on when it does; no rank is accused. The job outlasts the stop: of a rank that ends while
    mpirun is stopped, Open MPI sees the end before the finalize, and calls it an abnormal one."""
    job = Job(2, "sheaf-run", ["-m", MODEL, "-p", "And"] + FOREVER)
    wrong = [] if job.runs() else ["it does not run: " + job.text()[-300:]]
    os.kill(job.process.pid, signal.SIGSTOP)
    time.sleep(3)
    before = len(job.text())
    os.kill(job.process.pid, signal.SIGCONT)
    lines = passes_on_lines()
    if not lines and not job.wait_for(lambda: len(job.text()) > before):
        wrong.append("it writes no more")
    wrong += ["a message: " + m for m in messages(job.text())[:1]]
    os.kill(job.process.pid, signal.SIGINT)
    if job.end(20) is None:
        wrong.append("it hangs")
    return wrong + job.leftovers(), "went on" + ", text unseen" * lines


# ---- memory and disks ----

def in_a_small_world(script):
    """A mount namespace with a file system of 64 KiB at $DISK; a command follows."""
    return ["unshare", "-m", "sh", "-c", 'set -e; DISK=$(mktemp -d); export DISK; mount -t tmpfs -o size=64k tmpfs $DISK\n' +
            script + '\n"$@"; s=$?; umount $DISK; rmdir $DISK; exit $s', "sh"]


def disk_full(tool, arguments, n=2, taken=40000):
    where = tempfile.mkdtemp(prefix="drill-disk-")
    command = in_a_small_world("head -c %d /dev/zero > $DISK/taken" % taken) + [
        "sh", "-c", " ".join((["mpirun --allow-run-as-root --oversubscribe -np %d" % n] if n > 1 else []) +
                             ["'%s/bin/%s'" % (BUILD, tool)] + arguments) + '; s=$?; ls $DISK > "%s/left"; exit $s' % where]
    p = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=90,
                       errors="replace", stdin=subprocess.DEVNULL)
    with open(os.path.join(where, "left")) as f:
        left = [name for name in f.read().split() if name.endswith("part") or ".part-" in name]
    shutil.rmtree(where)
    said = [l for l in p.stdout.splitlines() if re.search("No space|cannot (be )?writ|cannot create", l)]
    wrong = []
    if p.returncode != 1:
        wrong.append("status %d: %s" % (p.returncode, p.stdout[-300:]))
    if len(said) != 1:
        wrong.append("%d messages: %s" % (len(said), p.stdout[-300:]))
    if left:
        wrong.append("left: " + " ".join(left))
    return wrong, said[0][:90] if said else "-"


@case(in_ci=True)
def disk_full_logits():
    return disk_full("sheaf-run", ["-m", MODEL, "-p And -n 8 --ignore-eos --logits $DISK/logits"])


@case()
def disk_full_trace():
    return disk_full("sheaf-run", ["-m", MODEL, "-p And -n 64 --ignore-eos --trace $DISK/trace"])


@case()
def disk_full_output():
    return disk_full("sheaf-run", ["-m", MODEL, "-p And -n 8 --json > /dev/full"], n=1)


@case()
def disk_full_picture():
    return disk_full("sheaf-info", ["-m", MODEL, "--members 2 --plan-dot $DISK/plan.dot"], n=1, taken=61000)


@case()
def disk_full_quantized():
    return disk_full("sheaf-quantize", [MODEL, "$DISK/out.gguf", "Q4_0"], n=1)


@case()
def disk_full_made_model():
    return disk_full("sheaf-make-model", ["-o", "$DISK/out.gguf"], n=1)


@case()
def disk_full_flight():
    """The dump of a failing job: it fails for its own reason, and says that the dump is missing."""
    command = in_a_small_world("head -c 70000 /dev/zero > $DISK/taken || true\nexport SHEAF_FLIGHT_DIR=$DISK SHEAF_TIMEOUT_MS=2000") + [
        "sh", "-c", "mpirun --allow-run-as-root --oversubscribe -np 3 '%s/bin/helper-comm' never 1 1 2048" % BUILD]
    p = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=90, errors="replace")
    said = [l for l in p.stdout.splitlines() if "waited" in l]
    lost = [l for l in p.stdout.splitlines() if re.search(r"cannot write .*\.flight: No space", l)]
    wrong = [] if p.returncode else ["status 0"]
    wrong += [] if len(said) == 1 else ["%d messages" % len(said)]
    wrong += [] if lost else ["nothing said about the dumps: " + p.stdout[-400:]]
    return wrong, "%s; %s" % (said[0][:60] if said else "-", lost[0][:90] if lost else "-")


@case()
def disk_full_temporary():
    """The launcher's own folder: it, or the job, ends with an error and does not hang."""
    command = in_a_small_world("head -c 70000 /dev/zero > $DISK/taken || true\nexport TMPDIR=$DISK") + [
        "mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", os.path.join(BUILD, "bin/sheaf-run"), "-m", MODEL,
        "-p", "And", "-n", "8", "--temp", "0"]
    p = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=90, errors="replace")
    wrong = [] if p.returncode else ["status 0: " + p.stdout[-300:]]
    return wrong, "status %d: %s" % (p.returncode, " ".join(p.stdout.split())[:90])


@case()
def dev_shm_full():
    """sheaf's memory has no name there; MPI's own transport does without."""
    command = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=256k tmpfs /dev/shm; head -c 300000 /dev/zero > /dev/shm/x; "$@"',
               "sh", "mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", os.path.join(BUILD, "bin/sheaf-run"),
               "-m", MODEL, "-p", "And", "-n", "8", "--temp", "0"]
    p = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=90, errors="replace")
    return ["status %d: %s" % (p.returncode, p.stdout[-400:])] if p.returncode else [], "runs"


def errors(text):
    """The tool's errors, without the library's warnings."""
    warning = "the context has|load CPU kernels|kernels are used instead"
    return [l for l in text.splitlines() if re.match("sheaf(-run)?: ", l) and not re.search(warning, l)]


def answer(text):
    return text.split("\nmodel  ")[0].strip()


def peak_of(job, rank):
    """KiB of addresses that the rank has had when it ends, or after a minute."""
    peak, end = 0, time.monotonic() + 60
    job.wait_for(lambda: rank in job.ranks())
    pid = job.ranks().get(rank)
    while pid and job.process.poll() is None and time.monotonic() < end:
        try:
            with open("/proc/%d/status" % pid) as f:
                peak = max([peak] + [int(kib) for kib in re.findall(r"VmPeak:\s*(\d+)", f.read())])
        except OSError:
            break
        time.sleep(0.002)
    return peak


@case()
def memory_of_one_rank_ends():
    """The second rank may have less memory than it needs: it fails at the start, at the weights, at the cache. One
    message, and nothing left. A little less than it needs may do, since allocators reserve more than they use."""
    arguments = (3, "sheaf-run", ["-m", os.path.join(ROOT, "models/kjv-f32.gguf"), "-p", "And", "-n", "8", "--temp", "0",
                                  "-c", "4096"])
    limit = 'if [ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 1 ]; then ulimit -v %d; fi; exec "$0" "$@"'
    job = Job(*arguments)
    peak, status, text = peak_of(job, 1), job.end(60), job.text()
    wrong, said, failed = job.leftovers(), [], 0
    if status != 0 or not peak:
        return wrong + ["without a limit: status %s, %d KiB: %s" % (status, peak, text[-300:])], "-"
    right = answer(text)
    for percent in (40, 60, 70, 75, 80, 85, 90, 95):
        job, status, text = run_job(*arguments, before=["sh", "-c", limit % (peak * percent // 100)], seconds=60)
        wrong += job.leftovers()
        told = errors(text)
        failed += status not in (0, None) and len(told) == 1
        if status is None:
            wrong.append("%d %%: it hangs" % percent)
        elif status == 0 and answer(text) != right:
            wrong.append("%d %%: another text: %s" % (percent, text[:200]))
        elif status and not re.search("memory|thread|addresses|map|shared object", text):
            wrong.append("%d %%: no reason: %s" % (percent, text[-300:]))
        if len(told) > 1:
            wrong.append("%d %%: %d messages: %s" % (percent, len(told), " | ".join(told)))
        said.append("%d %%: %s" % (percent, re.sub("^sheaf-run: (rank . .vm.: )*", "", told[0])[:50] if told
                    else "status %s" % status))
    if failed < 2:
        wrong.append("%d of the limits reached sheaf's own memory, two at least should" % failed)
    return wrong, "of %d MiB of addresses; %s" % (peak // 1024, "; ".join(said))


# ---- slow, many, long ----

def slow_down(job, rank, seconds=60):
    """Gives the rank a twentieth of the time until the job ends."""
    pid = job.ranks().get(rank)
    end = time.monotonic() + seconds
    while job.process.poll() is None and pid and time.monotonic() < end:
        try:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.095)
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            break
        time.sleep(0.005)


def slowed(tool, arguments, begins, names, n=2, rank=1, hosts="auto"):
    """No alarm, and the report names the slow rank: `names`."""
    job = Job(n, tool, arguments, env={"SHEAF_TIMEOUT_HEARTBEAT_MS": "5000", "SHEAF_CPU_THREADS": "1",
                                       "SHEAF_COMM_TRANSPORT": hosts})
    wrong = [] if job.wait_for(lambda: begins in job.text() and len(job.text()) > 40) else ["it does not run: " + job.text()[-300:]]
    start = time.monotonic()
    slow_down(job, rank)
    status = job.end(30)
    text = job.text()
    wrong += ["status %s (None: it was killed at its deadline): %s" % (status, text[-300:])] if status != 0 else []
    wrong += ["an alarm: " + messages(text)[0]] if messages(text) else []
    said = re.search(names, text)
    wrong += [] if said else ["the report does not name rank %d: " % rank + text[-500:]]
    return job, wrong, "%.0f s; %s" % (time.monotonic() - start, said.group(0) if said else "-")


@case()
def rank_slowed_20_times():
    """One rank has a twentieth of the time of the others: no alarm, and the report names it, as does the trace."""
    job, wrong, said = slowed("sheaf-run", ["-m", MODEL, "-p", "And", "-n", "300", "-c", "1000", "--ignore-eos", "--temp", "0",
                                            "--trace", "trace.json"], "", r"straggler   rank 1 \(.*")
    waits = {}
    try:
        import json
        with open(os.path.join(job.where, "trace.json")) as f:
            for e in json.load(f)["traceEvents"]:
                if e.get("cat") == "wait":
                    waits[e["tid"]] = waits.get(e["tid"], 0) + e["dur"]
        if not waits.get(0, 0) > 1.2 * waits.get(1, 0): # rank 1 is stopped while it waits, too
            wrong.append("the trace does not show that rank 0 waits for rank 1: %s" % waits)
    except (OSError, ValueError) as e:
        wrong.append("no trace: %s" % e)
    return wrong + job.leftovers(), "%s; by the trace rank 0 waits %.1f s, rank 1 %.1f s" % (
        said, waits.get(0, 0) * 1e-6, waits.get(1, 0) * 1e-6)


def mapped(name):
    """Does a process that lives use this file of /dev/shm?"""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/maps" % pid) as f:
                if "/" + name in f.read():
                    return True
        except OSError:
            continue
    return False


@case()
def second_of_a_host_slowed_20_times():
    """Of two hosts with two ranks each: the rank that talks to no other host is the slow one."""
    job, wrong, said = slowed("sheaf-run", ["-m", MODEL, "-p", "And", "-n", "200", "-c", "1000", "--ignore-eos", "--temp", "0"],
                              "", r"straggler   rank 3 \(.*", n=4, rank=3, hosts="hosts:0,0,1,1")
    return wrong + job.leftovers(), said


@case()
def starts():
    """Many starts and stops leave nothing in /dev/shm and /tmp."""
    before = set(os.listdir("/dev/shm")) | set(os.listdir("/tmp"))
    wrong, start, right = [], time.monotonic(), 0
    for i in range(CYCLES):
        job, status, text = run_job(2, "sheaf-run", ["-m", MODEL, "-p", "And", "-n", "1"], seconds=60)
        left = job.leftovers()
        if status != 0 or left:
            wrong.append("start %d: status %s %s: %s" % (i, status, left, text[:600]))
            break
        right += 1
    after = {f for f in (set(os.listdir("/dev/shm")) | set(os.listdir("/tmp"))) - before if re.search("drill-wide|vader|sm_segment|sheaf\\.", f)}
    after = {f for f in after if not mapped(f)}  # not those of another job
    if after:
        wrong.append("left: " + " ".join(sorted(after)[:5]))
    return wrong, "%d starts, %.2f s each" % (right, (time.monotonic() - start) / max(right, 1))


@case()
def ranks_64():
    job, status, text = run_job(64, "sheaf-run", ["-m", MODEL, "-p", "And", "-n", "2", "--temp", "0"],
                                env={"SHEAF_TIMEOUT_MS": "120000", "SHEAF_CPU_THREADS": "1"}, seconds=240)
    seconds = time.monotonic() - job.start
    return (["status %s: %s" % (status, text[-400:])] if status != 0 else []) + job.leftovers(), "%.0f s" % seconds


def resident(pid):
    """KiB of a process that are no pages of files: its own memory, and what it shares with other ranks."""
    with open("/proc/%d/status" % pid) as f:
        return sum(int(kib) for kib in re.findall(r"Rss(?:Anon|Shmem):\s*(\d+)", f.read()))


def memory_while_it_runs(job, begins, seconds):
    """KiB of all four ranks together, ten times a second, from when the job has written `begins` until one ends."""
    marks, end = [], time.monotonic() + seconds
    job.wait_for(lambda: begins in job.text(), 120)
    ranks = list(job.ranks().values())
    while len(ranks) == 4 and job.process.poll() is None and time.monotonic() < end:
        try:
            mark = [resident(p) for p in ranks]
        except OSError:
            break
        if min(mark) == 0:  # it has ended
            break
        marks.append(sum(mark))
        time.sleep(0.1)
    return marks


def middle(numbers):
    return sorted(numbers)[len(numbers) // 2]


def growth(marks):
    """KiB by which the last tenth is above the third one, and these two: medians, so that an end that was seen counts
    little. Before the third tenth caches are filled for the first time."""
    tenth = len(marks) // 10
    early, late = middle(marks[2 * tenth:3 * tenth]), middle(marks[-tenth:])
    return late - early, early, late


@case()
def tokens():
    """Many tokens of a model of one layer over 4 ranks: memory is the same after a fifth and at the end. sheaf-bench
    reads large buffers before its first row, to measure the bandwidth: the looks begin with the head of its table."""
    rounds, few, allowed = min(max(TOKENS // 1000, 10), 1000), 30, 512
    model = os.path.join(tempfile.mkdtemp(prefix="drill-wide-"), "model.gguf")
    job, start = None, time.monotonic()
    try:
        subprocess.run([os.path.join(BUILD, "bin/sheaf-make-model"), "--layers", "1", "--kv-heads", "4", "--ctx", "1024", "-o",
                        model], check=True, stdout=subprocess.DEVNULL)
        job = Job(4, "sheaf-bench", ["-m", model, "-p", "0", "-n", "1000", "-r", str(rounds)], env={"SHEAF_CPU_THREADS": "1"})
        used = memory_while_it_runs(job, "|---", 14400)
        status = job.end(60)
    finally:
        if job and job.process.poll() is None:
            job.end(0)
        shutil.rmtree(os.path.dirname(model))
    seconds = time.monotonic() - start
    wrong = ["status %s (None: it was killed at its deadline): %s" % (status, job.text()[-300:])] if status != 0 else []
    if len(used) < few:
        wrong.append("only %d looks at its memory, too few to see it grow (--tokens)" % len(used))
        return wrong + job.leftovers(), "%d tokens in %.0f s" % (1000 * rounds, seconds)
    more, early, late = growth(used)
    a_token = more * 1024 / (0.7 * 1000 * rounds)
    if more > allowed:
        wrong.append("memory grew by %d KiB, %.1f bytes a token" % (more, a_token))
    return wrong + job.leftovers(), "%d tokens in %.0f s; %d KiB in the third tenth, %d KiB in the last: %.1f bytes a token" % (
        1000 * rounds, seconds, early, late, a_token)


def main(args):
    chosen = full if args.only or args.full else quick
    bad, start, rows = 0, time.monotonic(), []
    for name, run in chosen.items():
        if args.only and not re.search(args.only, name):
            continue
        wrong, said = run()
        rows.append((name, said))
        bad += bool(wrong)
        print("%-26s %s%s" % (name, "WRONG: " + "; ".join(wrong) + ": " if wrong else "", said), flush=True)
    if args.table:
        print("| case | result |\n|---|---|")
        for name, said in rows:
            print("| %s | %s |" % (name.replace("_", " "), said))
    print("%d cases in %.0f s, %d wrong" % (len(rows), time.monotonic() - start, bad))
    return 1 if bad or not rows else 0


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build", metavar="BUILD_DIR", type=os.path.abspath)
    p.add_argument("--full", action="store_true", help="all cases")
    p.add_argument("--only", metavar="REGEX", help="those of all cases whose name matches")
    p.add_argument("--table", action="store_true", help="at the end a table for docs/drill.md")
    p.add_argument("--cycles", metavar="N", type=int, default=20, help="starts of the case `starts`")
    p.add_argument("--tokens", metavar="N", type=int, default=20000, help="tokens of the case `tokens`")
    return p.parse_args()


if __name__ == "__main__":
    args = arguments()
    BUILD, CYCLES, TOKENS = args.build, args.cycles, args.tokens
    sys.exit(main(args))
