// torch.ops.based: softmax attention over all keys or a sliding window, its steps over a ring or pages, rotary positions.
#include "based/kernels/attention/causal_attention.h"
#include "based/kernels/attention/paged_attention.h"
#include "based/kernels/attention/rotary.h"
#include "based/kernels/training/dropout.h"
#include "based/ops/attention/attention_arguments.h"
#include "stable.h"

namespace based::python {
namespace {

using kernels::CausalAttentionLaunchers;
using Forward = std::tuple<Tensor, Tensor>;            // y, log_sum_exp
using Gradients = std::tuple<Tensor, Tensor, Tensor>;  // q, k, v

// The arguments of dropout.
struct Dropout {
  double p;
  int64_t seed;
  const OptionalTensor& step;
  int64_t place, first_token;
};

void check_attention(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q,
                     const Tensor& cu_seqlens_k, int64_t window) {
  ops::check_attention_heads(op, q, k, v);
  require_row_starts(op, "cu_seqlens_q", cu_seqlens_q);
  require_type(op, "cu_seqlens_k", cu_seqlens_k, ScalarType::Long);
  require_shape(op, "cu_seqlens_k", cu_seqlens_k, cu_seqlens_q.sizes());
  require(window >= 0, op, "window must be at least 0, got ", window);
  check_row_starts(op, "cu_seqlens_q", cu_seqlens_q, q.size(0));
  check_row_starts(op, "cu_seqlens_k", cu_seqlens_k, k.size(0));
  if (!cu_seqlens_q.is_cpu() || !cu_seqlens_k.is_cpu()) return;
  const int64_t *q_starts = pointer<int64_t>(cu_seqlens_q), *k_starts = pointer<int64_t>(cu_seqlens_k);
  const int64_t q_stride = cu_seqlens_q.stride(0), k_stride = cu_seqlens_k.stride(0);
  for (int64_t row = 0; row + 1 < cu_seqlens_q.size(0); ++row) {
    const int64_t queries = q_starts[(row + 1) * q_stride] - q_starts[row * q_stride],
                  keys = k_starts[(row + 1) * k_stride] - k_starts[row * k_stride];
    require(keys >= queries, op, "a row must have at least as many keys as queries, got ", keys, " and ", queries, " in row ", row);
  }
}

void check_dropout(const char* op, const Dropout& dropout) {
  require(dropout.p >= 0 && dropout.p < 1, op, "dropout_p must be in [0, 1), got ", dropout.p);
  if (dropout.p == 0) return;
  require(dropout.step.has_value(), op, "dropout needs step");
  require_shape(op, "step", *dropout.step, {});
  require_type(op, "step", *dropout.step, ScalarType::Long);
}

// A launch's arguments and the tensors that own their memory.
struct Launch {
  Tensor q, k, v, q_starts, k_starts;
  kernels::CausalAttention arguments;
};

Launch prepare(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k, int64_t window,
               double scale, const Dropout& dropout) {
  Launch launch{with_packed_heads(q),        with_packed_heads(k),        with_packed_heads(v),
                as_contiguous(cu_seqlens_q), as_contiguous(cu_seqlens_k), {}};
  kernels::CausalAttention& to = launch.arguments;
  to.q = data(launch.q);
  to.k = data(launch.k);
  to.v = data(launch.v);
  to.q_start = pointer<int64_t>(launch.q_starts);
  to.k_start = pointer<int64_t>(launch.k_starts);
  to.rows = cu_seqlens_q.size(0) - 1;
  to.q_tokens = q.size(0), to.k_tokens = k.size(0);
  to.q_stride = launch.q.stride(0), to.k_stride = launch.k.stride(0), to.v_stride = launch.v.stride(0);
  to.window = window;
  to.heads = static_cast<int32_t>(q.size(1));
  to.kv_heads = static_cast<int32_t>(k.size(1));
  to.head_dim = static_cast<int32_t>(q.size(2));
  to.scale = static_cast<float>(scale);
  to.dtype = kernel_dtype(q);
  to.single_tf32 = uses_tf32();
  if (dropout.p > 0) {
    to.dropout = {static_cast<uint64_t>(dropout.seed),   static_cast<uint64_t>(dropout.place),    pointer<int64_t>(dropout.step),
                  kernels::dropout_threshold(dropout.p), static_cast<float>(1 / (1 - dropout.p)), dropout.first_token};
  }
  return launch;
}

// The launchers for this call, or null: the reference runs.
const CausalAttentionLaunchers* attention_launchers(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                                                    const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k, const Dropout& dropout) {
  const auto* table = launchers_for<CausalAttentionLaunchers>(op, q);
  if (table == nullptr || table->supports(prepare(q, k, v, cu_seqlens_q, cu_seqlens_k, 0, 1, dropout).arguments)) return table;
  return launchers_for<CausalAttentionLaunchers>(op, q, false);
}

Forward forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k, int64_t window,
                double scale, double dropout_p, int64_t seed, const OptionalTensor& step, int64_t place, int64_t first_token) {
  constexpr const char* kOp = "causal_attention";
  const Dropout dropout{dropout_p, seed, step, place, first_token};
  check_attention(kOp, q, k, v, cu_seqlens_q, cu_seqlens_k, window);
  check_dropout(kOp, dropout);
  const auto* table = attention_launchers(kOp, q, k, v, cu_seqlens_q, cu_seqlens_k, dropout);
  if (table == nullptr)
    return call_reference<Forward>("causal_attention_forward", q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale, dropout_p, seed, step,
                                   place, first_token);
  Launch launch = prepare(q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale, dropout);
  const Tensor y = empty(sizes_of(q), q), log_sum_exp = empty({q.size(0), q.size(1)}, q, ScalarType::Float);
  launch.arguments.y = written_data(y);
  launch.arguments.log_sum_exp = written<float>(log_sum_exp);
  const Tensor scratch = scratch_memory(table->forward_scratch(launch.arguments), q);
  require_ok(kOp, table->forward(launch.arguments, written_data(scratch), queue_of(q)), q);
  return {y, log_sum_exp};
}

Gradients backward(const Tensor& grad_y, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q,
                   const Tensor& cu_seqlens_k, int64_t window, double scale, double dropout_p, int64_t seed, const OptionalTensor& step,
                   int64_t place, int64_t first_token, const Tensor& y, const Tensor& log_sum_exp) {
  constexpr const char* kOp = "causal_attention_backward";
  const Dropout dropout{dropout_p, seed, step, place, first_token};
  check_attention(kOp, q, k, v, cu_seqlens_q, cu_seqlens_k, window);
  check_dropout(kOp, dropout);
  require_like(kOp, "grad_y", grad_y, q);
  require_shape(kOp, "grad_y", grad_y, q.sizes());
  require_shape(kOp, "y", y, q.sizes());
  require_shape(kOp, "log_sum_exp", log_sum_exp, {q.size(0), q.size(1)});
  const auto* table = attention_launchers(kOp, q, k, v, cu_seqlens_q, cu_seqlens_k, dropout);
  if (table == nullptr)
    return call_reference<Gradients>(kOp, grad_y, q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale, dropout_p, seed, step, place,
                                     first_token, y, log_sum_exp);
  Launch launch = prepare(q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale, dropout);
  const Tensor output = as_contiguous(y), sums = as_contiguous(log_sum_exp), cotangent = as_contiguous(grad_y);
  kernels::CausalAttentionBackward to;
  to.forward = launch.arguments;
  to.forward.y = written_data(output);
  to.forward.log_sum_exp = written<float>(sums);
  to.grad_y = data(cotangent);
  const Tensor grad_q = empty(sizes_of(q), q), grad_k = empty(sizes_of(k), k), grad_v = empty(sizes_of(v), v);
  to.grad_q_stride = grad_q.stride(0), to.grad_k_stride = grad_k.stride(0), to.grad_v_stride = grad_v.stride(0);
  to.grad_q = written_data(grad_q);
  to.grad_k = written_data(grad_k);
  to.grad_v = written_data(grad_v);
  const Tensor scratch = scratch_memory(table->backward_scratch(to), q);
  require_ok(kOp, table->backward(to, written_data(scratch), queue_of(q)), q);
  return {grad_q, grad_k, grad_v};
}

// The ring of a step and the rows that it serves.
struct Ring {
  const Tensor &k, &v, &positions, &slots;
};

void check_step(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const Ring& ring) {
  ops::check_attention_heads(op, q, k, v);
  require_shape(op, "k", k, {q.size(0), -1, -1});
  require_shape(op, "k_ring", ring.k, {-1, -1, k.size(1), k.size(2)});
  require(ring.k.size(1) >= 1, op, "k_ring must have room for a key, got ", shape_text(ring.k));
  require_shape(op, "v_ring", ring.v, ring.k.sizes());
  require_floating(op, "k_ring", ring.k);
  require_type(op, "v_ring", ring.v, ring.k.scalar_type());
  require_shape(op, "positions", ring.positions, {q.size(0)});
  require_type(op, "positions", ring.positions, ScalarType::Long);
  require_state_slots(op, {ring.k, ring.v}, ring.slots, q.size(0));
}

struct StepLaunch {
  Tensor q, k, v, positions, slots, y;
  kernels::CausalAttentionStep arguments;
};

StepLaunch prepare_step(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const Ring& ring, double scale) {
  check_step(op, q, k, v, ring);
  StepLaunch launch{with_packed_heads(q),
                    with_packed_heads(k),
                    with_packed_heads(v),
                    as_contiguous(ring.positions),
                    as_contiguous(ring.slots),
                    empty(sizes_of(q), q),
                    {}};
  kernels::CausalAttentionStep& to = launch.arguments;
  to.q = data(launch.q);
  to.k = data(launch.k);
  to.v = data(launch.v);
  to.y = written_data(launch.y);
  to.k_ring = written_data(ring.k);
  to.v_ring = written_data(ring.v);
  to.position = pointer<int64_t>(launch.positions);
  to.slot = pointer<int64_t>(launch.slots);
  to.rows = q.size(0), to.capacity = ring.k.size(1);
  to.q_stride = launch.q.stride(0), to.k_stride = launch.k.stride(0), to.v_stride = launch.v.stride(0);
  to.heads = static_cast<int32_t>(q.size(1));
  to.kv_heads = static_cast<int32_t>(k.size(1));
  to.head_dim = static_cast<int32_t>(q.size(2));
  to.scale = static_cast<float>(scale);
  to.dtype = kernel_dtype(q), to.ring_dtype = kernel_dtype(ring.k);
  return launch;
}

Tensor step(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& k_ring, const Tensor& v_ring, const Tensor& positions,
            const Tensor& slots, double scale) {
  constexpr const char* kOp = "causal_attention_step";
  const Ring ring{k_ring, v_ring, positions, slots};
  check_step(kOp, q, k, v, ring);
  const auto* table = launchers_for<CausalAttentionLaunchers>(kOp, q, has_kernel(k_ring));
  if (table == nullptr) return call_reference<Tensor>(kOp, q, k, v, k_ring, v_ring, positions, slots, scale);
  const StepLaunch launch = prepare_step(kOp, q, k, v, ring, scale);
  require_ok(kOp, table->step(launch.arguments, queue_of(q)), q);
  return launch.y;
}

struct PagedInputs {
  const Tensor &q, &k, &v, &k_pages, &v_pages, &page_table, &positions;
};

Tensor paged_step(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& k_pages, const Tensor& v_pages, const Tensor& page_table,
                  const Tensor& positions, const Tensor& slots, double scale) {
  constexpr const char* kOp = "paged_attention_step";
  ops::check_paged_attention(kOp, PagedInputs{q, k, v, k_pages, v_pages, page_table, positions});
  require_state_slots(kOp, {page_table, k_pages, v_pages}, slots, q.size(0));
  const auto* table = launchers_for<kernels::PagedAttentionLaunchers>(kOp, q);
  if (table == nullptr) return call_reference<Tensor>(kOp, q, k, v, k_pages, v_pages, page_table, positions, slots, scale);
  const Tensor query = with_packed_heads(q), key = with_packed_heads(k), value = with_packed_heads(v), slot = as_contiguous(slots),
               position = as_contiguous(positions), y = empty(sizes_of(q), q);
  kernels::PagedAttention to;
  to.q = data(query);
  to.k = data(key);
  to.v = data(value);
  to.y = written_data(y);
  to.k_pages = written_data(k_pages);
  to.v_pages = written_data(v_pages);
  to.page_table = pointer<int64_t>(page_table);
  to.position = pointer<int64_t>(position);
  to.slot = pointer<int64_t>(slot);
  to.rows = q.size(0), to.pages = k_pages.size(0), to.page_tokens = k_pages.size(1), to.slot_pages = page_table.size(1);
  to.q_stride = query.stride(0), to.k_stride = key.stride(0), to.v_stride = value.stride(0);
  to.heads = static_cast<int32_t>(q.size(1));
  to.kv_heads = static_cast<int32_t>(k.size(1));
  to.head_dim = static_cast<int32_t>(q.size(2));
  to.scale = static_cast<float>(scale);
  to.dtype = kernel_dtype(q);
  const Tensor scratch = scratch_memory(table->scratch(to), q);
  require_ok(kOp, table->step(to, written_data(scratch), queue_of(q)), q);
  return y;
}

void rotate(const Tensor& x, const Tensor& positions, int64_t heads, int64_t head_dim, int64_t dim, double base, bool interleaved,
            bool inverse) {
  constexpr const char* kOp = "rotary_";
  require_floating(kOp, "x", x);
  require_shape(kOp, "x", x, {-1, -1});
  require(heads >= 1 && head_dim >= 1 && heads <= x.size(1) / head_dim, kOp, "x must have ", heads, " heads of ", head_dim,
          " columns, got ", x.size(1), " columns");
  require(x.numel() == 0 || (x.stride(1) == 1 && (x.size(0) == 1 || x.stride(0) >= x.size(1))), kOp,
          "columns of x must be adjacent, and its rows must not overlap");
  require_type(kOp, "positions", positions, ScalarType::Long);
  require_shape(kOp, "positions", positions, {x.size(0)});
  require(dim >= 0 && dim % 2 == 0 && dim <= std::min<int64_t>(head_dim, 256), kOp, "dim must be even and at most head_dim and 256, got ",
          dim, " with head_dim ", head_dim);
  require(base > 0, kOp, "base must be positive, got ", base);
  const auto* table = launchers_for<kernels::RotaryLaunchers>(kOp, x);
  if (table == nullptr) return call_reference<void>(kOp, x, positions, heads, head_dim, dim, base, interleaved, inverse);
  const Tensor position = as_contiguous(positions);
  kernels::Rotary to;
  to.x = to.y = written_data(x);
  to.position = pointer<int64_t>(position);
  to.tokens = x.size(0);
  to.x_stride = to.y_stride = x.stride(0);
  to.heads = static_cast<int32_t>(heads), to.head_dim = static_cast<int32_t>(head_dim), to.dim = static_cast<int32_t>(dim);
  to.base = base;
  to.interleaved = interleaved, to.inverse = inverse;
  to.dtype = kernel_dtype(x);
  require_ok(kOp, table->rotate(to, queue_of(x)), x);
}

// Rotates the queries and keys of a joint projection's output in place, then takes a step.
Tensor rotary_step(const Tensor& qkv, const Tensor& k_ring, const Tensor& v_ring, const Tensor& positions, const Tensor& slots,
                   double scale, int64_t dim, double base) {
  constexpr const char* kOp = "rotary_attention_step";
  require_shape(kOp, "k_ring", k_ring, {-1, -1, -1, -1});
  require_shape(kOp, "qkv", qkv, {-1, -1});
  const int64_t kv_heads = k_ring.size(2), head_dim = k_ring.size(3), heads = qkv.size(1) / std::max<int64_t>(head_dim, 1) - 2 * kv_heads;
  require(heads >= 1, kOp, "qkv must have the columns of queries, keys and values of ", kv_heads, " heads of ", head_dim, ", got ",
          shape_text(qkv));
  require_shape(kOp, "qkv", qkv, {-1, (heads + 2 * kv_heads) * head_dim});
  const Tensor all = torch::stable::view(qkv, Sizes{qkv.size(0), heads + 2 * kv_heads, head_dim});
  const auto part = [&](int64_t first, int64_t count) {
    Tensor whole = all;
    return torch::stable::narrow(whole, 1, first, count);
  };
  const Tensor q = part(0, heads), k = part(heads, kv_heads), v = part(heads + kv_heads, kv_heads);
  const auto* table = has_kernel(qkv) ? kernels::launchers<CausalAttentionLaunchers>(kernel_device(qkv)) : nullptr;
  if (table != nullptr && table->step_fuses_rotary != nullptr && has_kernel(k_ring) && dim == head_dim) {
    StepLaunch launch = prepare_step(kOp, q, k, v, {k_ring, v_ring, positions, slots}, scale);
    if (table->step_fuses_rotary(launch.arguments)) {
      launch.arguments.rotary_base = base;
      require_ok(kOp, table->step(launch.arguments, queue_of(qkv)), qkv);
      return launch.y;
    }
  }
  rotate(qkv, positions, heads + kv_heads, head_dim, dim, base, false, false);
  return step(q, k, v, k_ring, v_ring, positions, slots, scale);
}

void register_kernels(Library& m) {
  implement<forward>(m, "causal_attention_forward");
  implement<backward>(m, "causal_attention_backward");
  implement<step>(m, "causal_attention_step");
  implement<paged_step>(m, "paged_attention_step");
  implement<rotate>(m, "rotary_");
  implement<rotary_step>(m, "rotary_attention_step");
}

STABLE_TORCH_LIBRARY_FRAGMENT(based, m) {
  // Composed of causal_attention_forward in Python.
  m.def(
      "causal_attention(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, int window, float scale, float "
      "dropout_p=0.0, int seed=0, Tensor? step=None, int place=0, int first_token=0) -> Tensor");
  // Kernels.
  define_with_reference(
      m,
      "causal_attention_forward(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, int window, float scale, float "
      "dropout_p=0.0, int seed=0, Tensor? step=None, int place=0, int first_token=0) -> (Tensor y, Tensor log_sum_exp)");
  define_with_reference(
      m,
      "causal_attention_backward(Tensor grad_y, Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, int window, float "
      "scale, float dropout_p, int seed, Tensor? step, int place, int first_token, Tensor y, Tensor log_sum_exp) -> (Tensor grad_q, "
      "Tensor grad_k, Tensor grad_v)");
  define_with_reference(
      m,
      "causal_attention_step(Tensor q, Tensor k, Tensor v, Tensor(a!) k_ring, Tensor(b!) v_ring, Tensor positions, Tensor slots, float "
      "scale) -> Tensor");
  define_with_reference(
      m,
      "paged_attention_step(Tensor q, Tensor k, Tensor v, Tensor(a!) k_pages, Tensor(b!) v_pages, Tensor page_table, Tensor positions, "
      "Tensor slots, float scale) -> Tensor");
  define_with_reference(
      m, "rotary_(Tensor(a!) x, Tensor positions, int heads, int head_dim, int dim, float base, bool interleaved, bool inverse) -> ()");
  m.def(
      "rotary_attention_step(Tensor(a!) qkv, Tensor(b!) k_ring, Tensor(c!) v_ring, Tensor positions, Tensor slots, float scale, int dim, "
      "float base) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(based, CPU, m) { register_kernels(m); }
STABLE_TORCH_LIBRARY_IMPL(based, CUDA, m) { register_kernels(m); }

}  // namespace
}  // namespace based::python
