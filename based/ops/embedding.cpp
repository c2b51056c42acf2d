#include "based/ops/embedding.h"

namespace based::ops {
namespace {

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

// The numbers one by one: three operators of ATen for them would take as long as a small model's layer.
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

struct EmbeddingFunction : torch::autograd::Function<EmbeddingFunction> {
  using Context = torch::autograd::AutogradContext;
  using Variables = torch::autograd::variable_list;

  static Variables forward(Context* context, const Tensor& table, const Tensor& ids) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({ids});
    context->saved_data["sizes"] = table.sizes();
    context->set_materialize_grads(false);
    return {at::embedding(table, ids), at::alias(table)};
  }

  static Variables backward(Context* context, const Variables& grads) {
    const Tensor &of_rows = grads[0], &of_table = grads[1];
    if (!of_rows.defined()) return {of_table, Tensor()};
    Tensor sum;
    if (!of_table.defined()) {
      sum = at::zeros(context->saved_data["sizes"].toIntVector(), of_rows.options());
    } else {
      sum = is_sole_owner(of_table) && of_table.is_contiguous() ? of_table : of_table.clone(at::MemoryFormat::Contiguous);
    }
    embedding_backward_(sum, of_rows, context->get_saved_variables()[0]);
    return {sum, Tensor()};
  }
};

}  // namespace

void embedding_backward_with(const EmbeddingKernels& kernels, const EmbeddingBackward& in) {
  const auto& [sum, grad, ids] = in;
  check(in);
  const Tensor rows = grad.contiguous(), row_ids = ids.contiguous();
  kernels::EmbeddingBackward p;
  p.tokens = ids.size(0), p.rows = sum.size(0), p.width = sum.size(1);
  p.grad = rows.const_data_ptr(), p.id = row_ids.const_data_ptr<int64_t>(), p.to = sum.mutable_data_ptr();
  if (has_kernel(sum)) p.dtype = kernel_dtype(sum);
  if (!uses_kernel("embedding_backward_", sum, has_kernel(sum) && sum.is_contiguous() && kernels.supports(p)))
    return backward_reference(in);
  const Tensor scratch = scratch_memory(kernels.scratch(p), sum);
  require_ok(kernels.backward(p, scratch.mutable_data_ptr()));
}

Result<EmbeddingStep> embedding_step_with(const EmbeddingKernels& kernels, const EmbeddingStep& in) {
  if (!uses_kernel("embedding_step_", in.table, has_kernel(in.table) && in.seen.is_contiguous())) return step_reference(in);
  auto [y, positions] = step_meta(in);  // which checks
  const Tensor rows = in.table.contiguous(), row_ids = in.ids.contiguous(), row_slots = in.slots.contiguous();
  kernels::EmbeddingStep p;
  p.table = rows.const_data_ptr(), p.id = row_ids.const_data_ptr<int64_t>(), p.slot = row_slots.const_data_ptr<int64_t>();
  p.seen = in.seen.mutable_data_ptr<int64_t>(), p.row_position = positions.mutable_data_ptr<int64_t>(), p.y = y.mutable_data_ptr<float>();
  p.rows = in.ids.size(0), p.vocab = rows.size(0), p.width = rows.size(1), p.dtype = kernel_dtype(rows);
  require_ok(kernels.step(p));
  return {std::move(y), std::move(positions)};
}

EmbeddedStep embedding_step_(Tensor seen, const Tensor& slots, const Tensor& table, const Tensor& ids) {
  auto [rows, positions] = call(EmbeddingStep{seen, slots, table, ids});
  return {std::move(rows), std::move(positions)};
}

void embedding_backward_(Tensor sum, const Tensor& grad, const Tensor& ids) { call(EmbeddingBackward{sum, grad, ids}); }

Embedded tied_embedding(const Tensor& table, const Tensor& ids) {
  if (!wants_gradient({table})) return {at::embedding(table, ids), table};
  const auto out = EmbeddingFunction::apply(table, ids);
  return {out[0], out[1]};
}

TORCH_LIBRARY_FRAGMENT(based, m) {
  define<EmbeddingBackward>(m).reference<backward_reference>().meta<[](const EmbeddingBackward& in) { check(in); }>().without_gradient();
  define<EmbeddingStep>(m).reference<step_reference>().cpu<step_cpu>().meta<step_meta>().without_gradient();
}

}  // namespace based::ops
