#include "based/ops/delta_rule/gated_delta_rule_forms.h"

#include <functional>
#include <limits>

#include "based/ops/framework/rows.h"

namespace based::ops {
namespace {

constexpr int64_t kGatedDeltaRuleFormsChunk = 64;
constexpr int64_t kGatedDeltaRuleFormsBlock = 16;  // tokens; of channels with decays of their own, [kGatedDeltaRuleFormsBlock,
                                                   // kGatedDeltaRuleFormsBlock, key_dim] factors are in memory

// Tokens of rows of equal length, [rows, heads, length, …], in the type of the sums.
struct Tokens {
  Tensor q, k;       // [.., key_dim]; q is scaled
  Tensor v;          // [.., value_dim]
  Tensor log_decay;  // [.., 1 or key_dim] or undefined
  Tensor beta;       // [.., 1] or undefined
  Tensor bonus;      // [heads, 1, key_dim] or undefined
  bool delta = false;

  int64_t length() const { return q.size(2); }
  Tokens narrow(int64_t begin, int64_t size) const {
    const auto part = [&](const Tensor& x) { return x.defined() ? x.narrow(2, begin, size) : x; };
    return {part(q), part(k), part(v), part(log_decay), part(beta), bonus, delta};
  }
};

struct Outcome {
  Tensor y;      // [rows, heads, length, value_dim]
  Tensor state;  // [rows, heads, key_dim, value_dim]
};
using GatedDeltaRuleFormsForm = Outcome (*)(const Tokens&, const Tensor& state);

Tensor read(const Tensor& state, const Tensor& x) { return (x.unsqueeze(-1) * state).sum(-2); }  // Sᵀx

Outcome by_tokens(const Tokens& in, const Tensor& initial) {
  Tensor state = initial;
  std::vector<Tensor> ys;
  for (int64_t t = 0; t < in.length(); ++t) {
    const Tensor q = in.q.select(2, t), k = in.k.select(2, t), v = in.v.select(2, t);
    Tensor y;
    if (in.bonus.defined()) y = read(state, q) + (q * in.bonus.squeeze(1) * k).sum(-1, /*keepdim=*/true) * v;
    if (in.log_decay.defined()) state = state * in.log_decay.select(2, t).exp().unsqueeze(-1);
    Tensor added = in.delta ? v - read(state, k) : v;
    if (in.beta.defined()) added = added * in.beta.select(2, t);
    state = state + k.unsqueeze(-1) * added.unsqueeze(-2);
    ys.push_back(in.bonus.defined() ? y : read(state, q));
  }
  return {ys.empty() ? at::zeros_like(in.v) : at::stack(ys, 2), state};
}

// exp(Σ g_l over j < l ≤ i) for j ≤ i, else 0: [..., i, j, c] of g [..., n, c]. Sums are of the terms themselves, not differences of longer
// sums, so that strong decays cancel nothing and no exponent is above 0.
Tensor decays_between(const Tensor& g) {
  const int64_t n = g.size(-2);
  const Tensor ones = at::ones({n, n, 1}, g.options().dtype(at::kBool).requires_grad(false));
  const Tensor before = ones.squeeze(-1).tril(-1).unsqueeze(-1), after = ones.squeeze(-1).triu(1).unsqueeze(-1);
  const Tensor terms = at::where(before, g.unsqueeze(-2), at::zeros({}, g.options()));
  return terms.cumsum(-3).masked_fill(after, -std::numeric_limits<double>::infinity()).exp();
}

// exp(Σ g_l over l > j): the decay of token j by the end of the chunk.
Tensor decays_to_end(const Tensor& g) {
  const Tensor later = at::constant_pad_nd(g.narrow(-2, 1, g.size(-2) - 1), {0, 0, 0, 1});
  return later.flip(-2).cumsum(-2).flip(-2).exp();
}

// The decayed products within a chunk: for each reader x, [.., i, j] = Σ_c x_ic k_jc exp(Σ g_lc over j < l ≤ i) for j ≤ i, else 0. And the
// keys, decayed to the chunk's end.
struct Scores {
  std::vector<Tensor> products;  // one tensor for each reader
  Tensor k_at_end;
};

Scores scores_of_one_decay(const std::vector<Tensor>& readers, const Tensor& k, const Tensor& g) {
  Scores result{{}, g.defined() ? k * decays_to_end(g) : k};
  const Tensor decays = g.defined() ? decays_between(g).squeeze(-1) : Tensor();
  for (const Tensor& x : readers) {
    const Tensor products = at::matmul(x, k.transpose(-1, -2));
    result.products.push_back(decays.defined() ? products * decays : products.tril());
  }
  return result;
}

// By blocks. Within a block each decay factor is computed by itself. Keys of earlier blocks are decayed to the beginning of the block; the
// rest of the exponent, also at most 0, is applied to the reader.
Scores scores_of_channels(const std::vector<Tensor>& readers, const Tensor& k, const Tensor& g) {
  const int64_t size = k.size(-2);
  std::vector<std::vector<Tensor>> lines(readers.size());
  Tensor earlier;
  for (int64_t begin = 0; begin < size; begin += kGatedDeltaRuleFormsBlock) {
    const int64_t length = std::min(kGatedDeltaRuleFormsBlock, size - begin);
    const Tensor block_k = k.narrow(-2, begin, length), block_g = g.narrow(-2, begin, length);
    const Tensor from_begin = block_g.cumsum(-2).exp(), decayed_k = decays_between(block_g) * block_k.unsqueeze(-3);
    for (size_t i = 0; i < readers.size(); ++i) {
      const Tensor x = readers[i].narrow(-2, begin, length);
      Tensor line = at::matmul(decayed_k, x.unsqueeze(-1)).squeeze(-1);
      if (begin > 0) line = at::cat({at::matmul(x * from_begin, earlier.transpose(-1, -2)), line}, -1);
      lines[i].push_back(at::constant_pad_nd(line, {0, size - begin - length}));
    }
    const Tensor own = block_k * decays_to_end(block_g);
    earlier = begin == 0 ? own : at::cat({earlier * from_begin.narrow(-2, length - 1, 1), own}, -2);
  }
  Scores result{{}, earlier};
  for (const auto& reader_lines : lines) result.products.push_back(at::cat(reader_lines, -2));
  return result;
}

// `state` is the state before the chunk, S_0. With `delta` the u of S = D + k uᵀ solve one triangular system (the UT transform of the WY
// form): u_i + beta_i Σ_{j<i} (k_i·k_j decayed) u_j = beta_i (v_i − S_0ᵀk_i decayed).
Outcome chunk(const Tokens& in, const Tensor& state) {
  const Tensor &q = in.q, &k = in.k, &g = in.log_decay;
  const std::vector<Tensor> readers = in.delta ? std::vector<Tensor>{q, k} : std::vector<Tensor>{q};
  const bool by_channel = g.defined() && g.size(-1) > 1;
  const Scores scores = by_channel ? scores_of_channels(readers, k, g) : scores_of_one_decay(readers, k, g);
  const Tensor from_begin = g.defined() ? g.cumsum(-2).exp() : Tensor();
  const auto from_state = [&](const Tensor& x) { return at::matmul(from_begin.defined() ? x * from_begin : x, state); };
  const auto times_beta = [&](const Tensor& x) { return in.beta.defined() ? x * in.beta : x; };
  Tensor u = in.v;
  if (in.delta) {
    u = at::linalg_solve_triangular(times_beta(scores.products[1].tril(-1)), times_beta(in.v - from_state(k)), /*upper=*/false,
                                    /*left=*/true,
                                    /*unitriangular=*/true);
  } else {
    u = times_beta(u);
  }
  const Tensor kept = from_begin.defined() ? state * from_begin.narrow(-2, in.length() - 1, 1).transpose(-1, -2) : state;
  return {at::matmul(scores.products[0], u) + from_state(q), kept + at::matmul(scores.k_at_end.transpose(-1, -2), u)};
}

Outcome by_chunks(const Tokens& in, const Tensor& initial) {
  Tensor state = initial;
  std::vector<Tensor> ys;
  for (int64_t begin = 0; begin < in.length(); begin += kGatedDeltaRuleFormsChunk) {
    const Outcome one = chunk(in.narrow(begin, std::min(kGatedDeltaRuleFormsChunk, in.length() - begin)), state);
    ys.push_back(one.y);
    state = one.state;
  }
  return {ys.empty() ? at::zeros_like(in.v) : at::cat(ys, 2), state};
}

// With a bonus token t reads the state before it: the same as token t − 1 would read with the q of token t.
Outcome chunked(const Tokens& in, const Tensor& initial) {
  if (!in.bonus.defined() || in.length() == 0) return by_chunks(in, initial);
  Tokens shifted = in;
  shifted.q = at::constant_pad_nd(in.q.narrow(2, 1, in.length() - 1), {0, 0, 0, 1});
  const Outcome out = by_chunks(shifted, initial);
  const Tensor before = at::cat({at::matmul(in.q.narrow(2, 0, 1), initial), out.y.narrow(2, 0, in.length() - 1)}, 2);
  return {before + (in.q * in.bonus * in.k).sum(-1, /*keepdim=*/true) * in.v, out.state};
}

std::tuple<Tensor, Tensor> over_runs(const GatedDeltaRuleInputs& in, const Tensor& cu_seqlens, const OptionalTensor& initial_state,
                                     GatedDeltaRuleFormsForm form) {
  const at::ScalarType type = sum_type(in.q);
  const int64_t rows = cu_seqlens.size(0) - 1, heads = in.v.size(1), shared_by = heads / in.q.size(1);
  const Tensor initial = initial_state ? *initial_state : at::zeros({rows, heads, in.q.size(2), in.v.size(2)}, in.q.options().dtype(type));
  const Tensor bonus = in.bonus ? in.bonus->to(type).unsqueeze(1) : Tensor();
  std::vector<Tensor> ys, states;
  for (const Run& run : equal_runs(row_starts("gated_delta_rule", "cu_seqlens", cu_seqlens, in.q.size(0)))) {
    const auto heads_first = [&](const Tensor& packed) { return tokens_of(packed.to(type), run).transpose(1, 2); };
    const auto repeated_heads = [&](const Tensor& packed) {
      return shared_by == 1 ? heads_first(packed) : heads_first(packed).repeat_interleave(shared_by, 1);
    };
    const auto gate_of = [&](const OptionalTensor& gate) {
      if (!gate) return Tensor();
      return heads_first(gate->dim() == 2 ? gate->unsqueeze(-1) : *gate);
    };
    const Tensor q = in.scale == 1 ? repeated_heads(in.q) : repeated_heads(in.q) * in.scale;
    const Tokens tokens{q, repeated_heads(in.k), heads_first(in.v), gate_of(in.log_decay), gate_of(in.beta), bonus, in.delta};
    const Outcome out = form(tokens, initial.narrow(0, run.first_row, run.rows));
    ys.push_back(out.y.transpose(1, 2).reshape({run.rows * run.length, heads, in.v.size(2)}));
    states.push_back(out.state);
  }
  return {join(ys, in.v.sizes(), initial.options()).to(in.v.scalar_type()).contiguous(),
          join(states, initial.sizes(), initial.options()).contiguous()};
}

}  // namespace

std::tuple<Tensor, Tensor> gated_delta_rule_by_token(const GatedDeltaRuleInputs& in, const Tensor& cu_seqlens,
                                                     const OptionalTensor& initial_state) {
  return over_runs(in, cu_seqlens, initial_state, by_tokens);
}
std::tuple<Tensor, Tensor> gated_delta_rule_by_chunk(const GatedDeltaRuleInputs& in, const Tensor& cu_seqlens,
                                                     const OptionalTensor& initial_state) {
  return over_runs(in, cu_seqlens, initial_state, chunked);
}

Tensor sum_to_key_heads(const Tensor& grad, int64_t key_heads) {
  const int64_t heads = grad.size(1);
  if (heads == key_heads) return grad;
  const Tensor by_key_head = grad.view({grad.size(0), key_heads, heads / key_heads, grad.size(2)});
  return by_key_head.sum(2, /*keepdim=*/false, sum_type(grad)).to(grad.scalar_type());
}

}  // namespace based::ops
