#include "based/ops/linear_attention/linear_attention.h"

#include "based/kernels/pair_attention/pair_attention.h"
#include "based/ops/framework/on_device.h"
#include "based/ops/framework/operator_gradient.h"
#include "based/ops/framework/recompute.h"
#include "based/ops/framework/rows.h"
#include "based/ops/linear_attention/linear_attention_arguments.h"
#include "based/ops/linear_attention/linear_attention_squares.h"
#include "based/ops/linear_attention/running_sums.h"

namespace based::ops {
namespace {

// The weights within a chunk are a square of kLinearAttentionChunk tokens. Rows of up to kLargestSquare tokens are one square where that is
// less work.
constexpr int64_t kLinearAttentionChunk = 128, kLargestSquare = 1024;
// Chunks whose weights are in memory together: those of 8,192 tokens.
constexpr int64_t kChunksAtOnce = 64;

template <class Op>
void check_linear_attention_slots(const char* op, const Op& in, int64_t rows) {
  check_linear_attention_state(op, in, in.kv_state, in.k_state, in.kv_state.dim() ? in.kv_state.size(0) : -1);
  require_state_slots(op, {in.kv_state, in.k_state}, in.slots, rows);
}

void check(const LinearAttention& in) {
  constexpr const char* op = "linear_attention";
  check_linear_attention_inputs(op, in);
  require_row_starts(op, "cu_seqlens", in.cu_seqlens);
  require(in.initial_kv_state.has_value() == in.initial_k_state.has_value(), op,
          "initial_kv_state and initial_k_state must be given together");
  if (in.initial_kv_state) check_linear_attention_state(op, in, *in.initial_kv_state, *in.initial_k_state, in.cu_seqlens.size(0) - 1);
}

void check(const LinearAttentionPrefill& in) {
  constexpr const char* op = "linear_attention_prefill";
  check_linear_attention_inputs(op, in);
  require_row_starts(op, "cu_seqlens", in.cu_seqlens);
  check_linear_attention_slots(op, in, in.cu_seqlens.size(0) - 1);
}

void check(const LinearAttentionStep& in) {
  constexpr const char* op = "linear_attention_step";
  check_linear_attention_inputs(op, in);
  check_linear_attention_slots(op, in, in.q.size(0));
}

RunResult token_by_token(const SumsOfRun& in) {
  Tensor state = in.state.defined() ? in.state : at::zeros({in.v.size(0), in.v.size(1), in.q.size(3), in.v.size(3)}, in.v.options());
  std::vector<Tensor> sums;
  for (int64_t t = 0; t < in.q.size(2); ++t) {
    state = state + in.k.select(2, t).unsqueeze(-1) * in.v.select(2, t).unsqueeze(-2);
    sums.push_back((in.q.select(2, t).unsqueeze(-1) * state).sum(-2));
  }
  return {sums.empty() ? at::zeros_like(in.v) : at::stack(sums, 2), state};
}

// Tokens before the chunk are in the state; the weights within the chunk are a square.
RunResult one_chunk(const SumsOfRun& in) {
  RunResult out{at::matmul(at::matmul(in.q, in.k.transpose(-1, -2)).tril(), in.v), {}};
  if (in.state.defined()) out.sums = out.sums + at::matmul(in.q, in.state);
  if (!in.keeps_state) return out;
  const Tensor added = at::matmul(in.k.transpose(-1, -2), in.v);
  out.state = in.state.defined() ? in.state + added : added;
  return out;
}

// The same for several chunks, the last one padded by zeros, all products of a kind in one call, since those of one chunk do not fill a
// GPU. The state before a chunk is a cumulative sum of the chunks' additions.
RunResult chunks_at_once(const SumsOfRun& in) {
  const int64_t length = in.q.size(2), chunks = (length + kLinearAttentionChunk - 1) / kLinearAttentionChunk;
  const int64_t padding = chunks * kLinearAttentionChunk - length;
  const auto cut = [&](const Tensor& tokens) {
    const Tensor padded = padding == 0 ? tokens : at::constant_pad_nd(tokens, {0, 0, 0, padding});
    return padded.unflatten(2, {chunks, kLinearAttentionChunk}).contiguous();
  };
  const Tensor q = cut(in.q), k = cut(in.k), v = cut(in.v), added = at::matmul(k.transpose(-1, -2), v);
  const Tensor first = in.state.defined() ? in.state.unsqueeze(2) : at::zeros_like(added.narrow(2, 0, 1));
  const Tensor states = at::cat({first, added}, 2).cumsum(2);
  const Tensor sums = at::matmul(at::matmul(q, k.transpose(-1, -2)).tril(), v) + at::matmul(q, states.narrow(2, 0, chunks));
  return {sums.flatten(2, 3).narrow(2, 0, length), in.keeps_state ? states.select(2, chunks) : Tensor()};
}

// A token's products: with the tokens of its chunk's square, and with the state and into it.
int64_t products_of_chunks(int64_t features, int64_t width) { return kLinearAttentionChunk * (features + width) + 2 * features * width; }

bool whole_is_less(int64_t length, int64_t features, int64_t width) {
  return length <= kLargestSquare && length * (features + width) <= products_of_chunks(features, width);
}

RunResult chunked(const SumsOfRun& in) {
  const int64_t length = in.q.size(2);
  if (whole_is_less(length, in.q.size(3), in.v.size(3))) return by_chunks(in, std::max<int64_t>(length, 1), one_chunk);
  if (in.q.is_cuda()) return by_chunks(in, kChunksAtOnce * kLinearAttentionChunk, chunks_at_once);
  return by_chunks(in, kLinearAttentionChunk, one_chunk);
}

AttentionSums sums_of(const LinearAttention& in, const RunForm& form) {
  check(in);
  const at::ScalarType type = sum_type(in.q);
  return over_runs({"linear_attention", in.q.to(type), in.k.to(type), in.v, in.cu_seqlens, in.initial_kv_state, in.initial_k_state,
                    in.q.size(2), in.eps, in.final_state},
                   form);
}

Result<LinearAttention> attend(const LinearAttention& in, const RunForm& form) {
  const AttentionSums out = sums_of(in, form);
  const auto kept = [](const Tensor& state) {
    return state.numel() == 0 ? at::empty(state.sizes(), state.options())
                              : state.contiguous();  // contiguous() keeps an empty one's strides
  };
  return {out.y.contiguous(), kept(out.kv_state), kept(out.k_state)};
}

// y of rows without a state before or after them, if every row is less work as a whole square; else undefined.
Tensor by_squares(const LinearAttention& in) {
  if (in.final_state || in.initial_kv_state || in.q.size(0) == 0) return {};
  const std::vector<Run> runs = equal_runs(row_starts("linear_attention", "cu_seqlens", in.cu_seqlens, in.q.size(0)));
  for (const Run& run : runs)
    if (!whole_is_less(run.length, in.q.size(2), in.v.size(2))) return {};
  const at::ScalarType type = sum_type(in.q);
  const Tensor q = in.q.to(type), k = in.k.to(type), v = in.v.to(type);
  std::vector<Tensor> pieces;
  for (const Run& run : runs) {
    const auto heads_first = [&](const Tensor& packed) { return tokens_of(packed, run).transpose(1, 2); };
    const Tensor y = attend_by_squares(heads_first(q), heads_first(k), heads_first(v), in.eps);
    pieces.push_back(y.transpose(1, 2).reshape({run.rows * run.length, in.v.size(1), in.v.size(2)}));
  }
  return join(pieces, {}, {}).to(in.v.scalar_type()).contiguous();
}

Result<LinearAttention> forward(const LinearAttention& in) {
  check(in);
  const Tensor y = by_squares(in);
  if (!y.defined()) return attend(in, chunked);
  const at::TensorOptions sums = in.q.options().dtype(sum_type(in.q));
  const int64_t heads = in.q.size(1), features = in.q.size(2);
  return {y, at::empty({0, heads, features, in.v.size(2)}, sums), at::empty({0, heads, features}, sums)};
}
Result<LinearAttention> forward_reference(const LinearAttention& in) { return attend(in, token_by_token); }

Result<LinearAttention> forward_meta(const LinearAttention& in) {
  check(in);
  const int64_t rows = in.final_state ? in.cu_seqlens.size(0) - 1 : 0, heads = in.q.size(1), features = in.q.size(2);
  const at::TensorOptions sums = in.q.options().dtype(sum_type(in.q));
  return {at::empty(in.v.sizes(), in.v.options()), at::empty({rows, heads, features, in.v.size(2)}, sums),
          at::empty({rows, heads, features}, sums)};
}

using Pairs = LinearAttentionPairs;
using PairsForward = Result<LinearAttentionPairsForward>;
using PairsGradients = Result<LinearAttentionPairsBackward>;
using PairsLaunchers = kernels::LinearAttentionPairsLaunchers;

LinearAttention without_state(const Pairs& in) {
  static const OptionalTensor none;
  return {in.q, in.k, in.v, in.cu_seqlens, none, none, in.eps, /*final_state=*/false};
}

Tensor pairs(const Pairs& in) { return std::get<0>(call(LinearAttentionPairsForward{in})); }
Tensor pairs_reference(const Pairs& in) { return sums_of(without_state(in), chunked).y.contiguous(); }

PairsForward pairs_forward_reference(const Pairs& in) {
  const AttentionSums out = sums_of(without_state(in), chunked);
  return {out.y.contiguous(), (out.denominator + in.eps).contiguous()};
}

PairsForward pairs_forward_meta(const LinearAttentionPairsForward& in) {
  check(without_state(in.inputs));
  const Tensor &q = in.inputs.q, &v = in.inputs.v;
  return {at::empty(v.sizes(), v.options()), at::empty({q.size(0), q.size(1)}, q.options().dtype(sum_type(q)))};
}

PairsGradients pairs_backward_reference(const LinearAttentionPairsBackward& in) {
  const auto function = [&](const std::vector<Tensor>& t) {
    return std::vector<Tensor>{pairs_reference({t[0], t[1], t[2], in.forward.cu_seqlens, in.forward.eps})};
  };
  const std::vector<Tensor> g = gradients_by_autograd(function, {in.forward.q, in.forward.k, in.forward.v}, {in.grad_y});
  return {g[0].contiguous(), g[1].contiguous(), g[2].contiguous()};
}

PairsGradients pairs_backward_meta(const LinearAttentionPairsBackward& in) {
  const auto like = [](const Tensor& t) { return at::empty(t.sizes(), t.options()); };
  return {like(in.forward.q), like(in.forward.k), like(in.forward.v)};
}

// A launch's arguments and the tensors that own their memory.
struct PairsLaunch {
  Tensor q, k, v, cu_seqlens;
  kernels::LinearAttention arguments;
};
PairsLaunch prepare(const Pairs& in) {
  check_row_starts("linear_attention", "cu_seqlens", in.cu_seqlens, in.q.size(0));
  PairsLaunch launch{in.q.contiguous(), in.k.contiguous(), in.v.contiguous(), in.cu_seqlens.contiguous(), {}};
  launch.arguments = linear_attention_arguments(Pairs{launch.q, launch.k, launch.v, launch.cu_seqlens, in.eps});
  launch.arguments.single_tf32 = at::globalContext().allowTF32CuBLAS();
  return launch;
}
// The launch and the launchers that run it; no launchers where the reference runs.
std::pair<PairsLaunch, const PairsLaunchers*> prepare_kernel(const Pairs& in) {
  constexpr const char* op = "linear_attention_pairs";
  const PairsLaunchers* table = launchers_for<PairsLaunchers>(op, in.q);
  if (table == nullptr) return {};
  PairsLaunch launch = prepare(in);
  const bool supported = uses_kernel(op, in.q, table->supports(launch.arguments));
  return {std::move(launch), supported ? table : nullptr};
}

PairsForward pairs_forward(const LinearAttentionPairsForward& op) {
  const Pairs& in = op.inputs;
  check(without_state(in));
  auto [launch, table] = prepare_kernel(in);
  if (table == nullptr) return pairs_forward_reference(in);
  const Tensor y = at::empty(in.v.sizes(), in.v.options()), denominator = at::empty({in.q.size(0), in.q.size(1)}, in.q.options());
  launch.arguments.y = y.mutable_data_ptr();
  launch.arguments.denominator = denominator.mutable_data_ptr<float>();
  require_ok(table->forward(launch.arguments, queue_of(in.q)));
  return {y, denominator};
}

PairsGradients pairs_backward(const LinearAttentionPairsBackward& in) {
  const auto [launch, table] = prepare_kernel(in.forward);
  if (table == nullptr) return pairs_backward_reference(in);
  const auto [grad_q, grad_k, grad_v] = pairs_backward_meta(in);
  const Tensor grad_y = in.grad_y.contiguous(), y = in.y.contiguous(), denominator = in.denominator.contiguous();
  kernels::LinearAttentionBackward to;
  to.forward = launch.arguments;
  to.forward.y = y.data_ptr(), to.forward.denominator = denominator.data_ptr<float>();
  to.grad_y = grad_y.const_data_ptr();
  to.grad_q = grad_q.mutable_data_ptr(), to.grad_k = grad_k.mutable_data_ptr(), to.grad_v = grad_v.mutable_data_ptr();
  const Tensor scratch = scratch_memory(table->backward_scratch(to), in.forward.q);
  require_ok(table->backward(to, scratch.mutable_data_ptr(), queue_of(in.forward.q)));
  return {grad_q, grad_k, grad_v};
}

Tensor prefill(const LinearAttentionPrefill& in) {
  check(in);
  const auto from_states = [&](const OptionalTensor& kv, const OptionalTensor& sum_k) {
    return forward(LinearAttention{in.q, in.k, in.v, in.cu_seqlens, kv, sum_k, in.eps});
  };
  return prefill_slots(in.slots, from_states, in.kv_state, in.k_state);
}

struct StepOfRows {
  Tensor kv, k;  // the sums, with this token
  Tensor y;
};
// The step of one row or several, in the type of the sums, which are updated in place.
StepOfRows step_rows(const Tensor& q, const Tensor& k, const Tensor& v, StepOfRows sums, double eps) {
  sums.kv.add_(k.unsqueeze(-1) * v.unsqueeze(-2));
  sums.k.add_(k);
  sums.y = (q.unsqueeze(-1) * sums.kv).sum(-2) / ((q * sums.k).sum(-1, /*keepdim=*/true) + eps);
  return sums;
}

Tensor step(const LinearAttentionStep& in) {
  check(in);
  const at::ScalarType type = sum_type(in.q);
  const Tensor q = in.q.to(type), k = in.k.to(type), v = in.v.to(type);
  if (!in.q.is_cpu()) {  // all rows at once, and the host does not read the slots, so that a graph can record it
    const StepOfRows rows = step_rows(q, k, v, {in.kv_state.index_select(0, in.slots), in.k_state.index_select(0, in.slots), {}}, in.eps);
    in.kv_state.index_copy_(0, in.slots, rows.kv), in.k_state.index_copy_(0, in.slots, rows.k);
    return rows.y.to(in.v.scalar_type());
  }
  // Row by row: the order of additions must not depend on the other rows.
  const Tensor y = at::empty_like(v);
  for (int64_t row = 0; row < q.size(0); ++row) {
    const int64_t slot = in.slots[row].item<int64_t>();
    y[row].copy_(step_rows(q[row], k[row], v[row], {in.kv_state[slot], in.k_state[slot], {}}, in.eps).y);
  }
  return y.to(in.v.scalar_type());
}

Tensor step_with_kernel(const LinearAttentionStep& in) {
  const auto* table = launchers_for<kernels::LinearAttentionStepLaunchers>("linear_attention_step", in.q);
  if (table == nullptr) return step(in);
  check(in);
  const Tensor q = in.q.contiguous(), k = in.k.contiguous(), v = in.v.contiguous(), slots = in.slots.contiguous();
  const Tensor y = at::empty(v.sizes(), v.options());
  kernels::LinearAttentionStep to = linear_attention_step_arguments(LinearAttentionStep{q, k, v, in.kv_state, in.k_state, slots, in.eps});
  to.y = y.mutable_data_ptr();
  require_ok(table->step(to, queue_of(q)));
  return y;
}

template <class Op>
Tensor linear_attention_like_v(const Op& in) {
  check(in);
  return at::empty(in.v.sizes(), in.v.options());
}

TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) {
  define<LinearAttention>(m).composite<forward>().meta<forward_meta>().named_reference<forward_reference>();
  define<LinearAttentionPairs>(m)
      .reference<pairs>()
      .autograd<call_with_gradient<LinearAttentionPairs, LinearAttentionPairsForward, LinearAttentionPairsBackward, pairs_reference>>();
  define<LinearAttentionPairsForward>(m)
      .reference<on_inputs<LinearAttentionPairsForward, pairs_forward_reference>>()
      .meta<pairs_forward_meta>()
      .kernel<pairs_forward>();
  define<LinearAttentionPairsBackward>(m).reference<pairs_backward_reference>().meta<pairs_backward_meta>().kernel<pairs_backward>();
  define<LinearAttentionPrefill>(m).reference<prefill>().meta<linear_attention_like_v<LinearAttentionPrefill>>().without_gradient();
  define<LinearAttentionStep>(m)
      .reference<step>()
      .meta<linear_attention_like_v<LinearAttentionStep>>()
      .cpu<step_with_kernel>()
      .without_gradient();
}

OptionalTensor kv_of(const std::optional<LinearAttentionState>& state) { return state ? OptionalTensor(state->kv) : std::nullopt; }
OptionalTensor k_of(const std::optional<LinearAttentionState>& state) { return state ? OptionalTensor(state->k) : std::nullopt; }

// Whether the kernel over pairs is faster, for rows of the mean length, than chunks in ATen, whose squares of weights are in memory.
bool pairs_are_sooner(const Pairs& in) {
  constexpr int64_t kTimesFaster = 8;
  if (!in.q.is_cuda() || in.q.scalar_type() != at::kFloat || in.q.dim() != 3 || in.v.dim() != 3 || in.cu_seqlens.dim() != 1) return false;
  const int64_t features = in.q.size(2), head_dim = in.v.size(2), rows = in.cu_seqlens.size(0) - 1;
  if (std::max(features, head_dim) > kernels::kPairAttentionDim) return false;
  return in.q.size(0) * (features + head_dim) <= kTimesFaster * rows * products_of_chunks(features, head_dim);
}

}  // namespace

std::tuple<Tensor, LinearAttentionState> linear_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                                                          const std::optional<LinearAttentionState>& initial_state, double eps) {
  auto [y, kv, sum_k] = call(LinearAttention{q, k, v, cu_seqlens, kv_of(initial_state), k_of(initial_state), eps});
  return {y, {kv, sum_k}};
}

Tensor linear_attention_without_state(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, double eps) {
  const LinearAttentionPairs in{q, k, v, cu_seqlens, eps};
  return pairs_are_sooner(in) ? call(in) : std::get<0>(call(without_state(in)));
}

Tensor linear_attention_pairs(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, double eps) {
  return call(LinearAttentionPairs{q, k, v, cu_seqlens, eps});
}

std::tuple<Tensor, LinearAttentionState> linear_attention_reference(const Tensor& q, const Tensor& k, const Tensor& v,
                                                                    const Tensor& cu_seqlens,
                                                                    const std::optional<LinearAttentionState>& initial_state, double eps) {
  auto [y, kv, sum_k] = forward_reference(LinearAttention{q, k, v, cu_seqlens, kv_of(initial_state), k_of(initial_state), eps});
  return {y, {kv, sum_k}};
}

Tensor linear_attention_prefill(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, Tensor& kv_state,
                                Tensor& k_state, const Tensor& slots, double eps) {
  if (!at::GradMode::is_enabled()) return call(LinearAttentionPrefill{q, k, v, cu_seqlens, kv_state, k_state, slots, eps});
  const auto from_states = [&](const OptionalTensor& kv, const OptionalTensor& sum_k) {
    return call(LinearAttention{q, k, v, cu_seqlens, kv, sum_k, eps});
  };
  return prefill_slots_with_gradient(slots, from_states, kv_state, k_state);
}

Tensor linear_attention_step(const Tensor& q, const Tensor& k, const Tensor& v, Tensor& kv_state, Tensor& k_state, const Tensor& slots,
                             double eps) {
  return call(LinearAttentionStep{q, k, v, kv_state, k_state, slots, eps});
}

}  // namespace based::ops
