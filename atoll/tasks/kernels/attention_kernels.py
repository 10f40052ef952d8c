"""Triton kernels: causal attention of short texts, with keyed dropout of its weights, and its gradient.

Only `attention` imports this, and only where Triton is there. A program has one head of one text: its scores stay in
registers, and are computed again for the gradient.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

from atoll.tasks.kernels.dropout_kernels import kept, key_word


@triton.jit
def _places(BATCH: tl.constexpr, T: tl.constexpr, H: tl.constexpr, D: tl.constexpr, TT: tl.constexpr,
            DD: tl.constexpr):  # fmt: skip
    """Client, text and head of this program, its numbers within a text's outputs, and which of them are there."""
    head, text = tl.program_id(0) % H, tl.program_id(0) // H
    t, d = tl.arange(0, TT), tl.arange(0, DD)
    return text // BATCH, text, head, t[:, None], head * D + d[None, :], (t < T)[:, None] & (d < D)[None, :]


@triton.jit
def _load(at, real):
    return tl.load(at, mask=real, other=0.0).to(tl.float32)


@triton.jit
def _weights(q, k, keys, client, row, head, salt, least, scale, T: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
             TT: tl.constexpr, DROPPED: tl.constexpr, PER_ROW: tl.constexpr, BATCH: tl.constexpr,
             PRECISION: tl.constexpr):  # fmt: skip
    """Softmax of the scores with the future masked, and which of its numbers are kept."""
    i, j = tl.arange(0, TT)[:, None], tl.arange(0, TT)[None, :]
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    scores = tl.where((j <= i) & (j < T), scores, float("-inf"))
    chance = tl.exp(scores - tl.max(scores, 1)[:, None])
    chance /= tl.sum(chance, 1)[:, None]
    keep = (i < T) & (j < T)
    if DROPPED:
        half: tl.constexpr = (H * T * T + 1) // 2
        word = key_word(keys + 2 * (client * BATCH + row if PER_ROW else client).to(tl.int64), salt)
        before = 0 if PER_ROW else row * half
        keep = keep & kept(head * T * T + i * T + j, half, before, word, least)
    return chance, keep


@triton.jit(do_not_specialize=["salt", "least"])
def attention(
    qkv, keys, out, salt, least, scale, larger, BATCH: tl.constexpr, T: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    TT: tl.constexpr, DD: tl.constexpr, DROPPED: tl.constexpr, PER_ROW: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out[b, t, h] = sum over s up to t of keep larger softmax(q[b, t, h] k[b, s, h] scale) v[b, s, h]."""
    W: tl.constexpr = H * D
    client, text, head, t, w, real = _places(BATCH, T, H, D, TT, DD)
    at = qkv + text.to(tl.int64) * T * 3 * W + t * 3 * W + w
    q, k, v = _load(at, real), _load(at + W, real), _load(at + 2 * W, real)
    chance, keep = _weights(
        q, k, keys, client, text % BATCH, head, salt, least, scale, T, H, D, TT, DROPPED, PER_ROW, BATCH, PRECISION
    )
    weight = tl.where(keep, chance * larger, 0.0)
    value = tl.dot(weight, v, input_precision=PRECISION)
    tl.store(out + text.to(tl.int64) * T * W + t * W + w, value.to(out.dtype.element_ty), mask=real)


@triton.jit(do_not_specialize=["salt", "least"])
def attention_gradient(
    g, qkv, keys, out, salt, least, scale, larger, BATCH: tl.constexpr, T: tl.constexpr, H: tl.constexpr,
    D: tl.constexpr, TT: tl.constexpr, DD: tl.constexpr, DROPPED: tl.constexpr, PER_ROW: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """By q, k and v."""
    W: tl.constexpr = H * D
    client, text, head, t, w, real = _places(BATCH, T, H, D, TT, DD)
    within = text.to(tl.int64) * T * 3 * W + t * 3 * W + w
    at = qkv + within
    q, k, v = _load(at, real), _load(at + W, real), _load(at + 2 * W, real)
    slope = _load(g + text.to(tl.int64) * T * W + t * W + w, real)
    chance, keep = _weights(
        q, k, keys, client, text % BATCH, head, salt, least, scale, T, H, D, TT, DROPPED, PER_ROW, BATCH, PRECISION
    )
    weight = tl.where(keep, chance * larger, 0.0)
    by_chance = tl.where(keep, tl.dot(slope, tl.trans(v), input_precision=PRECISION) * larger, 0.0)
    by_score = chance * (by_chance - tl.sum(by_chance * chance, 1)[:, None]) * scale
    to = out + within
    by_q = tl.dot(by_score, k, input_precision=PRECISION)
    by_k = tl.dot(tl.trans(by_score), q, input_precision=PRECISION)
    by_v = tl.dot(tl.trans(weight), slope, input_precision=PRECISION)
    tl.store(to, by_q.to(out.dtype.element_ty), mask=real)
    tl.store(to + W, by_k.to(out.dtype.element_ty), mask=real)
    tl.store(to + 2 * W, by_v.to(out.dtype.element_ty), mask=real)
