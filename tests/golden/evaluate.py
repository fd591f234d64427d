#!/usr/bin/env python3
"""Float64 evaluation of a GGUF model with F32 weights, in plain numpy, of any architecture here: an independent account
of what the graphs of src/model compute. Prints the logits after N tokens, token i being (37 i + 11) mod vocabulary.

    sheaf-make-model --arch NAME --layers 7 --window 8 [--experts 6 --experts-used 3 [--shared-ff 96]] -o m.gguf
    evaluate.py m.gguf 20 [KEY=NUMBER ...] > arch-NAME.txt      keys besides those of the file
"""
import struct, sys
import numpy as np

FORMATS = {0: 'B', 1: 'b', 2: 'H', 3: 'h', 4: 'I', 5: 'i', 6: 'f', 7: '?', 10: 'Q', 11: 'q', 12: 'd'}
# Of an architecture: how pairs are rotated ('next': 2i, 2i + 1; 'half': i, i + d/2), and the last of how many layers has
# no sliding window.
PAIRS = {'llama': 'next', 'granite': 'next', 'granitemoe': 'next', 'granitehybrid': 'next', 'deepseek2': 'next'}
PERIOD = {'gemma3': 6, 'olmo2': 4, 'gpt-oss': 2}


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
for name, number in (a.split('=') for a in sys.argv[3:]): keys[f'{arch}.{name}'] = int(number)
key = lambda name, default=None: keys.get(f'{arch}.{name}', default)
E, L = key('embedding_length'), key('block_count')
H, G, D = key('attention.head_count'), key('attention.head_count_kv'), key('attention.key_length')
if isinstance(G, list): G = max(G)  # 0 in layers with a state
EPS, BASE = key('attention.layer_norm_rms_epsilon'), key('rope.freq_base')
bert = arch == 'bert'
gemma = arch == 'gemma3'
CONTEXT = 4096  # that the model is run with, or less
ORIGINAL = key('rope.scaling.original_context_length', key('context_length'))


def norm(x, w): return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * w


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def activate(x):
    if gemma or bert: return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))
    return x / (1 + np.exp(-x))


def is_windowed(layer): return arch in PERIOD and layer % PERIOD[arch] < PERIOD[arch] - 1


def frequencies(n, layer):  # of the pairs of n elements, and the size of what is rotated
    longer = min(key('context_length'), CONTEXT) > ORIGINAL
    local = is_windowed(layer) and arch != 'gpt-oss'  # positions that are not scaled
    base = key('rope.freq_base_swa', 10000 if gemma else BASE) if is_windowed(layer) else BASE
    f = base ** (-np.arange(0, n, 2) / n)
    if local: return f, 1
    f = f / W.get('rope_factors_long.weight' if longer else 'rope_factors_short.weight', 1)
    size, factor = key('rope.scaling.attn_factor', 1), key('rope.scaling.factor', 1)
    if key('rope.scaling.type') != 'yarn': return f / factor, size
    # YaRN: pairs that turn more than 32 times in the original context stay, fewer than once are slowed
    fast, slow = key('rope.scaling.yarn_beta_fast', 32), key('rope.scaling.yarn_beta_slow', 1)
    low, high = (n * np.log(ORIGINAL / (turns * 2 * np.pi)) / (2 * np.log(BASE)) for turns in (fast, slow))
    low, high = max(0, np.floor(low)), min(n - 1, np.ceil(high))
    stays = 1 - np.clip((np.arange(n // 2) - low) / max(0.001, high - low), 0, 1)
    return f * (stays + (1 - stays) / factor), size * (1 if arch == 'deepseek2' else 1 + 0.1 * np.log(factor))


def rotate(x, layer):  # [tokens, heads, n]
    n = x.shape[-1]
    f, size = frequencies(n, layer)
    angle = np.outer(np.arange(len(x)), f)
    c, s, y = size * np.cos(angle)[:, None], size * np.sin(angle)[:, None], np.empty_like(x)
    pairs = PAIRS.get(arch, 'half')
    a, b = (slice(0, None, 2), slice(1, None, 2)) if pairs == 'next' else (slice(0, n // 2), slice(n // 2, None))
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
        heads[name] = y if name == 'v' or bert else rotate(y, layer)
    k, v = (np.repeat(heads[name], H // G, 1) for name in 'kv')
    y = mix(heads['q'], k, v, key('attention.scale', 1 / np.sqrt(D)), layer) @ w('attn_output.weight').T
    return y if w('attn_output.bias') is None else y + w('attn_output.bias')


def mix(q, k, v, scale, layer):  # q, k [tokens, heads, d], v [tokens, heads, e] -> [tokens, heads * e]
    n, sinks = len(q), W.get(f'blk.{layer}.attn_sinks.weight')
    i, j = np.arange(n)[:, None], np.arange(n)[None]
    seen = (j <= i) | bert
    if is_windowed(layer): seen &= i - j < key('attention.sliding_window')
    scores = np.where(seen, np.einsum('ihd,jhd->hij', q, k) * scale, -np.inf)
    if sinks is not None: scores = np.concatenate([scores, np.repeat(sinks[:, None, None], n, 1)], 2)
    return np.einsum('hij,jhd->ihd', softmax(scores)[..., :n], v).reshape(n, -1)


def latent_attention(x, layer):  # not absorbed: keys and values of each head are made
    w = lambda name: W.get(f'blk.{layer}.attn_{name}.weight')
    n, latent, rot = len(x), key('attention.kv_lora_rank'), key('rope.dimension_count')
    q = norm(x @ w('q_a').T, w('q_a_norm')) @ w('q_b').T
    q = q.reshape(n, H, -1)
    both = x @ w('kv_a_mqa').T
    c = norm(both[:, :latent], w('kv_a_norm'))
    k_rot = np.repeat(rotate(both[:, None, latent:], layer), H, 1)
    k = np.concatenate([np.einsum('tc,hcd->thd', c, w('k_b')), k_rot], 2)
    v = np.einsum('tc,hdc->thd', c, w('v_b'))
    q = np.concatenate([q[..., :-rot], rotate(q[..., -rot:], layer)], 2)
    factor = np.log(key('rope.scaling.factor', 1))
    scale = (1 + key('rope.scaling.yarn_log_multiplier', 0) * factor) ** 2 / np.sqrt(q.shape[-1])
    return mix(q, k, v, scale, layer) @ w('output').T


def unit(gate, up):
    if arch != 'gpt-oss': return activate(gate) * up
    gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
    return gate / (1 + np.exp(-1.702 * gate)) * (up + 1)


def state_layer(x, layer):  # Mamba-2, token by token
    w = lambda name: W[f'blk.{layer}.ssm_{name}']
    inner, k, heads = key('ssm.inner_size'), key('ssm.state_size'), key('ssm.time_step_rank')
    groups, taps, d = key('ssm.group_count'), key('ssm.conv_kernel'), inner // heads
    z, xbc, dt = np.split(x @ w('in.weight').T, [inner, 2 * inner + 2 * groups * k], 1)
    padded = np.concatenate([np.zeros((taps - 1, xbc.shape[1])), xbc])
    xbc = sum(padded[i:i + len(x)] * w('conv1d.weight')[:, i] for i in range(taps)) + w('conv1d.bias')
    xbc = xbc / (1 + np.exp(-xbc))
    u, b, c = np.split(xbc, [inner, inner + groups * k], 1)
    dt = np.log1p(np.exp(dt + w('dt.bias')))
    state, y = np.zeros((heads, d, k)), np.zeros((len(x), heads, d))
    each = heads // groups
    for t in range(len(x)):
        bt, ct = (np.repeat(v[t].reshape(groups, k), each, 0) for v in (b, c))
        ut = u[t].reshape(heads, d)
        state *= np.exp(dt[t] * w('a')[:, 0])[:, None, None]
        state += (dt[t][:, None] * ut)[:, :, None] * bt[:, None]
        y[t] = (state * ct[:, None]).sum(2) + w('d') * ut
    y = y.reshape(len(x), inner) * z / (1 + np.exp(-z))
    y = norm(y.reshape(len(x), groups, -1), w('norm.weight').reshape(groups, -1)).reshape(len(x), inner)
    return y @ w('out.weight').T


def gated(x, gate, up, down): return unit(x @ gate.T, x @ up.T) @ down.T


def choose(scores):  # of one token: the experts, best first; of the best groups, if there are some
    groups = key('expert_group_count', 0)
    if groups > 1:
        each = scores.reshape(groups, -1)
        good = np.argsort(-np.sort(each)[:, -2:].sum(1), kind='stable')[:key('expert_group_used_count')]
        kept = np.isin(np.arange(groups), good)[:, None]
        scores = np.where(kept, each, -np.inf).ravel()
    return np.argsort(-scores, kind='stable')[:key('expert_used_count')]


def weigh(p, raw):  # p: of all experts, raw: scores, both of those chosen
    if arch == 'gpt-oss': return softmax(raw)
    return (p / p.sum() if key('expert_weights_norm', arch != 'deepseek2') else p) * key('expert_weights_scale', 1)


def feed_forward(x, layer):
    w = lambda name, kind='weight': W.get(f'blk.{layer}.ffn_{name}.{kind}')
    if w('gate_inp') is None and w('gate') is None: return gated(x, *np.split(w('up'), 2), w('down'))
    if w('gate_inp') is None: return gated(x, w('gate'), w('up'), w('down'))
    raw = x @ w('gate_inp').T + (0 if w('gate_inp', 'bias') is None else w('gate_inp', 'bias'))
    p = 1 / (1 + np.exp(-raw)) if key('expert_gating_func') == 2 else softmax(raw)
    y = np.zeros_like(x)
    if w('gate_shexp') is not None: y += gated(x, w('gate_shexp'), w('up_shexp'), w('down_shexp'))
    bias = lambda name, e: 0 if w(name, 'bias') is None else w(name, 'bias')[e]
    for t, row in enumerate(x):
        chosen = choose((raw if arch == 'gpt-oss' else p)[t])
        for e, share in zip(chosen, weigh(p[t][chosen], raw[t][chosen])):
            hidden = unit(*(w(name)[e] @ row + bias(name, e) for name in ('gate_exps', 'up_exps')))
            y[t] += share * (w('down_exps')[e] @ hidden + bias('down_exps', e))
    return y


def forward(ids):
    x = W['token_embd.weight'][ids] * (np.sqrt(E) if gemma else key('embedding_scale', 1))
    for layer in range(L):
        w = lambda name: W.get(f'blk.{layer}.{name}.weight')
        if arch == 'mamba2':
            x = x + state_layer(norm(x, w('attn_norm')), layer)
            continue
        maybe = lambda x, name: x if w(name) is None else norm(x, w(name))
        first = latent_attention if w('attn_kv_a_mqa') is not None else attention
        y = (first if w('ssm_in') is None else state_layer)(maybe(x, 'attn_norm'), layer)
        before_ffn = 'post_attention_norm' if arch == 'gpt-oss' else 'ffn_norm'  # what the converter calls it
        x = x + key('residual_scale', 1) * (y if arch == 'gpt-oss' else maybe(y, 'post_attention_norm'))
        y = feed_forward(maybe(x, before_ffn), layer)
        x = x + key('residual_scale', 1) * maybe(y, 'post_ffw_norm')
    logits = norm(x, W['output_norm.weight']) @ W.get('output.weight', W['token_embd.weight']).T
    return logits / key('logit_scale', 1)


def embed(ids):  # of BERT: the mean of the tokens' results, of length 1
    def norm_bias(x, name):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + key('attention.layer_norm_epsilon'))
        return x * W[name + '.weight'] + W[name + '.bias']
    x = W['token_embd.weight'][ids] + W['position_embd.weight'][:len(ids)] + W['token_types.weight'][0]
    x = norm_bias(x, 'token_embd_norm')
    for layer in range(L):
        w = lambda name: W[f'blk.{layer}.{name}']
        x = norm_bias(x + attention(x, layer), f'blk.{layer}.attn_output_norm')
        y = activate(x @ w('ffn_up.weight').T + w('ffn_up.bias')) @ w('ffn_down.weight').T + w('ffn_down.bias')
        x = norm_bias(x + y, f'blk.{layer}.layer_output_norm')
    x = x.mean(0)
    return x / np.sqrt(x @ x)


n_vocab = len(W['token_embd.weight'])
if bert:
    print(*('%.8f' % v for v in embed([(37 * i + 11) % n_vocab for i in range(int(sys.argv[2]))])))
    sys.exit()
logits = forward([(37 * i + 11) % n_vocab for i in range(int(sys.argv[2]))])[-1]
for i in range(0, n_vocab, 8): print(*('%.6f' % v for v in logits[i:i + 8]))
