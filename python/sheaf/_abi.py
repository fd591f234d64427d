"""The C interface: functions with their types, and structs, whose first field says how much of one is known here."""
import ctypes as c
import ctypes.util
import os
import types

P, S, I64, SIZE, TEXT = c.c_void_p, c.c_int, c.c_int64, c.c_size_t, c.c_char_p


def _load():
    """LIBSHEAF_MODEL and no other if it is set, or what the system's loader finds."""
    named = os.environ.get("LIBSHEAF_MODEL")
    names = [named] if named else ["libsheaf-model.so.0", ctypes.util.find_library("sheaf-model")]
    tried = []
    for name in names:
        if not name:
            continue
        try:
            return c.CDLL(name)
        except OSError as e:
            tried.append(str(e))
    if named:
        raise ImportError("LIBSHEAF_MODEL=%s cannot be loaded: %s" % (named, tried[0]))
    raise ImportError("libsheaf-model.so.0 was not found (%s); install it, or name it by LIBSHEAF_MODEL" %
                      "; ".join(tried))


lib = _load()


class WorldParams(c.Structure):
    _fields_ = [("size", SIZE), ("timeout_ms", S), ("mpi_comm", P), ("on_failure", P), ("on_failure_user", P),
                ("may_exit", c.c_bool)]


Progress = c.CFUNCTYPE(c.c_bool, P, SIZE, SIZE)


class ModelParams(c.Structure):
    _fields_ = [("size", SIZE), ("path", TEXT), ("devices", TEXT), ("split", TEXT), ("overlap", TEXT), ("wire", TEXT),
                ("experts", TEXT), ("n_ctx", I64), ("n_batch", I64), ("kv_type", S), ("single", c.c_bool),
                ("check", c.c_bool), ("progress", Progress), ("user", P)]


class ModelInfo(c.Structure):
    _fields_ = [("size", SIZE), ("path", TEXT), ("arch", TEXT), ("n_vocab", I64), ("n_embd", I64), ("n_layer", I64),
                ("n_ctx_train", I64), ("n_ctx", I64), ("n_batch", I64), ("n_members", S), ("min_chunked", I64),
                ("total_bytes", SIZE), ("weight_bytes", SIZE), ("share_bytes", SIZE), ("bytes_read", SIZE),
                ("kv_type", S), ("bytes_sent", c.c_uint64)]


class Batch(c.Structure):
    _fields_ = [("size", SIZE), ("n_tokens", I64), ("token", c.POINTER(c.c_int32)), ("pos", c.POINTER(c.c_int32)),
                ("seq", c.POINTER(c.c_int32)), ("logits", c.POINTER(c.c_bool))]

    def __init__(self, size, n, *rows):
        super().__init__(size, n)
        self.kept = rows  # what a struct points to must live as long as it
        for name, row in zip(("token", "pos", "seq", "logits"), rows):
            if row is not None:
                setattr(self, name, row)


class SamplerParams(c.Structure):
    _fields_ = [("size", SIZE), ("seed", c.c_uint64), ("temperature", c.c_float), ("top_p", c.c_float),
                ("min_p", c.c_float), ("top_k", c.c_int32)]


class GenerateParams(c.Structure):
    _fields_ = [("size", SIZE), ("n_predict", I64), ("sampler", SamplerParams), ("system", TEXT),
                ("prompt_len", SIZE), ("seq", S), ("chat", c.c_bool), ("ignore_eos", c.c_bool)]


class Event(c.Structure):
    _fields_ = [("size", SIZE), ("kind", S), ("ids", c.POINTER(c.c_int32)), ("n", SIZE), ("text", P), ("len", SIZE)]


EventFunction = c.CFUNCTYPE(S, P, c.POINTER(Event))


class MetaStats(c.Structure):
    _fields_ = [("size", SIZE)] + [(name, c.c_uint64) for name in
                                   ("n_computes", "n_plans", "compute_ns", "collective_ns", "wait_ns", "n_collectives",
                                    "collective_bytes")]


structs = types.SimpleNamespace(WorldParams=WorldParams, Progress=Progress, ModelParams=ModelParams,
                                ModelInfo=ModelInfo, Batch=Batch, SamplerParams=SamplerParams,
                                GenerateParams=GenerateParams, Event=Event, EventFunction=EventFunction,
                                MetaStats=MetaStats)

for _name, (_result, *_arguments) in {
    "version": (TEXT,),
    "last_error": (TEXT,),
    "backend_load_all": (None,),
    "backend_dev_memory": (None, P, c.POINTER(SIZE), c.POINTER(SIZE)),
    "backend_dev_type": (S, P),
    "backend_dev_description": (TEXT, P),
    "backend_meta_get_stats": (S, P, P),
    "world_init": (S, P),
    "world_finalize": (None,),
    "world_rank": (S,),
    "world_size": (S,),
    "world_failed": (c.c_bool,),
    "world_reports_error": (c.c_bool,),
    "world_abort": (None, TEXT),
    "world_devices": (S, c.POINTER(c.POINTER(P)), c.POINTER(SIZE)),
    "world_device_rank": (S, P),
    "world_host_name": (TEXT, S),
    "model_open": (S, P, P),
    "model_free": (None, P),
    "model_get_info": (S, P, P),
    "model_member": (P, P, S),
    "model_share": (c.c_double, P, S),
    "model_device_name": (TEXT, P),
    "model_print_split": (P, P, TEXT, SIZE),
    "model_backend": (P, P),
    "model_meta": (P, P),
    "model_tokenizer": (S, P, P),
    "model_eval": (S, P, P),
    "model_n_rows": (I64, P),
    "model_get_logits": (S, P, P),
    "model_embed": (S, P, P, I64, S, P),
    "model_cache_clear": (None, P),
    "model_generate": (S, P, TEXT, P, EventFunction, P, P),
    "tokenizer_encode": (S, P, TEXT, SIZE, c.c_uint, P, P),
    "tokenizer_decode": (S, P, P, SIZE, c.c_uint, P, P),
}.items():
    _function = getattr(lib, "sheaf_" + _name)
    _function.restype, _function.argtypes = _result, _arguments

lib.libc_free = c.CDLL(None).free  # of memory that the library gives away
lib.libc_free.restype, lib.libc_free.argtypes = None, [P]
