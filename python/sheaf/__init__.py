"""Language models over every CPU and GPU of an MPI job.

All ranks of the job make the same calls in the same order (sheaf/model.h says which are collective). A failed call
raises sheaf.Error with the library's text; a script that ends by it ends the other ranks' waits as well.
"""
import ctypes as _c
import sys as _sys

from ._abi import lib as _lib, structs as _s

__all__ = ["Error", "Device", "Model", "init", "finalize", "rank", "size", "devices", "version"]

_KINDS = ("CPU", "GPU", "accelerator", "meta")
_ABORTED = 1  # SHEAF_STATUS_ABORTED
_TYPES = {"f32": 0, "f16": 1, "q8_0": 8}


class Error(RuntimeError):
    """`status` is the number of enum sheaf_status; `reports`: this rank is to print the text, once a job."""

    def __init__(self, status):
        super().__init__(_lib.sheaf_last_error().decode(errors="replace") or "status %d" % status)
        self.status = status
        self.reports = bool(_lib.sheaf_world_reports_error())


def _check(status):
    if status:
        raise Error(status)


def version():
    return _lib.sheaf_version().decode()


def _end_the_others(kind, error, trace):
    """A rank that ends by an exception leaves none waiting."""
    if _lib.sheaf_world_size() > 1 and not _lib.sheaf_world_failed():
        _lib.sheaf_world_abort(("%s: %s" % (kind.__name__, error)).encode())
    if not isinstance(error, Error) or error.reports:
        _before(kind, error, trace)
    _sys.stderr.flush()


_before = _sys.excepthook


def init(timeout_ms=0, may_exit=True):
    """Joins the job of the launcher, or becomes a job of one process. Once, at the start."""
    params = _s.WorldParams(_c.sizeof(_s.WorldParams), timeout_ms, None, None, None, may_exit)
    _check(_lib.sheaf_world_init(_c.byref(params)))
    _lib.sheaf_backend_load_all()
    _sys.excepthook = _end_the_others


def finalize():
    """Ends the job. False if it has failed, also at its end: the script is to exit with another status than 0 then."""
    _lib.sheaf_world_finalize()
    _sys.excepthook = _before
    return not _lib.sheaf_world_failed()


def rank():
    return _lib.sheaf_world_rank()


def size():
    return _lib.sheaf_world_size()


class Device:
    """A device of the job, on any rank: name ("CPU0@1"), kind, description, rank, host, and memory in bytes."""

    def __init__(self, handle):
        free, total = _c.c_size_t(), _c.c_size_t()
        _lib.sheaf_backend_dev_memory(handle, _c.byref(free), _c.byref(total))
        self.name = _lib.sheaf_model_device_name(handle).decode()
        self.kind = _KINDS[_lib.sheaf_backend_dev_type(handle)]
        self.description = _lib.sheaf_backend_dev_description(handle).decode()
        self.rank = _lib.sheaf_world_device_rank(handle)
        self.host = (_lib.sheaf_world_host_name(self.rank) or b"").decode()
        self.memory_free, self.memory_total = free.value, total.value

    def __repr__(self):
        return "<Device %s %s on %s>" % (self.name, self.kind, self.host)


def devices():
    """All devices of all ranks, in the order of ranks."""
    handles, n = _c.POINTER(_c.c_void_p)(), _c.c_size_t()
    _check(_lib.sheaf_world_devices(_c.byref(handles), _c.byref(n)))
    return [Device(handles[i]) for i in range(n.value)]


def _array(buffer, rows, columns):
    """The ctypes buffer as rows of floats; numpy's array is a view of it and keeps it alive."""
    try:
        import numpy
    except ImportError:
        view = memoryview(buffer).cast("B").cast("f")
        return [view[i * columns:(i + 1) * columns] for i in range(rows)]
    return numpy.frombuffer(buffer, dtype=numpy.float32).reshape(rows, columns)


class Model:
    """A model of a GGUF file, divided over the devices of the job. Collective."""

    def __init__(self, path, devices=None, split=None, n_ctx=0, n_batch=0, kv_type="f16", single=False, wire=None,
                 experts=None, overlap=None, check=False, progress=None):
        """devices: "CPU0@0,CPU0@1"; split: "even", "auto" or "3,1"; single: the first device alone (one rank);
        progress: called with bytes that are loaded and all bytes, returns False to give up."""
        def text(s):
            return s.encode() if s else None
        self._handle, self._tokenizer = _c.c_void_p(), None
        self._progress = _s.Progress(lambda _user, done, total: progress(done, total) is not False) if progress \
            else _s.Progress(0)
        params = _s.ModelParams(
            size=_c.sizeof(_s.ModelParams), path=text(str(path)), devices=text(devices), split=text(split),
            overlap=text(overlap), wire=text(wire), experts=text(experts), n_ctx=n_ctx, n_batch=n_batch,
            kv_type=_TYPES[kv_type], single=single, check=check, progress=self._progress)
        _check(_lib.sheaf_model_open(_c.byref(params), _c.byref(self._handle)))
        info = _s.ModelInfo(_c.sizeof(_s.ModelInfo))
        _check(_lib.sheaf_model_get_info(self._model, _c.byref(info)))
        self.path, self.arch = info.path.decode(), info.arch.decode()
        for name in ("n_vocab", "n_embd", "n_layer", "n_ctx_train", "n_ctx", "n_batch", "n_members", "total_bytes",
                     "weight_bytes", "bytes_read", "bytes_sent"):
            setattr(self, name, getattr(info, name))

    def close(self):
        _lib.sheaf_model_free(self._handle)
        self._handle, self._tokenizer = _c.c_void_p(), None

    @property
    def _model(self):
        if not self._handle:
            raise ValueError("the model is closed")
        return self._handle

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.close()

    # ---- the plan ----

    def plan(self):
        """How the model lies over its members: a list of (device name, share), and what each has, as a text."""
        text = _c.create_string_buffer(4096)
        _lib.sheaf_model_print_split(self._model, text, len(text))
        members = [(_lib.sheaf_model_device_name(_lib.sheaf_model_member(self._model, i)).decode(),
                    _lib.sheaf_model_share(self._model, i)) for i in range(self.n_members)]
        return members, text.value.decode()

    def stats(self):
        """Collectives and their bytes so far, of this rank; None if the model is on a single device."""
        stats = _s.MetaStats(_c.sizeof(_s.MetaStats))
        if not _lib.sheaf_model_meta(self._model):
            return None
        _check(_lib.sheaf_backend_meta_get_stats(_lib.sheaf_model_backend(self._model), _c.byref(stats)))
        return {"collectives": stats.n_collectives, "bytes": stats.collective_bytes}

    # ---- text ----

    def _tok(self):
        if not self._tokenizer:
            found = _c.c_void_p()
            _check(_lib.sheaf_model_tokenizer(self._model, _c.byref(found)))
            self._tokenizer = found
        return self._tokenizer

    def encode(self, text, special=True, parse_special=False):
        """Token ids of a text; special: with the token that begins one, where the model wants it."""
        data, ids, n = text.encode(), _c.POINTER(_c.c_int32)(), _c.c_size_t()
        _check(_lib.sheaf_tokenizer_encode(self._tok(), data, len(data), bool(special) | bool(parse_special) * 2,
                                           _c.byref(ids), _c.byref(n)))
        try:
            return list(ids[:n.value])
        finally:
            _lib.libc_free(_c.cast(ids, _c.c_void_p))

    def decode(self, ids, special=False):
        ids = list(ids)
        text, n = _c.c_void_p(), _c.c_size_t()
        _check(_lib.sheaf_tokenizer_decode(self._tok(), (_c.c_int32 * len(ids))(*ids), len(ids), bool(special),
                                           _c.byref(text), _c.byref(n)))
        try:
            return _c.string_at(text, n.value).decode(errors="replace")
        finally:
            _lib.libc_free(text)

    # ---- evaluation ----

    def eval(self, tokens, pos=None, seq=None, logits=None):
        """Evaluates tokens behind what their sequences have in the cache. Returns logits [rows, n_vocab], a row for
        each token for which `logits` is true, by default the last. At most n_batch tokens at once."""
        tokens = [int(t) for t in tokens]
        n = len(tokens)

        def row(of, values):
            if values is not None and len(values) != n:
                raise ValueError("%d values for %d tokens" % (len(values), n))
            return (of * n)(*values) if values is not None else None
        batch = _s.Batch(_c.sizeof(_s.Batch), n, row(_c.c_int32, tokens), row(_c.c_int32, pos), row(_c.c_int32, seq),
                         row(_c.c_bool, logits))
        _check(_lib.sheaf_model_eval(self._model, _c.byref(batch)))
        return self.logits()

    def logits(self):
        """Rows that the last evaluation left, on every rank."""
        rows = _lib.sheaf_model_n_rows(self._model)
        buffer = (_c.c_float * (rows * self.n_vocab))()
        _check(_lib.sheaf_model_get_logits(self._model, buffer))
        return _array(buffer, rows, self.n_vocab)

    def embed(self, tokens):
        """The embedding [n_embd] of a text by an encoder (bert)."""
        tokens = list(tokens)
        buffer = (_c.c_float * self.n_embd)()
        _check(_lib.sheaf_model_embed(self._model, (_c.c_int32 * len(tokens))(*tokens), len(tokens), 0, buffer))
        return _array(buffer, 1, self.n_embd)[0]

    def clear(self):
        """Forgets all sequences."""
        _lib.sheaf_model_cache_clear(self._model)

    # ---- generation ----

    def generate(self, prompt, n=128, temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, seed=0, chat=False,
                 system=None, seq=0, ignore_eos=False, on_text=None):
        """Pieces of the text that follows, as a list; on ranks other than 0 they are empty. on_text is called with
        each piece when it is there, on every rank, and returns False to stop."""
        pieces, failed = [], []

        def take(_user, event):
            try:
                text = _c.string_at(event.contents.text, event.contents.len).decode(errors="replace")
                if text:
                    pieces.append(text)
                if event.contents.kind in (3, 4) and on_text and on_text(text) is False:
                    return _ABORTED
            except BaseException as e:  # a callback cannot raise through C
                failed.append(e)
                return _ABORTED
            return 0
        sampler = _s.SamplerParams(_c.sizeof(_s.SamplerParams), seed, temperature, top_p, min_p, top_k)
        data = None if prompt is None else prompt.encode()
        how = _s.GenerateParams(_c.sizeof(_s.GenerateParams), n, sampler, system.encode() if system else None,
                                len(data or b""), seq, chat, ignore_eos)
        callback = _s.EventFunction(take)
        status = _lib.sheaf_model_generate(self._model, data, _c.byref(how), callback, None, None)
        if failed:
            raise failed[0]
        _check(status)
        return pieces
