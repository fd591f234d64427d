"""The Python package on the ranks of a job; started by test-python with the package and library in its environment.

    mpirun -np N python3 python_package.py MODEL.gguf GOLDEN.txt

Prints a line a part; ends with status 0 if every part is right."""
import sys

import sheaf


def must(what, condition):
    if not condition:
        raise AssertionError(what)
    if sheaf.rank() == 0:
        print("ok", what, flush=True)


def main():
    path = sys.argv[1]
    want_arrays = "--arrays" in sys.argv
    sheaf.init()
    devices = sheaf.devices()
    must("devices", len(devices) >= sheaf.size() and {d.rank for d in devices} == set(range(sheaf.size())) and
         all(d.memory_total > 0 and d.host and d.kind == "CPU" for d in devices))
    try:
        sheaf.Model("/nonexistent.gguf")
        must("a missing file is an error", False)
    except sheaf.Error as e:
        must("a missing file is an error", "/nonexistent.gguf" in str(e) and e.status != 0)
    seen = []
    model = sheaf.Model(path, n_ctx=256, progress=lambda done, total: seen.append((done, total)))
    members, cuts = model.plan()
    must("plan", len(members) == sheaf.size() and abs(sum(s for _, s in members) / len(members) - members[0][1]) < 1e-9 and
         "ffn" in cuts)
    must("load", seen and seen[-1][0] == seen[-1][1] and model.weight_bytes > 0)
    text = "And the LORD spake"
    ids = model.encode(text)
    must("tokens", len(ids) > 3 and model.decode(ids).strip() == text)
    all_rows = model.eval(ids, logits=[True] * len(ids))
    must("a row for each token", len(all_rows) == len(ids) and len(all_rows[0]) == model.n_vocab)
    if want_arrays:
        import numpy
        must("arrays", isinstance(all_rows, numpy.ndarray) and all_rows.dtype == numpy.float32 and
             all_rows.shape == (len(ids), model.n_vocab) and bool(numpy.isfinite(all_rows).all()))
    model.clear()
    last = model.eval(ids)  # one row, the last
    error = max(abs(float(a) - float(b)) for a, b in zip(last[0], all_rows[-1]))
    must("the last row alone", len(last) == 1 and error < 1e-3)
    best = max(range(model.n_vocab), key=lambda i: last[0][i])
    model.clear()
    pieces = model.generate(text, n=8, temperature=0)
    if sheaf.rank() == 0:
        first = model.encode(text + "".join(pieces))
        must("the first token is the best of the logits", first[len(ids)] == best)
    stopped = []
    model.clear()
    model.generate(text, n=32, temperature=0, on_text=lambda t: len(stopped.append(t) or stopped) < 3)
    must("a callback stops", len(stopped) <= 4)
    try:
        model.eval([model.n_vocab])
        must("a token out of range is an error", False)
    except sheaf.Error:
        must("a token out of range is an error", True)
    try:
        model.generate(text, n=4, on_text=lambda t: 1 / 0)
        must("an exception of a callback comes out", False)
    except ZeroDivisionError:
        must("an exception of a callback comes out", True)
    model.close()
    sheaf.finalize()


main()
