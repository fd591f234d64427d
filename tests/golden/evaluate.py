#!/usr/bin/env python3
"""Float64 evaluation of a GGUF model with F32 weights, in plain numpy, of any architecture here: an independent account
of what the graphs of src/model compute. Prints the logits after N tokens, token i being (37 i + 11) mod vocabulary.

    sheaf-make-model --arch NAME --layers 7 --window 8 [--experts 6 --experts-used 3 [--shared-ff 96]] -o m.gguf
    evaluate.py m.gguf 20 > arch-NAME.txt
"""
import struct, sys
import numpy as np

FORMATS = {0: 'B', 1: 'b', 2: 'H', 3: 'h', 4: 'I', 5: 'i', 6: 'f', 7: '?', 10: 'Q', 11: 'q', 12: 'd'}
# Of an architecture: how pairs are rotated ('next': 2i, 2i + 1; 'half': i, i + d/2), and the last of how many layers has
# no sliding window.
PAIRS = {'llama': 'next', 'granite': 'next', 'granitemoe': 'next'}
PERIOD = {'gemma3': 6, 'olmo2': 4}


class Reader:
    def __init__(self, path):
        self.data, self.at = open(path, 'rb').read(), 0

    def number(self, form):
        value = struct.unpack_from('<' + form, self.data, self.at)[0]
        self.at += struct.calcsize('<' + form)
        return value

    def text(self):
        n = self.number('Q')
        self.at += n
        return self.data[self.at - n:self.at].decode('utf-8', 'replace')

    def value(self, kind):
        if kind == 8: return self.text()
        if kind == 9:
            kind, n = self.number('I'), self.number('Q')
            return [self.value(kind) for _ in range(n)]
        return self.number(FORMATS[kind])


def read(path):
    r = Reader(path)
    assert r.data[:4] == b'GGUF'
    r.at, _, n_tensors, n_keys = 4, 0, 0, 0
    _, n_tensors, n_keys = r.number('I'), r.number('Q'), r.number('Q')
    keys = {}
    for _ in range(n_keys):
        name = r.text()
        keys[name] = r.value(r.number('I'))
    directory = []
    for _ in range(n_tensors):
        name, n_dims = r.text(), r.number('I')
        shape = [r.number('Q') for _ in range(n_dims)]
        directory.append((name, shape, r.number('I'), r.number('Q')))
    base, weights = (r.at + 31) // 32 * 32, {}
    for name, shape, kind, offset in directory:
        assert kind == 0, f'{name}: only F32 is read here'
        data = np.frombuffer(r.data, '<f4', int(np.prod(shape)), base + offset)
        weights[name] = data.reshape(shape[::-1]).astype(np.float64)
    return keys, weights


keys, W = read(sys.argv[1])
arch = keys['general.architecture']
key = lambda name, default=None: keys.get(f'{arch}.{name}', default)
E, L = key('embedding_length'), key('block_count')
H, G, D = key('attention.head_count'), key('attention.head_count_kv'), key('attention.key_length')
EPS, BASE = key('attention.layer_norm_rms_epsilon'), key('rope.freq_base')
gemma = arch == 'gemma3'
CONTEXT = 4096  # that the model is run with, or less
ORIGINAL = key('rope.scaling.original_context_length', key('context_length'))


def norm(x, w): return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * w


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def activate(x):
    if gemma: return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))
    return x / (1 + np.exp(-x))


def is_windowed(layer): return arch in PERIOD and layer % PERIOD[arch] < PERIOD[arch] - 1


def rotate(x):  # [tokens, heads, D]
    longer = min(key('context_length'), CONTEXT) > ORIGINAL
    factors = W.get('rope_factors_long.weight' if longer else 'rope_factors_short.weight', 1)
    angle = np.outer(np.arange(len(x)), BASE ** (-np.arange(0, D, 2) / D) / factors)
    size = key('rope.scaling.attn_factor', 1)
    c, s, y = size * np.cos(angle)[:, None], size * np.sin(angle)[:, None], np.empty_like(x)
    pairs = PAIRS.get(arch, 'half')
    a, b = (slice(0, None, 2), slice(1, None, 2)) if pairs == 'next' else (slice(0, D // 2), slice(D // 2, None))
    y[..., a] = x[..., a] * c - x[..., b] * s
    y[..., b] = x[..., a] * s + x[..., b] * c
    return y


def project(x, w):  # the three products
    if w('attn_qkv.weight') is not None:
        return np.split(x @ w('attn_qkv.weight').T, [H * D, (H + G) * D], 1)
    return [x @ w(f'attn_{name}.weight').T for name in 'qkv']


def attention(x, layer):
    w = lambda name: W.get(f'blk.{layer}.{name}')
    n, heads = len(x), {}
    for name, count, y in zip('qkv', (H, G, G), project(x, w)):
        if w(f'attn_{name}.bias') is not None: y = y + w(f'attn_{name}.bias')
        weight = w(f'attn_{name}_norm.weight')
        if weight is not None and len(weight) != D: y = norm(y, weight)
        y = y.reshape(n, count, D)
        if weight is not None and len(weight) == D: y = norm(y, weight)
        heads[name] = y if name == 'v' else rotate(y)
    k, v = (np.repeat(heads[name], H // G, 1) for name in 'kv')
    i, j = np.arange(n)[:, None], np.arange(n)[None]
    seen = j <= i
    if is_windowed(layer): seen &= i - j < key('attention.sliding_window')
    scores = np.einsum('ihd,jhd->hij', heads['q'], k) * key('attention.scale', 1 / np.sqrt(D))
    p = softmax(np.where(seen, scores, -np.inf))
    return np.einsum('hij,jhd->ihd', p, v).reshape(n, H * D) @ w('attn_output.weight').T


def gated(x, gate, up, down): return (activate(x @ gate.T) * (x @ up.T)) @ down.T


def feed_forward(x, layer):
    w = lambda name: W.get(f'blk.{layer}.ffn_{name}.weight')
    if w('gate_inp') is None and w('gate') is None: return gated(x, *np.split(w('up'), 2), w('down'))
    if w('gate_inp') is None: return gated(x, w('gate'), w('up'), w('down'))
    y, p = np.zeros_like(x), softmax(x @ w('gate_inp').T)
    if w('gate_shexp') is not None: y += gated(x, w('gate_shexp'), w('up_shexp'), w('down_shexp'))
    for t, row in enumerate(x):
        chosen = np.argsort(-p[t], kind='stable')[:key('expert_used_count')]
        for e in chosen:
            y[t] += p[t][e] / p[t][chosen].sum() * gated(row, w('gate_exps')[e], w('up_exps')[e], w('down_exps')[e])
    return y


def forward(ids):
    x = W['token_embd.weight'][ids] * (np.sqrt(E) if gemma else key('embedding_scale', 1))
    for layer in range(L):
        w = lambda name: W.get(f'blk.{layer}.{name}.weight')
        maybe = lambda x, name: x if w(name) is None else norm(x, w(name))
        y = attention(maybe(x, 'attn_norm'), layer)
        x = x + key('residual_scale', 1) * maybe(y, 'post_attention_norm')
        y = feed_forward(maybe(x, 'ffn_norm'), layer)
        x = x + key('residual_scale', 1) * maybe(y, 'post_ffw_norm')
    logits = norm(x, W['output_norm.weight']) @ W.get('output.weight', W['token_embd.weight']).T
    return logits / key('logit_scale', 1)


n_vocab = len(W['token_embd.weight'])
logits = forward([(37 * i + 11) % n_vocab for i in range(int(sys.argv[2]))])[-1]
for i in range(0, n_vocab, 8): print(*('%.6f' % v for v in logits[i:i + 8]))
