"""examples/split_a_graph.c through ctypes: y = B relu(A x) over all devices of the job, A cut by rows, B
by columns, one sum over the members; checked against the same sum computed here.
    mpirun -np 3 python3 split_a_graph.py LIBSHEAF.SO
"""
import ctypes as c
import sys

P, S, I64, SIZE = c.c_void_p, c.c_int, c.c_int64, c.c_size_t
F32, AXIS_0, AXIS_1, K, F, M, N = 0, 0, 1, 8, 12, 4, 3
lib = c.CDLL(sys.argv[1])


class InitParams(c.Structure):  # struct sheaf_init_params
    _fields_ = [("mem_size", SIZE), ("mem_buffer", P), ("no_alloc", c.c_bool)]


SplitState = c.CFUNCTYPE(S, P, P, c.POINTER(P))
for name, (result, *arguments) in {
    "last_error": (c.c_char_p,), "world_init": (S, P), "world_rank": (S,), "world_size": (S,),
    "world_finalize": (None,), "world_abort": (None, c.c_char_p), "world_failed": (c.c_bool,),
    "world_reports_error": (c.c_bool,), "world_devices": (S, c.POINTER(c.POINTER(P)), c.POINTER(SIZE)),
    "init": (P, InitParams), "free": (None, P), "tensor_overhead": (SIZE,), "graph_overhead": (SIZE,),
    "new_tensor_2d": (P, P, S, I64, I64), "set_name": (P, P, c.c_char_p), "get_name": (c.c_char_p, P),
    "set_input": (None, P), "set_output": (None, P), "mul_mat": (P, P, P, P), "relu": (P, P, P),
    "new_graph": (P, P), "build_forward_expand": (S, P, P), "gallocr_new": (P, P), "gallocr_free": (None, P),
    "gallocr_alloc_graph": (S, P, P), "split_state_cut": (P, S, S, c.POINTER(I64), I64),
    "backend_meta_device": (S, c.POINTER(P), SIZE, SplitState, P, P, c.POINTER(P)),
    "backend_meta_device_free": (None, P), "backend_dev_init": (S, P, c.c_char_p, c.POINTER(P)),
    "backend_free": (None, P), "backend_get_default_buffer_type": (P, P), "backend_buffer_free": (None, P),
    "backend_alloc_ctx_tensors": (S, P, P, c.POINTER(P)), "backend_graph_compute": (S, P, P),
    "backend_tensor_set": (S, P, P, SIZE, SIZE), "backend_tensor_get": (S, P, P, SIZE, SIZE),
}.items():
    function = getattr(lib, "sheaf_" + name)
    function.restype, function.argtypes = result, arguments
    globals()[name] = function


def check(status):
    if status:
        world_abort(last_error())
        sys.exit(last_error().decode() if world_reports_error() else 1)


def out(function, *arguments):
    result = P()
    check(function(*arguments, c.byref(result)))
    return result


def values(n, first):
    return [((i * 37 + 11) % 101 - 50) / 50 for i in range(first, first + n)]


def put(tensor, numbers):
    data = (c.c_float * len(numbers))(*numbers)
    check(backend_tensor_set(tensor, data, 0, c.sizeof(data)))


check(world_init(None))
devices, n = c.POINTER(P)(), SIZE()
check(world_devices(c.byref(devices), c.byref(n)))
n = n.value


@SplitState
def split(tensor, _user, state):
    counts = (I64 * n)(*[F * (j + 1) // n - F * j // n for j in range(n)])
    state[0] = split_state_cut(AXIS_1 if get_name(tensor) == b"A" else AXIS_0, n, counts, 1)
    return 0


meta = out(backend_meta_device, devices, n, split, None, None)
backend = out(backend_dev_init, meta, None)
arena = InitParams(16 * tensor_overhead() + graph_overhead(), None, True)
weights, ctx = init(arena), init(arena)
a = set_name(new_tensor_2d(weights, F32, K, F), b"A")
b = set_name(new_tensor_2d(weights, F32, F, M), b"B")
x = new_tensor_2d(ctx, F32, K, N)
y = mul_mat(ctx, b, relu(ctx, mul_mat(ctx, a, x)))
set_input(x)
set_output(y)
graph = new_graph(ctx)
check(build_forward_expand(graph, y))
buffer = out(backend_alloc_ctx_tensors, weights, backend)
A, B, X = values(K * F, 0), values(F * M, 1), values(K * N, 3)
put(a, A)
put(b, B)
galloc = gallocr_new(backend_get_default_buffer_type(backend))
check(gallocr_alloc_graph(galloc, graph))
put(x, X)
check(backend_graph_compute(backend, graph))
got = (c.c_float * (M * N))()
check(backend_tensor_get(y, got, 0, c.sizeof(got)))  # on all ranks

worst = 0
for j in range(N):
    h = [max(0, sum(A[f * K + k] * X[j * K + k] for k in range(K))) for f in range(F)]
    for m in range(M):
        worst = max(worst, abs(got[j * M + m] - sum(B[m * F + f] * h[f] for f in range(F))))
if world_rank() == 0:
    print(f"{world_size()} ranks, largest difference {worst:.1g}", flush=True)
gallocr_free(galloc)
backend_buffer_free(buffer)
free(ctx)
free(weights)
backend_free(backend)
backend_meta_device_free(meta)
world_finalize()
sys.exit(world_failed() or not worst < 1e-4)
