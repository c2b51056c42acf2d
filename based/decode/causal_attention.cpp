// A step of softmax attention over a ring buffer. Its kernel reads the ring early where only this layer uses it.
#include "based/ops/attention/causal_attention.h"
#include "based/decode/state_kernel.h"
#include "based/decode/step_program.h"
#include "based/kernels/attention/causal_attention_plan.h"
#include "based/ops/attention/rotary_attention_step.h"
#include "based/ops/framework/arguments.h"

namespace based::decode {
namespace {

using kernels::CausalAttentionStep;
using kernels::DType;

// The memory that an instruction of a step's program uses.
struct WindowSpans {
  Span q, k, v, k_ring, v_ring, y;
};

// `rows`: of the step, of which a sequence has one for each of its tokens.
std::optional<Planned> window_instruction(const kernels::CausalAttentionTokens& tokens, int64_t rows, const WindowSpans& parts,
                                          const StepLimits& limits, std::string& why) {
  using namespace kernels;
  const CausalAttentionStep& p = tokens.step;
  why = "is not one sequence in bf16, with rotary positions, of a ring that is its own";
  if (rows != limits.tokens || tokens.padding != 0 || p.dtype != DType::bf16 || p.ring_dtype != DType::bf16 || !p.ring_is_private ||
      p.rotary_base == 0)
    return {};
  why = "has heads or a ring that a block cannot take";
  if (p.heads != p.kv_heads || p.heads > limits.gpu.multiprocessors || p.head_dim % 16 != 0 || p.head_dim > 128) return {};
  if (p.capacity > kStepMostKeys || p.capacity * p.head_dim / 8 > limits.threads) return {};
  if (limits.tokens > 1 && p.capacity < kStepTokens) return {};
  if (!aligned16(p.v) || !aligned16(p.k_ring) || !aligned16(p.v_ring)) return {};
  Planned to;
  to.step.kind = StepKind::window;
  to.step.arguments.window = tokens;
  to.step.in_stride[0] = static_cast<int32_t>(p.q_stride), to.step.in_stride[1] = static_cast<int32_t>(p.k_stride);
  to.step.in_stride[2] = static_cast<int32_t>(p.v_stride), to.step.out_stride = p.heads * p.head_dim;
  // The position was written before the program. An output whose memory is written later follows a norm that waits for all blocks.
  to.states = {parts.k_ring, parts.v_ring};
  to.early = to.states;
  to.reads = {parts.q, parts.k, parts.v};
  to.outputs = {parts.y};
  return to;
}

class WindowKernel final : public StepKernel {
 public:
  struct Parts {
    CausalAttentionStep arguments;
    Span q, k, v, k_ring, v_ring, slots, y;
  };
  explicit WindowKernel(Parts parts) : parts_(std::move(parts)) {}

  bool read_early(const Effects& effects, size_t unit) override {
    parts_.arguments.ring_is_private =
        effects.is_constant(parts_.slots) && effects.is_private(parts_.k_ring, unit) && effects.is_private(parts_.v_ring, unit);
    return parts_.arguments.ring_is_private;
  }
  Status launch(Queue queue) const override { return decode::launch(parts_.arguments, queue); }
  int64_t rows() const override { return parts_.arguments.rows; }

  std::optional<Planned> instruction(const StepLimits& limits, std::string& why) const override {
    const Parts& p = parts_;
    return window_instruction({p.arguments}, p.arguments.rows, {p.q, p.k, p.v, p.k_ring, p.v_ring, p.y}, limits, why);
  }

 private:
  Parts parts_;
};

struct Ring {
  Tensor k, v, positions, slots;
};

std::unique_ptr<WindowKernel::Parts> parts_of(const Operands& call, const Tensor& q, const Tensor& k, const Tensor& v, const Ring& ring,
                                              double scale, std::string& why) {
  why = "no kernel for this type";
  if (!ops::has_kernel(q) || !ops::has_kernel(ring.k)) return nullptr;
  const Tensor y = call.result();
  why = "heads of a token are not adjacent";
  for (const Tensor& tensor : {q, k, v})
    if (tensor.stride(2) != 1 || tensor.stride(1) != tensor.size(2)) return nullptr;
  for (const Tensor& tensor : {ring.k, ring.v, ring.positions, ring.slots, y})
    if (!tensor.is_contiguous()) return nullptr;
  const ops::CausalAttentionStep step{q, k, v, ring.k, ring.v, ring.positions, ring.slots, scale};
  return std::make_unique<WindowKernel::Parts>(WindowKernel::Parts{ops::causal_attention_step_arguments(step, y), call.span(q),
                                                                   call.span(k), call.span(v), call.span(ring.k), call.span(ring.v),
                                                                   call.span(ring.slots), call.span(y)});
}

std::unique_ptr<StepKernel> lower_step(const Operands& call, std::string& why) {
  auto parts = parts_of(call, call.tensor(0), call.tensor(1), call.tensor(2),
                        {call.tensor(3), call.tensor(4), call.tensor(5), call.tensor(6)}, call.number(7), why);
  if (parts == nullptr) return nullptr;
  return std::make_unique<WindowKernel>(std::move(*parts));
}

// Queries and keys are rotated by the kernel, where it does that.
std::unique_ptr<StepKernel> lower_rotary(const Operands& call, std::string& why) {
  const Tensor qkv = call.tensor(0), k_ring = call.tensor(1);
  const auto [q, k, v] = ops::columns_of_heads("rotary_attention_step", qkv, k_ring);
  auto parts = parts_of(call, q, k, v, {k_ring, call.tensor(2), call.tensor(3), call.tensor(4)}, call.number(5), why);
  if (parts == nullptr) return nullptr;
  parts->arguments.rotary_base = call.number(7);
  why = "no kernel rotates such queries and keys";
  if (call.integer(6) != q.size(2) || !kernels::causal_attention_step_fuses_rotary(parts->arguments, call.gpu)) return nullptr;
  return std::make_unique<WindowKernel>(std::move(*parts));
}

class WindowTokensKernel final : public TokensKernel<kernels::CausalAttentionTokens, &CausalAttentionStep::ring_is_private> {
 public:
  WindowTokensKernel(const kernels::CausalAttentionTokens& arguments, int64_t rows, EarlyReads early, const WindowSpans& parts)
      : TokensKernel(arguments, rows, std::move(early)), parts_(parts) {}
  std::optional<Planned> instruction(const StepLimits& limits, std::string& why) const override {
    return window_instruction(arguments_, rows(), parts_, limits, why);
  }

 private:
  WindowSpans parts_;
};

std::unique_ptr<StepKernel> lower_rotary_tokens(const Operands& call, std::string& why) {
  const Tensor qkv = call.tensor(0), k_ring = call.tensor(1), v_ring = call.tensor(2), positions = call.tensor(3), slots = call.tensor(4),
               kept_k = call.tensor(5), kept_v = call.tensor(6), y = call.result();
  why = "no kernel for this type";
  if (!ops::has_kernel(qkv) || !ops::has_kernel(k_ring)) return nullptr;
  why = "is not contiguous";
  for (const Tensor& tensor : {k_ring, v_ring, positions, slots, y})
    if (!tensor.is_contiguous()) return nullptr;
  const kernels::CausalAttentionTokens arguments = ops::rotary_attention_tokens_arguments(
      {qkv, k_ring, v_ring, positions, slots, kept_k, kept_v, call.integer(7), call.number(8), call.integer(9), call.number(10)}, y);
  why = "no kernel reads several tokens of such heads";
  if (call.integer(9) != arguments.step.head_dim || !kernels::causal_attention_takes_tokens(arguments.step, call.gpu)) return nullptr;
  const auto [q, k, v] = ops::columns_of_heads("rotary_attention_tokens", qkv, k_ring);
  const WindowSpans parts{call.span(q), call.span(k), call.span(v), call.span(k_ring), call.span(v_ring), call.span(y)};
  return std::make_unique<WindowTokensKernel>(arguments, qkv.size(0), EarlyReads{{call.span(slots)}, {parts.k_ring, parts.v_ring}}, parts);
}

constexpr Lowering kCausalAttentionLowerings[] = {{"based::causal_attention_step", lower_step},
                                                  {"based::rotary_attention_step", lower_rotary},
                                                  {"based::rotary_attention_tokens", lower_rotary_tokens}};

}  // namespace

std::span<const Lowering> lowerings_of_causal_attention() { return kCausalAttentionLowerings; }

}  // namespace based::decode
