#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets to tests/fuzz/seeds: small inputs that reach most code.

    tests/fuzz/make-seeds.py        no arguments; the seeds are kept in the tree"""
import os, struct

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "seeds")


def save(target, name, data):
    os.makedirs(os.path.join(HERE, target), exist_ok=True)
    with open(os.path.join(HERE, target, name), "wb") as f:
        f.write(data if isinstance(data, bytes) else data.encode())


# ---- GGUF: magic, version 3, counts, key/value pairs, tensors (the format's documentation) ----
U32, I32, F32, BOOL, STR, ARR, U64 = 4, 5, 6, 7, 8, 9, 10
FORMS = {U32: "<I", I32: "<i", F32: "<f", BOOL: "<?", U64: "<Q"}


def text(s):
    s = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(s)) + s


def value(kind, v):
    if kind == STR:
        return text(v)
    if kind == ARR:
        of, items = v
        return struct.pack("<IQ", of, len(items)) + b"".join(value(of, i) for i in items)
    return struct.pack(FORMS[kind], v)


def gguf(pairs, tensors=()):
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    for key, kind, v in pairs:
        out += text(key) + struct.pack("<I", kind) + value(kind, v)
    offset = 0
    for name, ne in tensors:  # F32
        out += text(name) + struct.pack("<I", len(ne)) + b"".join(struct.pack("<Q", n) for n in ne)
        out += struct.pack("<IQ", 0, offset)
        size = 4
        for n in ne:
            size *= n
        offset += (size + 31) // 32 * 32
    out += b"\0" * (-len(out) % 32)
    return out + b"\0" * offset


def hparams(arch, more=()):
    numbers = {"block_count": 2, "embedding_length": 64, "feed_forward_length": 128, "context_length": 256,
               "attention.head_count": 4, "attention.head_count_kv": 2}
    return ([("general.architecture", STR, arch)] + [(arch + "." + k, U32, v) for k, v in numbers.items()] +
            [(arch + ".attention.layer_norm_rms_epsilon", F32, 1e-5), (arch + ".rope.freq_base", F32, 1e4)] +
            [(arch + "." + k, kind, v) for k, kind, v in more])


SPACE = "\u2581"
SPM = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)] + [SPACE, "a", "b", "ab", SPACE + "a", "abc", "l", "ll"]
spm = [("tokenizer.ggml.model", STR, "llama"), ("tokenizer.ggml.tokens", ARR, (STR, SPM)),
       ("tokenizer.ggml.scores", ARR, (F32, [-float(i) for i in range(len(SPM))])),
       ("tokenizer.ggml.token_type", ARR, (I32, [2, 3, 3] + [6] * 256 + [1] * (len(SPM) - 259))),
       ("tokenizer.ggml.bos_token_id", U32, 1), ("tokenizer.ggml.eos_token_id", U32, 2),
       ("tokenizer.ggml.add_bos_token", BOOL, True)]


def byte_letters():  # of byte-level vocabularies: printable bytes stand for themselves
    own = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    rest = [b for b in range(256) if b not in own]
    return [chr(b) for b in own] + [chr(256 + i) for i in range(len(rest))]


BPE = byte_letters() + ["he", "ll", "hell", "hello", "\u0120w", "<|im_start|>", "<|im_end|>"]
bpe = [("tokenizer.ggml.model", STR, "gpt2"), ("tokenizer.ggml.pre", STR, "qwen2"),
       ("tokenizer.ggml.tokens", ARR, (STR, BPE)),
       ("tokenizer.ggml.token_type", ARR, (I32, [1] * (len(BPE) - 2) + [3, 3])),
       ("tokenizer.ggml.merges", ARR, (STR, ["h e", "l l", "he ll", "hell o", "\u0120 w"])),
       ("tokenizer.ggml.eos_token_id", U32, len(BPE) - 1)]
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", SPACE + "hello", SPACE + "wor", "ld", "##ld", SPACE + "a"]
bert = [("tokenizer.ggml.model", STR, "bert"), ("tokenizer.ggml.tokens", ARR, (STR, WORDS)),
        ("tokenizer.ggml.token_type", ARR, (I32, [3, 1, 3, 3] + [1] * (len(WORDS) - 4))),
        ("tokenizer.ggml.bos_token_id", U32, 2), ("tokenizer.ggml.eos_token_id", U32, 3),
        ("tokenizer.ggml.unknown_token_id", U32, 1)]

save("gguf", "llama", gguf(hparams("llama") + spm, [("token_embd.weight", (8, 4)), ("output_norm.weight", (8,))]))
save("gguf", "qwen2", gguf(hparams("qwen2") + bpe + [("tokenizer.chat_template", STR, CHATML)]))
save("gguf", "gemma3", gguf(hparams("gemma3", [("attention.sliding_window", U32, 64), ("attention.key_length", U32, 16)]) + spm))
save("gguf", "bert", gguf(hparams("bert", [("attention.layer_norm_epsilon", F32, 1e-12)]) + bert))
save("gguf", "experts", gguf(hparams("qwen3moe", [("expert_count", U32, 8), ("expert_used_count", U32, 2),
                                                    ("expert_feed_forward_length", U32, 32)])))
save("gguf", "deepseek2", gguf(hparams("deepseek2", [("attention.kv_lora_rank", U32, 32), ("attention.key_length", U32, 24),
     ("rope.dimension_count", U32, 8), ("expert_count", U32, 4), ("expert_used_count", U32, 2),
     ("rope.scaling.type", STR, "yarn"), ("rope.scaling.factor", F32, 40.0), ("leading_dense_block_count", U32, 1)])))
save("gguf", "granitehybrid", gguf(hparams("granitehybrid", [("ssm.conv_kernel", U32, 4), ("ssm.inner_size", U32, 64),
     ("ssm.state_size", U32, 16), ("ssm.time_step_rank", U32, 4), ("ssm.group_count", U32, 1)])))

# ---- models (fuzz-model.c): the architecture, experts, edits, then types, the wrong tensor, members, shares ----
for i in range(14):
    save("model", "arch%d" % i, bytes([i, 2, 1, 0, 0, 255, 0, 1, 2, 3, 1, 2, 0, 0]))
    save("model", "edits%d" % i, bytes([i, 5, 0, 3, 8, 4, 4, 70, 18, 9, 1, 200, 0, 0, 3, 9, 1, 1, 2, 1, 0]))

# ---- texts ----
save("text", "words", b"\x03Hello world, in the day that 123 thou shalt 'tis\n\n  naught </s> <s>")
save("text", "utf8", b"\x01" + "é 漢字 🙂 \u0301\u200d".encode() + b"\xf0\x9f\xff\xc0\x80")
save("text", "ids", b"\x83" + b"".join(struct.pack("<i", i) for i in (1, 5, 300, 2, 511, -1, 70000, 42, 3, 90)))
save("text", "stream", b"\x80" + b"".join(struct.pack("<i", i) for i in range(8, 72)))

# ---- chats ----
for i, t in enumerate((CHATML, "<|start_header_id|>{{ role }}<|end_header_id|>\n\n{{ content }}<|eot_id|>",
                       "<start_of_turn>{{ role }}\n{{ content }}<end_of_turn>\n",
                       "{% if not system %}<|im_start|>system\nYou are helpful.<|im_end|>{% endif %}<|im_start|>")):
    save("chat", "format%d" % i, bytes([3 * 4 + i]) + t.encode() + b"\0\x01hello\0\x02answer\0\x01more\0")

# ---- command lines ----
lines = [["-m", "a.gguf", "-p", "text", "-n", "12", "--temp", "0.5", "--top-k", "40", "--split", "3,1,2"],
         ["--model", "m", "-f", "-", "--ctx", "4096", "--kv-type", "q8_0", "--devices", "CPU0@0,CPU0@1", "--json"],
         ["-m", "m", "--perplexity", "f", "--ppl-tokens", "100", "--wire", "bf16"], ["--hlep"], ["1,2.5,1e3"], ["0,0,0"]]
for i, words in enumerate(lines):
    save("options", "line%d" % i, "\0".join(words) + "\0")

# ---- dumps of flight recorders ----
def dump(rank, tensor, total):
    head = "sheaf-flight 1\nversion 0.1.0\njob 00aa\nrank %d of 3\nhost h%d\ndoing collective\nfailure no answer\nnow_us 900.5\n"
    return head % (rank, rank // 2) + "records 2\n# sequence ...\n1 1 all_reduce 4 256 100.0 2.0 5.000 attn_out\n" \
        "2 1 all_reduce 9 256 110.0 2.0 %s %s\n" % (total, tensor)


save("postmortem", "three", "\0".join([dump(0, "ffn_out", "open"), dump(1, "other", "open"), dump(2, "ffn_out", "7.5")]))
save("postmortem", "late", "\0".join([dump(0, "ffn_out", "3.0"), dump(1, "ffn_out", "open").rsplit("\n", 2)[0] + "\n"]))

# ---- frames of control connections (src/comm/watch/frames.c): magic "SAH2", type, size ----
def frame(kind, data):
    return b"SAH2" + struct.pack("<HH", kind, len(data)) + data


def pieces(which, data, size=200):
    out = bytes([which])
    for at in range(0, len(data), size):
        out += bytes([len(data[at:at + size])]) + data[at:at + size]
    return out


hello = struct.pack("<I", 1) + b"n" * 16
alarm = struct.pack("<I", 1) + b"rank 1 failed".ljust(640, b"\0")
save("control", "stranger", pieces(0, frame(1, hello) + frame(3, b"p" * 32), 13))
save("control", "answer", pieces(1, frame(2, b"c" * 48), 20))
beat = struct.pack("<IIIIQQQQ", 3, 1, 7, 0, 64, 5, 9, 2) + b"ffn_out".ljust(48, b"\0")
for n in (32, 40, 48, 64):  # whatever length names have
    save("control", "peer%d" % n, pieces(2, frame(4, beat[:48] + b"ffn_out".ljust(n, b"\0")) + frame(7, b"") +
                                         frame(5, alarm) + frame(8, b"") + frame(6, b"")))

# ---- headers of messages: the first byte says which ----
what = b"texts".ljust(40, b"\0")
save("messages", "control", b"\x01" + b"SAHC" + struct.pack("<IQQ", 2, 0, 40) + what + b"d" * 40)
save("messages", "wire", b"\x00" + b"SAHW" + struct.pack("<IIIQQQ", 7, 0, 3, 0, 64, 0) + b"d" * 64)

# ---- graphs: each byte is a choice ----
for i in range(8):
    save("graph", "walk%d" % i, bytes((x * (37 + 2 * i) + i * 11) % 251 for x in range(64 * (i + 1))))

# ---- the plugin's messages: a bitmap of the words of a record that are not zero, then these ----
def record(**words):  # by index of the word
    order = sorted((int(k[1:]), v) for k, v in words.items())
    return struct.pack("<Q", sum(1 << i for i, v in order if v)) + b"".join(struct.pack("<I", v) for i, v in order if v)


def command(kind, a, c, payload):
    payload += b"\0" * (-len(payload) % 4)
    return bytes([kind, a, c, len(payload) // 4]) + payload


def bind(number, ne):
    shape = struct.pack("<QQ4Q", number, 0, *(list(ne) + [1] * (4 - len(ne))))
    return struct.pack("<Q", 1) + shape + struct.pack("<QQ", 4, 0)  # mirrored


def bind_cut(number, ne, axis, *words):  # with one segment: outer, inner, units, then first and count of each member
    shape = struct.pack("<QQ4Q", number, 0, *(list(ne) + [1] * (4 - len(ne))))
    return struct.pack("<Q", 1) + shape + struct.pack("<QQ", axis, 1) + struct.pack("<%dq" % len(words), *words)


leaf = record(w0=0, w4=3)
save("plugin", "bind", command(0, 1, 0, bind(3, (16, 8))) + command(1, 3, 4, b"\1" * 64) + command(2, 3, 0, b"\0" * 64) +
     command(3, 1, 0, b""))
# Counts whose sum no number holds: the state is refused, and printed in the error.
save("plugin", "counts", command(0, 1, 0, bind_cut(3, (16, 8), 1, 1, 1, 8, 0, 1 << 62, 1 << 62, 1 << 62)))
graph = record(w0=1, w24=16, w26=8, w28=1, w30=1, w32=4, w34=64, w36=512, w38=512)
node = record(w0=2, w1=2, w5=1, w6=1, w24=16, w26=8, w28=1, w30=1, w32=4, w34=64, w36=512, w38=512)
save("plugin", "ask", command(0, 2, 0, bind(3, (16, 8))) + command(4, 2, 0, graph + node) + command(4, 2, 0, leaf + node))
