#include "based/ops/attention/causal_attention.h"

#include "based/ops/attention/attention_arguments.h"
#include "based/ops/framework/on_device.h"
#include "based/ops/framework/operator_gradient.h"
#include "based/ops/framework/recompute.h"
#include "based/ops/framework/rows.h"

namespace based::ops {
namespace {

constexpr const char* kCausalAttentionOp = "causal_attention";
constexpr const char* kCausalAttentionStep = "causal_attention_step";
using kernels::CausalAttentionLaunchers;

}  // namespace

void check_causal_attention(const CausalAttention& in) {
  const Tensor &cu_seqlens_q = in.cu_seqlens_q, &cu_seqlens_k = in.cu_seqlens_k;
  check_attention_heads(kCausalAttentionOp, in.q, in.k, in.v);
  require_row_starts(kCausalAttentionOp, "cu_seqlens_q", cu_seqlens_q);
  require_type(kCausalAttentionOp, "cu_seqlens_k", cu_seqlens_k, at::kLong);
  require_shape(kCausalAttentionOp, "cu_seqlens_k", cu_seqlens_k, cu_seqlens_q.sizes());
  require(in.window >= 0, kCausalAttentionOp, "window must be at least 0, got ", in.window);
  require(in.dropout_p >= 0 && in.dropout_p < 1, kCausalAttentionOp, "dropout_p must be in [0, 1), got ", in.dropout_p);
  if (in.dropout_p == 0) return;
  require(in.step && in.step->defined(), kCausalAttentionOp, "dropout needs step");
  require_shape(kCausalAttentionOp, "step", *in.step, {});
  require_type(kCausalAttentionOp, "step", *in.step, at::kLong);
}

namespace {

struct Starts {
  std::vector<int64_t> q, k;
};

Starts checked_starts(const CausalAttention& in) {
  Starts starts{row_starts(kCausalAttentionOp, "cu_seqlens_q", in.cu_seqlens_q, in.q.size(0)),
                row_starts(kCausalAttentionOp, "cu_seqlens_k", in.cu_seqlens_k, in.k.size(0))};
  for (size_t row = 0; row + 1 < starts.q.size(); ++row) {
    const int64_t queries = starts.q[row + 1] - starts.q[row], keys = starts.k[row + 1] - starts.k[row];
    require(keys >= queries, kCausalAttentionOp, "a row must have at least as many keys as queries, got ", keys, " and ", queries,
            " in row ", row);
  }
  return starts;
}

struct Attended {
  Tensor y, log_sum_exp;  // [rows, kv_heads, group, queries, head_dim], [rows, kv_heads, group, queries]
};

// Dropout of a run's weights.
class KeptWeights {
 public:
  explicit KeptWeights(const CausalAttention& in)
      : heads_(in.q.size(1)),
        first_token_(in.first_token),
        threshold_(kernels::dropout_threshold(in.dropout_p)),
        scale_(1 / (1 - in.dropout_p)) {
    if (any()) {
      key_ = kernels::dropout_key(static_cast<uint64_t>(in.seed), static_cast<uint64_t>(in.step->item<int64_t>()),
                                  static_cast<uint64_t>(in.place));
    }
  }
  bool any() const { return threshold_ != 0; }
  // The factors of the weights of queries [begin, end) and keys [first, last): [rows, heads, queries, keys] on the CPU.
  Tensor factors(const Run& run, int64_t begin, int64_t end, int64_t first, int64_t last) const {
    Tensor kept = at::empty({run.rows, heads_, end - begin, last - first}, at::kDouble);
    auto* to = kept.mutable_data_ptr<double>();
    for (int64_t row = 0; row < run.rows; ++row)
      for (int64_t head = 0; head < heads_; ++head)
        for (int64_t query = begin; query < end; ++query)
          for (int64_t key = first; key < last; ++key) {
            const int64_t token = first_token_ + run.first_token + row * run.length + query;
            const auto element = (static_cast<uint64_t>(token * heads_ + head) << 20) + static_cast<uint64_t>(key);
            *to++ = kernels::is_dropped(key_, element, threshold_) ? 0 : scale_;
          }
    return kept;
  }

 private:
  int64_t heads_, first_token_;
  uint32_t threshold_;
  double scale_;
  uint64_t key_ = 0;
};

// Queries in blocks, so that with a window the scores of keys outside it are not computed. q [rows, kv_heads, group, queries, head_dim],
// k and v [rows, kv_heads, 1, keys, head_dim].
Attended attend(const Tensor& q, const Tensor& k, const Tensor& v, const CausalAttention& in, const Run& run) {
  constexpr int64_t kBlock = 256;
  const KeptWeights kept(in);
  const int64_t window = in.window;
  const int64_t queries = q.size(3), keys = k.size(3), before = keys - queries;
  std::vector<Tensor> y, log_sum_exp;
  for (int64_t begin = 0; begin < queries; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, queries);
    const int64_t first = window == 0 ? 0 : std::max<int64_t>(0, begin + before - window + 1), last = end + before;
    const Tensor scores = at::matmul(q.slice(3, begin, end), k.slice(3, first, last).transpose(-1, -2)) * in.scale;
    const auto positions = [&](int64_t from, int64_t to) { return at::arange(from, to, q.options().dtype(at::kLong)); };
    const Tensor distance = positions(begin + before, end + before).unsqueeze(1) - positions(first, last);
    const Tensor hidden = window == 0 ? distance < 0 : (distance < 0).logical_or(distance >= window);
    const Tensor masked = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
    Tensor weights = masked.softmax(-1);
    if (kept.any()) weights = weights * kept.factors(run, begin, end, first, last).to(weights.options()).reshape(weights.sizes());
    y.push_back(at::matmul(weights, v.slice(3, first, last)));
    log_sum_exp.push_back(masked.logsumexp(-1));
  }
  if (y.empty()) return {at::zeros_like(q), at::zeros(q.sizes().slice(0, 4), q.options())};
  return {at::cat(y, 3), at::cat(log_sum_exp, 3)};
}

using CausalAttentionResults = Result<CausalAttentionForward>;
using CausalAttentionGradients = Result<CausalAttentionBackward>;

CausalAttentionResults forward_reference(const CausalAttention& in) {
  const Tensor &q = in.q, &k = in.k, &v = in.v;
  check_causal_attention(in);
  const Starts starts = checked_starts(in);
  const at::ScalarType type = sum_type(q);
  const int64_t heads = q.size(1), kv_heads = k.size(1), head_dim = q.size(2);
  std::vector<Tensor> y, log_sum_exp;
  for (const Run& run : equal_runs(starts.q, starts.k)) {
    const Tensor queries = tokens_of(q, run).to(type).transpose(1, 2).reshape({run.rows, kv_heads, heads / kv_heads, run.length, head_dim});
    const Tensor keys = other_tokens_of(k, run).to(type).transpose(1, 2).unsqueeze(2);
    const Tensor values = other_tokens_of(v, run).to(type).transpose(1, 2).unsqueeze(2);
    const Attended out = attend(queries, keys, values, in, run);
    const auto tokens_first = [&](const Tensor& t, at::IntArrayRef sizes) { return t.flatten(1, 2).transpose(1, 2).reshape(sizes); };
    y.push_back(tokens_first(out.y, {run.rows * run.length, heads, head_dim}));
    log_sum_exp.push_back(tokens_first(out.log_sum_exp, {run.rows * run.length, heads}));
  }
  return {join(y, q.sizes(), q.options()).to(q.scalar_type()), join(log_sum_exp, {q.size(0), heads}, q.options().dtype(type))};
}

CausalAttentionResults forward_meta(const CausalAttentionForward& in) {
  check_causal_attention(in.inputs);
  const Tensor& q = in.inputs.q;
  return {at::empty(q.sizes(), q.options()), at::empty({q.size(0), q.size(1)}, q.options().dtype(sum_type(q)))};
}

CausalAttentionGradients backward_reference(const CausalAttentionBackward& in) {
  const CausalAttention& forward = in.forward;
  const auto function = [&](const std::vector<Tensor>& t) {
    const auto [y, log_sum_exp] =
        forward_reference(CausalAttention{t[0], t[1], t[2], forward.cu_seqlens_q, forward.cu_seqlens_k, forward.window, forward.scale,
                                          forward.dropout_p, forward.seed, forward.step, forward.place, forward.first_token});
    return std::vector<Tensor>{y};
  };
  const std::vector<Tensor> g = gradients_by_autograd(function, {forward.q, forward.k, forward.v}, {in.grad_y});
  return {g[0], g[1], g[2]};
}

CausalAttentionGradients backward_meta(const CausalAttentionBackward& in) {
  const auto like = [](const Tensor& t) { return at::empty(t.sizes(), t.options()); };
  return {like(in.forward.q), like(in.forward.k), like(in.forward.v)};
}

void check(const CausalAttentionStep& in) {
  const auto& [q, k, v, k_ring, v_ring, positions, slots, scale] = in;
  check_attention_heads(kCausalAttentionStep, q, k, v);
  require_shape(kCausalAttentionStep, "k", k, {q.size(0), -1, -1});
  require_shape(kCausalAttentionStep, "k_ring", k_ring, {-1, -1, k.size(1), k.size(2)});
  require(k_ring.size(1) >= 1, kCausalAttentionStep, "k_ring must have room for a key, got ", k_ring.sizes());
  require_shape(kCausalAttentionStep, "v_ring", v_ring, k_ring.sizes());
  require(at::isFloatingType(k_ring.scalar_type()), kCausalAttentionStep, "k_ring must be floating, got ", k_ring.scalar_type());
  require_type(kCausalAttentionStep, "v_ring", v_ring, k_ring.scalar_type());
  require_shape(kCausalAttentionStep, "positions", positions, {q.size(0)});
  require_type(kCausalAttentionStep, "positions", positions, at::kLong);
  require_state_slots(kCausalAttentionStep, {k_ring, v_ring}, slots, q.size(0));
}

Tensor step_reference(const CausalAttentionStep& in) {
  const auto& [q, k, v, k_ring, v_ring, positions, slots, scale] = in;
  check(in);
  const at::ScalarType type = sum_type(q);
  const int64_t capacity = k_ring.size(1), kv_heads = k.size(1), group = q.size(1) / kv_heads;
  Tensor y = at::empty(q.sizes(), q.options());
  // Row by row, and sums by elementwise operators: the order of additions must not depend on the other rows.
  for (int64_t row = 0; row < q.size(0); ++row) {
    const int64_t slot = slots[row].item<int64_t>(), written = positions[row].item<int64_t>();
    k_ring[slot][written % capacity].copy_(k[row]);
    v_ring[slot][written % capacity].copy_(v[row]);
    const int64_t first = std::max<int64_t>(0, written + 1 - capacity);
    const Tensor seen = at::arange(first, written + 1, positions.options()).remainder(capacity);
    const Tensor keys = k_ring[slot].index_select(0, seen).to(type).unsqueeze(2);    // [keys, kv_heads, 1, head_dim]
    const Tensor values = v_ring[slot].index_select(0, seen).to(type).unsqueeze(2);  // the same
    const Tensor query = q[row].to(type).reshape({kv_heads, group, -1});
    const Tensor weights = ((query * keys).sum(-1) * scale).softmax(0);  // [keys, kv_heads, group]
    y[row].copy_((weights.unsqueeze(-1) * values).sum(0).reshape(q[row].sizes()));
  }
  return y;
}

Tensor step_meta(const CausalAttentionStep& in) {
  check(in);
  return at::empty(in.q.sizes(), in.q.options());
}

// A launch's arguments, without y and log_sum_exp, and the tensors that own their memory.
struct CausalAttentionLaunch {
  Tensor q, k, v, q_starts, k_starts, step;
  kernels::CausalAttention arguments;
};

CausalAttentionLaunch prepare(const CausalAttention& in) {
  const Tensor &q = in.q, &k = in.k, &v = in.v, &cu_seqlens_q = in.cu_seqlens_q, &cu_seqlens_k = in.cu_seqlens_k;
  CausalAttentionLaunch launch{with_packed_heads(q),
                               with_packed_heads(k),
                               with_packed_heads(v),
                               cu_seqlens_q.contiguous(),
                               cu_seqlens_k.contiguous(),
                               in.dropout_p > 0 ? *in.step : Tensor(),
                               {}};
  kernels::CausalAttention& to = launch.arguments;
  to.q = launch.q.const_data_ptr();
  to.k = launch.k.const_data_ptr();
  to.v = launch.v.const_data_ptr();
  to.q_start = launch.q_starts.const_data_ptr<int64_t>();
  to.k_start = launch.k_starts.const_data_ptr<int64_t>();
  to.rows = cu_seqlens_q.size(0) - 1;
  to.q_tokens = q.size(0), to.k_tokens = k.size(0);
  to.q_stride = launch.q.stride(0), to.k_stride = launch.k.stride(0), to.v_stride = launch.v.stride(0);
  to.window = in.window;
  to.heads = static_cast<int32_t>(q.size(1));
  to.kv_heads = static_cast<int32_t>(k.size(1));
  to.head_dim = static_cast<int32_t>(q.size(2));
  to.scale = static_cast<float>(in.scale);
  to.dtype = kernel_dtype(q);
  to.single_tf32 = at::globalContext().allowTF32CuBLAS();
  if (in.dropout_p > 0) {
    to.dropout = {static_cast<uint64_t>(in.seed),
                  static_cast<uint64_t>(in.place),
                  launch.step.const_data_ptr<int64_t>(),
                  kernels::dropout_threshold(in.dropout_p),
                  static_cast<float>(1 / (1 - in.dropout_p)),
                  in.first_token};
  }
  return launch;
}

// Memory for the gradients of q, k and v. `joint`: columns of one tensor, which is the gradient of a joint projection's output.
CausalAttentionGradients empty_gradients(const Tensor& q, const Tensor& k, const Tensor& v, bool joint) {
  if (!joint || q.size(0) != k.size(0))
    return {at::empty(q.sizes(), q.options()), at::empty(k.sizes(), k.options()), at::empty(v.sizes(), v.options())};
  const int64_t heads = q.size(1), kv_heads = k.size(1);
  const Tensor all = at::empty({q.size(0), heads + 2 * kv_heads, q.size(2)}, q.options());
  return {all.narrow(1, 0, heads), all.narrow(1, heads, kv_heads), all.narrow(1, heads + kv_heads, kv_heads)};
}

}  // namespace

bool has_causal_attention_kernel(const CausalAttention& in) {
  const CausalAttentionLaunchers* table = launchers_of<CausalAttentionLaunchers>(in.q);
  return table != nullptr && table->supports(prepare(in).arguments);
}

CausalAttentionResults causal_attention_forward(const CausalAttentionForward& op) {
  const CausalAttention& in = op.inputs;
  const Tensor& q = in.q;
  const CausalAttentionLaunchers* table = launchers_for<CausalAttentionLaunchers>(kCausalAttentionOp, q);
  if (table == nullptr) return forward_reference(in);
  check_causal_attention(in);
  CausalAttentionLaunch launch = prepare(in);
  if (!uses_kernel(kCausalAttentionOp, q, table->supports(launch.arguments))) return forward_reference(in);
  if (in.cu_seqlens_q.is_cpu()) checked_starts(in);
  const Tensor y = at::empty(q.sizes(), q.options()), log_sum_exp = at::empty({q.size(0), q.size(1)}, q.options().dtype(at::kFloat));
  launch.arguments.y = y.mutable_data_ptr();
  launch.arguments.log_sum_exp = log_sum_exp.mutable_data_ptr<float>();
  const Tensor scratch = scratch_memory(table->forward_scratch(launch.arguments), q);
  require_ok(table->forward(launch.arguments, scratch.mutable_data_ptr(), queue_of(q)));
  return {y, log_sum_exp};
}

CausalAttentionGradients causal_attention_backward(const CausalAttentionBackward& in) {
  constexpr const char* op = "causal_attention_backward";
  const Tensor &q = in.forward.q, &k = in.forward.k, &v = in.forward.v;
  const CausalAttentionLaunchers* table = launchers_for<CausalAttentionLaunchers>(op, q);
  if (table == nullptr) return backward_reference(in);
  CausalAttentionLaunch launch = prepare(in.forward);
  if (!uses_kernel(op, q, table->supports(launch.arguments))) return backward_reference(in);
  if (in.forward.cu_seqlens_q.is_cpu()) checked_starts(in.forward);
  const Tensor output = in.y.contiguous(), sums = in.log_sum_exp.contiguous(), cotangent = in.grad_y.contiguous();
  launch.arguments.y = output.data_ptr();
  launch.arguments.log_sum_exp = sums.data_ptr<float>();
  kernels::CausalAttentionBackward to;
  to.forward = launch.arguments;
  to.grad_y = cotangent.const_data_ptr();
  const auto [grad_q, grad_k, grad_v] = empty_gradients(q, k, v, table->joint_gradients);
  to.grad_q_stride = grad_q.stride(0), to.grad_k_stride = grad_k.stride(0), to.grad_v_stride = grad_v.stride(0);
  to.grad_q = grad_q.mutable_data_ptr();
  to.grad_k = grad_k.mutable_data_ptr();
  to.grad_v = grad_v.mutable_data_ptr();
  const Tensor scratch = scratch_memory(table->backward_scratch(to), q);
  require_ok(table->backward(to, scratch.mutable_data_ptr(), queue_of(q)));
  return {grad_q, grad_k, grad_v};
}

kernels::CausalAttentionStep causal_attention_step_arguments(const CausalAttentionStep& in, const Tensor& y) {
  const auto& [q, k, v, k_ring, v_ring, positions, slots, scale] = in;
  kernels::CausalAttentionStep to;
  to.q = q.const_data_ptr();
  to.k = k.const_data_ptr();
  to.v = v.const_data_ptr();
  to.y = y.mutable_data_ptr();
  to.k_ring = k_ring.mutable_data_ptr();
  to.v_ring = v_ring.mutable_data_ptr();
  to.position = static_cast<const int64_t*>(positions.const_data_ptr());
  to.slot = static_cast<const int64_t*>(slots.const_data_ptr());
  to.rows = q.size(0), to.capacity = k_ring.size(1);
  to.q_stride = q.stride(0), to.k_stride = k.stride(0), to.v_stride = v.stride(0);
  to.heads = static_cast<int32_t>(q.size(1));
  to.kv_heads = static_cast<int32_t>(k.size(1));
  to.head_dim = static_cast<int32_t>(q.size(2));
  to.scale = static_cast<float>(scale);
  to.dtype = kernel_dtype(q), to.ring_dtype = kernel_dtype(k_ring);
  return to;
}

CausalAttentionStepLaunch prepare_causal_attention_step(const CausalAttentionStep& in) {
  check(in);
  CausalAttentionStepLaunch launch{with_packed_heads(in.q),
                                   with_packed_heads(in.k),
                                   with_packed_heads(in.v),
                                   in.positions.contiguous(),
                                   in.slots.contiguous(),
                                   at::empty(in.q.sizes(), in.q.options()),
                                   {}};
  launch.arguments = causal_attention_step_arguments(
      {launch.q, launch.k, launch.v, in.k_ring, in.v_ring, launch.positions, launch.slots, in.scale}, launch.y);
  return launch;
}

namespace {

Tensor step(const CausalAttentionStep& in) {
  const CausalAttentionLaunchers* table = launchers_for<CausalAttentionLaunchers>(kCausalAttentionStep, in.q, has_kernel(in.k_ring));
  if (table == nullptr) return step_reference(in);
  const CausalAttentionStepLaunch launch = prepare_causal_attention_step(in);
  require_ok(table->step(launch.arguments, queue_of(in.q)));
  return launch.y;
}

Tensor attention(const CausalAttention& in) { return std::get<0>(call(CausalAttentionForward{in})); }
Tensor attention_reference(const CausalAttention& in) { return std::get<0>(forward_reference(in)); }

TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) {
  define<CausalAttention>(m)
      .reference<attention>()
      .named_reference<attention_reference>()
      .autograd<call_with_gradient<CausalAttention, CausalAttentionForward, CausalAttentionBackward, attention_reference>>();
  define<CausalAttentionForward>(m)
      .reference<on_inputs<CausalAttentionForward, forward_reference>>()
      .meta<forward_meta>()
      .cpu<causal_attention_forward>();
  define<CausalAttentionBackward>(m).reference<backward_reference>().meta<backward_meta>().cpu<causal_attention_backward>();
  define<CausalAttentionStep>(m).reference<step_reference>().meta<step_meta>().kernel<step>().without_gradient();
}

}  // namespace

Tensor causal_attention_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
                                  int64_t window, double scale, const AttentionDropout& dropout) {
  const OptionalTensor step = if_defined(dropout.draws.step);
  return attention_reference(
      {q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale, dropout.p, dropout.draws.seed, step, dropout.place, dropout.draws.first_token});
}

Tensor causal_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
                        int64_t window, double scale, const AttentionDropout& dropout) {
  const OptionalTensor step = if_defined(dropout.draws.step);
  return call(CausalAttention{q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale, dropout.p, dropout.draws.seed, step, dropout.place,
                              dropout.draws.first_token});
}

Tensor causal_attention_step(const Tensor& q, const Tensor& k, const Tensor& v, Tensor& k_ring, Tensor& v_ring, const Tensor& positions,
                             const Tensor& slots, double scale) {
  return call(CausalAttentionStep{q, k, v, k_ring, v_ring, positions, slots, scale});
}

}  // namespace based::ops
