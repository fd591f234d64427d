"""examples/generate.c through ctypes: a model over all devices of the job, and what it writes.
    mpirun -np 2 python3 generate.py LIBSHEAF-MODEL.SO MODEL.gguf "Once upon a time" 64
"""
import ctypes as c
import sys

library, path, prompt, n_predict = sys.argv[1:]
lib = c.CDLL(library)  # libsheaf comes with it
lib.sheaf_last_error.restype = c.c_char_p


class ModelParams(c.Structure):  # struct sheaf_model_params, up to the fields that are set here
    _fields_ = [("size", c.c_size_t), ("path", c.c_char_p)]


class SamplerParams(c.Structure):  # struct sheaf_sampler_params
    _fields_ = [("size", c.c_size_t), ("seed", c.c_uint64), ("temperature", c.c_float),
                ("top_p", c.c_float), ("min_p", c.c_float), ("top_k", c.c_int32)]


class GenerateParams(c.Structure):  # the beginning of struct sheaf_model_generate_params
    _fields_ = [("size", c.c_size_t), ("n_predict", c.c_int64), ("sampler", SamplerParams)]


class Event(c.Structure):  # struct sheaf_model_event
    _fields_ = [("size", c.c_size_t), ("kind", c.c_int), ("ids", c.POINTER(c.c_int32)),
                ("n", c.c_size_t), ("text", c.c_char_p), ("len", c.c_size_t)]


lib.sheaf_sampler_default_params.restype = SamplerParams
lib.sheaf_model_generate.argtypes = [c.c_void_p, c.c_char_p, c.c_void_p, c.c_void_p, c.c_void_p, c.c_void_p]
lib.sheaf_world_failed.restype = lib.sheaf_world_reports_error.restype = c.c_bool
lib.sheaf_model_free.argtypes = [c.c_void_p]


@c.CFUNCTYPE(c.c_int, c.c_void_p, c.POINTER(Event))
def show(_user, event):
    sys.stdout.buffer.write(event.contents.text)  # of rank 0; empty on the others
    sys.stdout.buffer.flush()
    return 0


def check(status):
    if status:
        lib.sheaf_world_abort(lib.sheaf_last_error())
        sys.exit(lib.sheaf_last_error().decode() if lib.sheaf_world_reports_error() else 1)


check(lib.sheaf_world_init(None))
lib.sheaf_backend_load_all()
model = c.c_void_p()
check(lib.sheaf_model_open(c.byref(ModelParams(c.sizeof(ModelParams), path.encode())), c.byref(model)))
how = GenerateParams(c.sizeof(GenerateParams), int(n_predict), lib.sheaf_sampler_default_params())
how.sampler.temperature = 0
check(lib.sheaf_model_generate(model, prompt.encode(), c.byref(how), show, None, None))
if lib.sheaf_world_rank() == 0:
    print(flush=True)
lib.sheaf_model_free(model)
lib.sheaf_world_finalize()
sys.exit(bool(lib.sheaf_world_failed()))
