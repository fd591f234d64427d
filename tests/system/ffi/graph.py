"""A graph through the C interface of an installed libsheaf, from a language that only sees the shared
library: opaque handles, plain signatures, one struct by value. `python3 graph.py LIBSHEAF.SO`

Prints a line a part; ends with status 0 if every result is right. Expected values are computed here.
"""
import ctypes as c
import math
import os
import sys

P, S, I64, SIZE = c.c_void_p, c.c_int, c.c_int64, c.c_size_t
F32, SUCCESS, INVALID, CPU, META = 0, 0, -3, 0, 3
AXIS_1, WEIGHTS = 1, 1
if len(sys.argv) != 2:
    sys.exit(__doc__)
os.environ.setdefault("SHEAF_CPU_DEVICES", "2")  # two devices on any machine; read when the library lists them
lib = c.CDLL(sys.argv[1])
os.chdir("/")  # the library finds its modules all the same


class InitParams(c.Structure):  # struct sheaf_init_params
    _fields_ = [("mem_size", SIZE), ("mem_buffer", P), ("no_alloc", c.c_bool)]


EvalCallback = c.CFUNCTYPE(c.c_bool, P, c.c_bool, P)
GetSplitState = c.CFUNCTYPE(S, P, P, c.POINTER(P))

# name: result, arguments
for name, (result, *arguments) in {
    "version": (c.c_char_p,),
    "cpu_isa_name": (c.c_char_p,),
    "last_error": (c.c_char_p,),
    "init": (P, InitParams),
    "free": (None, P),
    "tensor_overhead": (SIZE,),
    "graph_overhead": (SIZE,),
    "new_tensor_2d": (P, P, S, I64, I64),
    "set_name": (P, P, c.c_char_p),
    "get_name": (c.c_char_p, P),
    "nbytes": (SIZE, P),
    "mul_mat": (P, P, P, P),
    "add": (P, P, P, P),
    "soft_max": (P, P, P),
    "new_graph": (P, P),
    "build_forward_expand": (S, P, P),
    "graph_n_nodes": (S, P),
    "backend_dev_count": (SIZE,),
    "backend_dev_by_type": (P, S),
    "backend_dev_name": (c.c_char_p, P),
    "backend_dev_type": (S, P),
    "backend_dev_init": (S, P, c.c_char_p, c.POINTER(P)),
    "backend_init_from_string": (S, c.c_char_p, c.POINTER(P)),
    "backend_free": (None, P),
    "backend_alloc_ctx_tensors": (S, P, P, c.POINTER(P)),
    "backend_get_default_buffer_type": (P, P),
    "backend_buffer_free": (None, P),
    "backend_tensor_set": (S, P, P, SIZE, SIZE),
    "backend_tensor_get": (S, P, P, SIZE, SIZE),
    "backend_graph_compute": (S, P, P),
    "gallocr_new": (P, P),
    "gallocr_free": (None, P),
    "gallocr_alloc_graph": (S, P, P),
    "set_input": (None, P),
    "set_output": (None, P),
    "backend_buffer_set_usage": (None, P, S),
    "backend_sched_new": (P, c.POINTER(P), P, S, SIZE, c.c_bool, c.c_bool),
    "backend_sched_free": (None, P),
    "backend_sched_reserve": (S, P, P),
    "backend_sched_set_tensor_backend": (S, P, P, P),
    "backend_sched_get_tensor_backend": (P, P, P),
    "backend_sched_alloc_graph": (S, P, P),
    "backend_sched_graph_compute": (S, P, P),
    "backend_sched_reset": (S, P),
    "backend_sched_get_n_splits": (S, P),
    "backend_sched_set_eval_callback": (None, P, EvalCallback, P),
    "world_init": (S, P),
    "world_finalize": (None,),
    "world_devices": (S, c.POINTER(c.POINTER(P)), c.POINTER(SIZE)),
    "backend_meta_device": (S, c.POINTER(P), SIZE, GetSplitState, P, P, c.POINTER(P)),
    "backend_meta_device_free": (None, P),
    "split_state_mirrored": (P, S),
    "split_state_cut": (P, S, S, c.POINTER(I64), I64),
}.items():
    function = getattr(lib, "sheaf_" + name)
    function.restype, function.argtypes = result, arguments
    globals()[name] = function


def check(status, what):
    if status != SUCCESS:
        sys.exit(f"{what}: status {status}: {last_error().decode()}")


def out(function, *arguments):
    """Calls function(..., &result) and returns the result."""
    result = P()
    check(function(*arguments, c.byref(result)), function.__name__)
    return result


def put(tensor, rows):
    flat = [x for row in rows for x in row]
    data = (c.c_float * len(flat))(*flat)
    assert nbytes(tensor) == c.sizeof(data), (get_name(tensor), nbytes(tensor))
    check(backend_tensor_set(tensor, data, 0, c.sizeof(data)), "set")


def get(tensor, n_rows):
    data = (c.c_float * (nbytes(tensor) // 4))()
    check(backend_tensor_get(tensor, data, 0, c.sizeof(data)), "get")
    width = len(data) // n_rows
    return [list(data[i * width : (i + 1) * width]) for i in range(n_rows)]


K, M, N = 6, 4, 3
W = [[((3 * m + k) % 7 - 3) / 4 for k in range(K)] for m in range(M)]  # M rows of K
X = [[((5 * n + 2 * k) % 9 - 4) / 8 for k in range(K)] for n in range(N)]
B = [[m / 2 for m in range(M)]]


def expected():
    rows = []
    for x in X:
        h = [sum(a * b for a, b in zip(w, x)) + B[0][m] for m, w in enumerate(W)]
        e = [math.exp(v - max(h)) for v in h]
        rows.append([v / sum(e) for v in e])
    return rows


def compare(what, got):
    worst = max(abs(a - b) for g, w in zip(got, expected()) for a, b in zip(g, w))
    print(f"{what}: largest difference {worst:.2g}")
    if not worst < 1e-6:
        sys.exit(f"{what}: {got} is not {expected()}")


def run(backend, what):
    """y = softmax(W x + b): weights in a buffer of their own, the rest from the graph allocator."""
    arena = InitParams(32 * tensor_overhead() + 2 * graph_overhead(), None, True)
    weights, ctx = init(arena), init(arena)
    w = set_name(new_tensor_2d(weights, F32, K, M), b"w")
    b = set_name(new_tensor_2d(weights, F32, M, 1), b"b")
    buffer = out(backend_alloc_ctx_tensors, weights, backend)
    put(w, W)
    put(b, B)
    x = set_name(new_tensor_2d(ctx, F32, K, N), b"x")
    y = soft_max(ctx, add(ctx, mul_mat(ctx, w, x), b))
    graph = new_graph(ctx)
    check(build_forward_expand(graph, y), "build")
    assert graph_n_nodes(graph) == 3
    allocator = gallocr_new(backend_get_default_buffer_type(backend))
    check(gallocr_alloc_graph(allocator, graph), "allocate")
    for _ in range(3):
        put(x, X)
        check(backend_graph_compute(backend, graph), "compute")
    compare(what, get(y, N))
    gallocr_free(allocator)
    free(ctx)
    backend_buffer_free(buffer)
    free(weights)


def run_scheduled(backends):
    """The example of the scheduler's header: reserve, place a tensor, compute in a loop; then another
    graph: reset, alloc_graph, set the input, compute."""
    arena = InitParams(32 * tensor_overhead() + 2 * graph_overhead(), None, True)
    weights = init(arena)
    w = set_name(new_tensor_2d(weights, F32, K, M), b"w")
    b = set_name(new_tensor_2d(weights, F32, M, 1), b"b")
    buffer = out(backend_alloc_ctx_tensors, weights, backends[-1])
    backend_buffer_set_usage(buffer, WEIGHTS)
    put(w, W)
    put(b, B)

    def build():
        ctx = init(arena)
        x = set_name(new_tensor_2d(ctx, F32, K, N), b"x")
        h = set_name(add(ctx, mul_mat(ctx, w, x), b), b"h")
        y = set_name(soft_max(ctx, h), b"y")
        set_input(x)
        set_output(y)
        graph = new_graph(ctx)
        check(build_forward_expand(graph, y), "build")
        return ctx, graph, x, h, y

    seen = []

    @EvalCallback
    def watch(tensor, ask, _user):
        if not ask:
            seen.append(get_name(tensor))
        return get_name(tensor) == b"h" or not ask

    n = len(backends)
    sched = backend_sched_new((P * n)(*backends), None, n, 64, False, True)
    if not sched:
        sys.exit(f"scheduler: {last_error().decode()}")
    for number in range(2):
        ctx, graph, x, h, y = build()
        if number == 0:
            check(backend_sched_reserve(sched, graph), "reserve")
            check(backend_sched_set_tensor_backend(sched, h, backends[0]), "place")
        else:
            check(backend_sched_reset(sched), "reset")
            backend_sched_set_eval_callback(sched, watch, None)
        check(backend_sched_alloc_graph(sched, graph), "allocate")
        for _ in range(3):
            put(x, X)
            check(backend_sched_graph_compute(sched, graph), "compute")
        if number == 0 and backend_sched_get_tensor_backend(sched, h) != backends[0].value:
            sys.exit("the scheduler did not keep to the wish")
        print(f"{backend_sched_get_n_splits(sched)} scheduler splits")
        compare(f"scheduler, graph {number}", get(y, N))
        free(ctx)
    if seen != [b"h"] * 3:
        sys.exit(f"the callback saw {seen}")
    backend_sched_free(sched)
    backend_buffer_free(buffer)
    free(weights)


print("sheaf", version().decode() + ",", cpu_isa_name().decode(), "kernels")
check(world_init(None), "world")

cpu = out(backend_init_from_string, b"CPU:threads=1")
run(cpu, "CPU backend")
other = out(backend_init_from_string, b"CPU1:threads=1")
run_scheduled([other, cpu])
backend_free(other)
backend_free(cpu)

# An error is a status and a text.
bad = P()
if backend_init_from_string(b"nothing:1", c.byref(bad)) != INVALID or bad.value:
    sys.exit("a backend that does not exist was started")
if b"'nothing'" not in last_error():
    sys.exit(f"the text does not name it: {last_error()}")


# The meta device over all CPU devices, with its split states decided here.
@GetSplitState
def split(tensor, _user, state):
    if get_name(tensor) == b"w":  # output rows: as even as they go
        counts = (I64 * n_devices.value)(
            *[M * (j + 1) // n_devices.value - M * j // n_devices.value for j in range(n_devices.value)])
        state[0] = split_state_cut(AXIS_1, n_devices.value, counts, 1)
    else:
        state[0] = split_state_mirrored(n_devices.value)
    return SUCCESS if state[0] else INVALID


devices, n_devices = c.POINTER(P)(), SIZE()
check(world_devices(c.byref(devices), c.byref(n_devices)), "devices")
if n_devices.value < 2:
    sys.exit("SHEAF_CPU_DEVICES=2 is wanted")
meta = out(backend_meta_device, devices, n_devices, split, None, None)
assert backend_dev_type(meta) == META
backend = out(backend_dev_init, meta, None)
run(backend, f"{backend_dev_name(meta).decode()}, {n_devices.value} members")
backend_free(backend)
backend_meta_device_free(meta)
world_finalize()
