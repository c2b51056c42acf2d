// A step of Taylor attention. Its kernel reads the state early; with many rows updates of the state are deferred
// (kernels/taylor/deferred.h).
#include "based/ops/taylor/taylor_attention.h"
#include "based/decode/pending.h"
#include "based/decode/state_kernel.h"
#include "based/decode/step_program.h"
#include "based/kernels/taylor/deferred.h"
#include "based/ops/framework/arguments.h"
#include "based/ops/taylor/taylor_deferred.h"

namespace based::decode {
namespace {

using kernels::DType;
using kernels::TaylorAttention;

struct Parts {
  TaylorAttention arguments;
  ops::TaylorState state;  // kept, since it outlives the step
  Tensor decay;            // the rates, which outlive the step too; may be undefined
  at::ScalarType type;
  Span q, k, v, kv, k_sums, slots, rates, y;
};

// The memory that an instruction of a step's program uses.
struct TaylorSpans {
  Span q, k, v, kv, k_sums, y;
  bool has_decay = false;
};

// `rows`: of the step, of which a sequence has one for each of its tokens.
std::optional<Planned> taylor_instruction(const kernels::TaylorTokens& tokens, int64_t rows, const TaylorSpans& parts,
                                          const StepLimits& limits, std::string& why) {
  using namespace kernels;
  const TaylorAttention& p = tokens.step;
  const int64_t features = packed_features(p.feature_dim);
  why = "is not one sequence in bf16, without decay, of a state that is its own";
  if (rows != limits.tokens || tokens.padding != 0 || p.dtype != DType::bf16 || !p.state_is_private || parts.has_decay) return {};
  why = "has a state that cannot be divided among blocks";
  if (p.head_dim % kStepColumns != 0 || features > std::min(limits.threads, kStepFeatures) || features * 4 > limits.threads * kStepHeld)
    return {};
  if (p.heads * (p.head_dim / kStepColumns) > limits.gpu.multiprocessors || !aligned16(p.kv_state) || !aligned16(p.v)) return {};
  Planned to;
  to.step.kind = StepKind::taylor;
  to.step.arguments.taylor = tokens;
  to.step.in_stride[0] = to.step.in_stride[1] = p.heads * p.feature_dim;
  to.step.in_stride[2] = to.step.out_stride = p.heads * p.head_dim;
  to.states = {parts.kv, parts.k_sums};
  to.early = to.states;
  to.reads = {parts.q, parts.k, parts.v};
  to.outputs = {parts.y};
  return to;
}

class TaylorPendingTokens final : public PendingTokens {
 public:
  explicit TaylorPendingTokens(const Parts& parts)
      : state_(parts.state),
        pending_(ops::taylor_pending(parts.state, parts.arguments.feature_dim, parts.type)),
        decay_(ops::if_defined(parts.decay), parts.arguments.decay_denominator) {
    // y is bf16 there, and rounded sums add an error of the size of its rounding.
    if (parts.type == at::kBFloat16) rounded_ = at::empty_like(parts.state.kv, at::kBFloat16);
  }
  void flush(const Tensor& slots) override { ops::taylor_deferred_flush_(state_, pending_, slots, decay_); }
  void forget(const Tensor& slots) override { pending_.count.index_fill_(0, slots, 0); }
  int64_t bytes() const override {
    return static_cast<int64_t>(pending_.k.nbytes() + pending_.v.nbytes() + pending_.count.nbytes()) + rounded_bytes();
  }
  int64_t rounded_bytes() const override { return rounded_.defined() ? static_cast<int64_t>(rounded_.nbytes()) : 0; }
  int64_t replaced_bytes() const override { return 0; }
  const ops::TaylorPending& tensors() const { return pending_; }
  void* rounded() const { return rounded_.defined() ? rounded_.mutable_data_ptr() : nullptr; }

 private:
  ops::TaylorState state_;
  ops::TaylorPending pending_;
  ops::TaylorDecay decay_;
  Tensor rounded_;  // as TaylorDeferred::rounded_state; may be undefined
};

class DeferredKernel final : public StepKernel {
 public:
  explicit DeferredKernel(const Parts& parts) : pending_(std::make_shared<TaylorPendingTokens>(parts)) {
    const ops::TaylorPending& tensors = pending_->tensors();
    arguments_ = {parts.arguments, tensors.k.mutable_data_ptr(), tensors.v.mutable_data_ptr(),
                  static_cast<int32_t*>(tensors.count.mutable_data_ptr()), pending_->rounded()};
  }
  bool read_early(const Effects&, size_t) override { return true; }  // as the kernel that it replaces
  Status launch(Queue queue) const override { return decode::launch(arguments_, queue); }
  int64_t rows() const override { return arguments_.step.rows; }
  std::shared_ptr<PendingTokens> pending() const override { return pending_; }

 private:
  std::shared_ptr<TaylorPendingTokens> pending_;
  kernels::TaylorDeferred arguments_;
};

class TaylorKernel final : public StepKernel {
 public:
  explicit TaylorKernel(Parts parts) : parts_(std::move(parts)) {}

  bool read_early(const Effects& effects, size_t unit) override {
    parts_.arguments.state_is_private =
        effects.is_constant(parts_.slots) && effects.is_private(parts_.kv, unit) && effects.is_private(parts_.k_sums, unit);
    return parts_.arguments.state_is_private;
  }
  Status launch(Queue queue) const override { return decode::launch(parts_.arguments, queue); }
  int64_t rows() const override { return parts_.arguments.rows; }

  std::unique_ptr<StepKernel> deferred(const Gpu& gpu, const Effects& effects, size_t) const override {
    if (!parts_.arguments.state_is_private || !effects.is_constant(parts_.rates)) return nullptr;
    if (!kernels::taylor_deferred_is_faster(parts_.arguments, gpu)) return nullptr;
    return std::make_unique<DeferredKernel>(parts_);
  }

  std::optional<Planned> instruction(const StepLimits& limits, std::string& why) const override {
    const Parts& p = parts_;
    return taylor_instruction({p.arguments}, p.arguments.rows, {p.q, p.k, p.v, p.kv, p.k_sums, p.y, p.decay.defined()}, limits, why);
  }

 private:
  Parts parts_;
};

std::unique_ptr<StepKernel> lower_taylor_attention(const Operands& call, std::string& why) {
  const Tensor q = call.tensor(0), k = call.tensor(1), v = call.tensor(2), kv = call.tensor(3), sums = call.tensor(4),
               slots = call.tensor(5), decay = call.tensor(6), y = call.result();
  why = "no kernel for this type";
  if (!ops::has_kernel(q) || (decay.defined() && decay.scalar_type() != at::kFloat)) return nullptr;
  why = "is not contiguous";
  for (const Tensor& tensor : {q, k, v, kv, sums, slots, decay})
    if (tensor.defined() && !tensor.is_contiguous()) return nullptr;
  const ops::TaylorState state{kv, sums};
  Parts parts{ops::taylor_step_arguments({q, k, v, kv, sums, slots, ops::if_defined(decay), 1, call.flag(8)}, y),
              state,
              decay,
              q.scalar_type(),
              call.span(q),
              call.span(k),
              call.span(v),
              call.span(kv),
              call.span(sums),
              call.span(slots),
              call.span(decay),
              call.span(y)};
  parts.arguments.scale = static_cast<float>(call.number(7));
  return std::make_unique<TaylorKernel>(std::move(parts));
}

class TaylorTokensKernel final : public TokensKernel<kernels::TaylorTokens, &TaylorAttention::state_is_private> {
 public:
  TaylorTokensKernel(const kernels::TaylorTokens& arguments, int64_t rows, EarlyReads early, const TaylorSpans& parts)
      : TokensKernel(arguments, rows, std::move(early)), parts_(parts) {}
  std::optional<Planned> instruction(const StepLimits& limits, std::string& why) const override {
    return taylor_instruction(arguments_, rows(), parts_, limits, why);
  }

 private:
  TaylorSpans parts_;
};

std::unique_ptr<StepKernel> lower_tokens(const Operands& call, std::string& why) {
  const Tensor q = call.tensor(0), k = call.tensor(1), v = call.tensor(2), kv = call.tensor(3), sums = call.tensor(4),
               slots = call.tensor(5), decay = call.tensor(9), y = call.result();
  why = "no kernel for this type";
  if (!ops::has_kernel(q) || (decay.defined() && decay.scalar_type() != at::kFloat) || v.size(2) > kernels::kTaylorStepHeadDim)
    return nullptr;
  why = "is not contiguous";
  for (const Tensor& tensor : {q, k, v, kv, sums, slots, decay})
    if (tensor.defined() && !tensor.is_contiguous()) return nullptr;
  const ops::OptionalTensor rates = ops::if_defined(decay);
  const Tensor kept_kv = call.tensor(6), kept_sums = call.tensor(7);
  const ops::TaylorAttentionTokens in{q, k, v, kv, sums, slots, kept_kv, kept_sums, call.integer(8), rates, call.number(10), call.flag(11)};
  const TaylorSpans parts{call.span(q), call.span(k), call.span(v), call.span(kv), call.span(sums), call.span(y), decay.defined()};
  return std::make_unique<TaylorTokensKernel>(ops::taylor_tokens_arguments(in, y), q.size(0),
                                              EarlyReads{{call.span(slots)}, {parts.kv, parts.k_sums}}, parts);
}

constexpr Lowering kTaylorAttentionLowerings[] = {{"based::taylor_attention_step", lower_taylor_attention},
                                                  {"based::taylor_attention_tokens", lower_tokens}};

}  // namespace

std::span<const Lowering> lowerings_of_taylor_attention() { return kTaylorAttentionLowerings; }

}  // namespace based::decode
