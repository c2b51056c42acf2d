#include "based/ops/training/embedding.h"

#include "based/kernels/training/embedding.h"
#include "based/ops/framework/on_device.h"
#include "based/ops/framework/tokens_step.h"

namespace based::ops {
namespace {

using kernels::EmbeddingLaunchers;

void check(const EmbeddingRows& in) {
  constexpr const char* op = "embedding_rows";
  require(at::isFloatingType(in.table.scalar_type()), op, "table must be floating, got ", in.table.scalar_type());
  require_shape(op, "table", in.table, {-1, -1});
  require_type(op, "ids", in.ids, at::kLong);
  require_shape(op, "ids", in.ids, {-1});
  require(in.p >= 0 && in.p < 1, op, "p must be at least 0 and below 1, got ", in.p);
  if (in.p == 0) return;
  require(in.step && in.step->defined(), op, "p > 0 needs step, the number of the step that it draws for");
  require_type(op, "step", *in.step, at::kLong);
  require_shape(op, "step", *in.step, {});
}

Tensor rows_reference(const EmbeddingRows& in) {
  check(in);
  const Tensor rows = at::embedding(in.table, in.ids);
  return in.p == 0 ? rows : call(Dropout{rows, in.p, in.seed, *in.step, in.place, in.first_token});
}

Tensor rows_meta(const EmbeddingRows& in) {
  check(in);
  return at::empty({in.ids.size(0), in.table.size(1)}, in.table.options());
}

void check(const EmbeddingBackward& in) {
  constexpr const char* op = "embedding_backward_";
  require(at::isFloatingType(in.sum.scalar_type()), op, "sum must be floating, got ", in.sum.scalar_type());
  require_shape(op, "sum", in.sum, {-1, -1});
  require_like(op, "grad", in.grad, in.sum);
  require_type(op, "ids", in.ids, at::kLong);
  require_shape(op, "ids", in.ids, {-1});
  require_shape(op, "grad", in.grad, {in.ids.size(0), in.sum.size(1)});
}

void backward_reference(const EmbeddingBackward& in) {
  check(in);
  const Tensor grad = in.grad.to(sum_type(in.grad));
  in.sum.add_(at::embedding_dense_backward(grad, in.ids, in.sum.size(0), /*padding_idx=*/-1, /*scale_grad_by_freq=*/false));
}

void check(const EmbeddingStep& in) {
  constexpr const char* op = "embedding_step_";
  require(at::isFloatingType(in.table.scalar_type()), op, "table must be floating, got ", in.table.scalar_type());
  require_shape(op, "table", in.table, {-1, -1});
  require_type(op, "ids", in.ids, at::kLong);
  require_shape(op, "ids", in.ids, {-1});
  require_type(op, "seen", in.seen, at::kLong);
  require_shape(op, "seen", in.seen, {-1});
  require_slots(op, in.slots, in.ids.size(0), in.seen.size(0));
}

Tensor rows_of(const EmbeddingStep& in) { return at::embedding(in.table, in.ids.clamp_min(0)).to(sum_type(in.table)); }

Result<EmbeddingStep> step_reference(const EmbeddingStep& in) {
  check(in);
  Tensor positions = in.seen.index_select(0, in.slots);
  in.seen.index_copy_(0, in.slots, positions + 1);
  return {rows_of(in), std::move(positions)};
}

// Counts in a loop: three operators of ATen would take as long as a layer of a small model.
Result<EmbeddingStep> step_cpu(const EmbeddingStep& in) {
  if (!in.seen.is_contiguous()) return step_reference(in);
  check(in);
  Tensor positions = at::empty(in.slots.sizes(), in.slots.options());
  const Tensor row_slots = in.slots.contiguous();
  const int64_t* slot = row_slots.const_data_ptr<int64_t>();
  auto *position = positions.mutable_data_ptr<int64_t>(), *count = in.seen.mutable_data_ptr<int64_t>();
  for (int64_t row = 0; row < in.slots.size(0); ++row) position[row] = count[slot[row]]++;
  return {rows_of(in), std::move(positions)};
}

Result<EmbeddingStep> step_meta(const EmbeddingStep& in) {
  check(in);
  return {at::empty({in.ids.size(0), in.table.size(1)}, in.table.options().dtype(sum_type(in.table))),
          at::empty(in.ids.sizes(), in.ids.options())};
}

Tensor rows(const EmbeddingRows& in) {
  const EmbeddingLaunchers* launchers = launchers_for<EmbeddingLaunchers>("embedding_rows", in.table);
  if (launchers == nullptr) return rows_reference(in);
  const Tensor y = rows_meta(in), table = in.table.contiguous(), ids = in.ids.contiguous();  // which checks
  kernels::EmbeddingRows to;
  to.table = table.const_data_ptr(), to.id = ids.const_data_ptr<int64_t>(), to.y = y.mutable_data_ptr();
  to.tokens = ids.size(0), to.vocab = table.size(0), to.width = table.size(1), to.dtype = kernel_dtype(table);
  if (in.p > 0) {
    to.step = in.step->const_data_ptr<int64_t>(), to.seed = in.seed, to.place = in.place, to.first_token = in.first_token;
    to.threshold = kernels::dropout_threshold(in.p), to.scale = static_cast<float>(1 / (1 - in.p));
  }
  require_ok(launchers->rows(to, queue_of(table)));
  return y;
}

void backward(const EmbeddingBackward& in) {
  const auto& [sum, grad, ids] = in;
  const EmbeddingLaunchers* launchers = launchers_for<EmbeddingLaunchers>("embedding_backward_", sum, sum.is_contiguous());
  if (launchers == nullptr) return backward_reference(in);
  check(in);
  const Tensor rows = grad.contiguous(), row_ids = ids.contiguous();
  kernels::EmbeddingBackward p;
  p.tokens = ids.size(0), p.rows = sum.size(0), p.width = sum.size(1);
  p.grad = rows.const_data_ptr(), p.id = row_ids.const_data_ptr<int64_t>(), p.to = sum.mutable_data_ptr();
  p.dtype = kernel_dtype(sum);
  if (!uses_kernel("embedding_backward_", sum, launchers->backward_supports(p))) return backward_reference(in);
  const Tensor scratch = scratch_memory(launchers->backward_scratch(p), sum);
  require_ok(launchers->backward(p, scratch.mutable_data_ptr(), queue_of(sum)));
}

// The arguments that both kernels of steps take.
kernels::EmbeddingStep step_arguments(const Tensor& seen, const Tensor& slots, const Tensor& table, const Tensor& ids,
                                      const EmbeddedStep& to) {
  kernels::EmbeddingStep p;
  p.table = table.const_data_ptr(), p.id = ids.const_data_ptr<int64_t>(), p.slot = slots.const_data_ptr<int64_t>();
  p.seen = seen.mutable_data_ptr<int64_t>(), p.row_position = to.positions.mutable_data_ptr<int64_t>();
  p.y = to.rows.mutable_data_ptr<float>();
  p.rows = slots.size(0), p.vocab = table.size(0), p.width = table.size(1), p.dtype = kernel_dtype(table);
  return p;
}

Result<EmbeddingStep> step(const EmbeddingStep& in) {
  const EmbeddingLaunchers* launchers = launchers_for<EmbeddingLaunchers>("embedding_step_", in.table, in.seen.is_contiguous());
  if (launchers == nullptr) return in.table.is_cpu() ? step_cpu(in) : step_reference(in);
  auto [y, positions] = step_meta(in);  // which checks
  const Tensor rows = in.table.contiguous(), row_ids = in.ids.contiguous(), row_slots = in.slots.contiguous();
  require_ok(launchers->step(step_arguments(in.seen, row_slots, rows, row_ids, {y, positions}), queue_of(rows)));
  return {std::move(y), std::move(positions)};
}

void check(const EmbeddingTokens& in) {
  check(EmbeddingStep{in.seen, in.slots, in.table, in.ids.narrow(0, 0, std::min<int64_t>(in.ids.size(0), 1))});
  require(in.padding >= 0, "embedding_tokens_", "padding must be at least 0, got ", in.padding);
  check_tokens_step("embedding_tokens_", in.ids.size(0), kernels::kMostEmbeddingTokens, in.ids.size(0), in.slots,
                    {{"seen", in.seen, in.kept}});
}

Result<EmbeddingTokens> tokens_reference(const EmbeddingTokens& in) {
  check(in);
  const int64_t tokens = in.ids.size(0);
  const Tensor after = in.seen.index_select(0, in.slots) + at::arange(1, tokens + 1, in.seen.options());
  if (in.kept.size(0) > 0) in.kept.narrow(0, 0, tokens - 1).copy_(after.narrow(0, 0, tokens - 1));
  in.seen.index_copy_(0, in.slots, after.narrow(0, tokens - 1, 1));
  const Tensor rows = at::embedding(in.table, in.ids.clamp_min(0)).to(sum_type(in.table));
  return {cat_with_padding({rows}, in.padding), cat_with_padding({after - 1}, in.padding)};
}

Result<EmbeddingTokens> tokens_meta(const EmbeddingTokens& in) {
  check(in);
  const int64_t rows = in.ids.size(0) + in.padding;
  return {at::empty({rows, in.table.size(1)}, in.table.options().dtype(sum_type(in.table))), at::empty({rows}, in.ids.options())};
}

Result<EmbeddingTokens> tokens(const EmbeddingTokens& in) {
  const EmbeddingLaunchers* launchers = launchers_for<EmbeddingLaunchers>("embedding_tokens_", in.table, in.seen.is_contiguous());
  if (launchers == nullptr) return tokens_reference(in);
  auto [y, positions] = tokens_meta(in);  // which checks
  const Tensor table = in.table.contiguous(), ids = in.ids.contiguous(), slots = in.slots.contiguous();
  kernels::EmbeddingTokens p{step_arguments(in.seen, slots, table, ids, {y, positions}), ids.size(0), in.padding};
  if (in.kept.size(0) > 0) p.kept_seen = in.kept.mutable_data_ptr<int64_t>();
  require_ok(launchers->step_tokens(p, queue_of(table)));
  return {std::move(y), std::move(positions)};
}

struct EmbeddingFunction : torch::autograd::Function<EmbeddingFunction> {
  using Context = torch::autograd::AutogradContext;
  using Variables = torch::autograd::variable_list;

  static Variables forward(Context* context, const Tensor& table, const Tensor& ids, double p, int64_t seed, const OptionalTensor& step,
                           int64_t place, int64_t first_token) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({ids, value_or_undefined(step)});
    context->saved_data["sizes"] = table.sizes();
    context->saved_data["p"] = p;
    context->saved_data["seed"] = seed;
    context->saved_data["place"] = place;
    context->saved_data["first_token"] = first_token;
    context->set_materialize_grads(false);
    return {call(EmbeddingRows{table, ids, p, seed, step, place, first_token}), at::alias(table)};
  }

  static Variables backward(Context* context, const Variables& grads) {
    const Tensor &grad_table = grads[1], none;
    Tensor grad_rows = grads[0];
    if (!grad_rows.defined()) return {grad_table, none, none, none, none, none, none};
    const Variables saved = context->get_saved_variables();
    const auto number = [&](const char* name) { return context->saved_data[name].toInt(); };
    if (const double p = context->saved_data["p"].toDouble(); p > 0)
      grad_rows = call(Dropout{grad_rows, p, number("seed"), saved[1], number("place"), number("first_token")});
    Tensor sum;
    if (!grad_table.defined()) {
      sum = at::zeros(context->saved_data["sizes"].toIntVector(), grad_rows.options());
    } else {
      sum = is_sole_owner(grad_table) && grad_table.is_contiguous() ? grad_table : grad_table.clone(at::MemoryFormat::Contiguous);
    }
    embedding_backward_(sum, grad_rows, saved[0]);
    return {sum, none, none, none, none, none, none};
  }
};

}  // namespace

EmbeddedStep embedding_step_(Tensor seen, const Tensor& slots, const Tensor& table, const Tensor& ids) {
  auto [rows, positions] = call(EmbeddingStep{seen, slots, table, ids});
  return {std::move(rows), std::move(positions)};
}

EmbeddedStep embedding_tokens_(Tensor seen, const Tensor& slots, const Tensor& table, const Tensor& ids, const Tensor& kept,
                               int64_t padding) {
  auto [rows, positions] = call(EmbeddingTokens{seen, slots, table, ids, kept, padding});
  return {std::move(rows), std::move(positions)};
}

void embedding_backward_(Tensor sum, const Tensor& grad, const Tensor& ids) { call(EmbeddingBackward{sum, grad, ids}); }

Embedded tied_embedding(const Tensor& table, const Tensor& ids, double p, const Draws& draws, int64_t place) {
  const OptionalTensor step = if_defined(draws.step);
  if (!wants_gradient({table})) return {call(EmbeddingRows{table, ids, p, draws.seed, step, place, draws.first_token}), table};
  const auto out = EmbeddingFunction::apply(table, ids, p, draws.seed, step, place, draws.first_token);
  return {out[0], out[1]};
}

namespace {

Result<EmbeddingBackward> embedding_backward_meta(const EmbeddingBackward& in) { check(in); }

TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) {
  define<EmbeddingRows>(m).reference<rows_reference>().meta<rows_meta>().kernel<rows>().without_gradient();
  define<EmbeddingBackward>(m).reference<backward_reference>().meta<embedding_backward_meta>().kernel<backward>().without_gradient();
  define<EmbeddingTokens>(m).reference<tokens_reference>().meta<tokens_meta>().kernel<tokens>().without_gradient();
  define<EmbeddingStep>(m).reference<step_reference>().meta<step_meta>().kernel<step>().without_gradient();
}

}  // namespace
}  // namespace based::ops
