#include "based/ops/embedding.h"

#include "based/ops/arguments.h"
#include "based/ops/launch.h"

namespace based::ops {
namespace {

constexpr const char *kOp = "embedding_backward_", *kStep = "embedding_step_";

void check(const Tensor& sum, const Tensor& grad, const Tensor& ids) {
  require(at::isFloatingType(sum.scalar_type()), kOp, "sum must be floating, got ", sum.scalar_type());
  require_shape(kOp, "sum", sum, {-1, -1});
  require_like(kOp, "grad", grad, sum);
  require_type(kOp, "ids", ids, at::kLong);
  require_shape(kOp, "ids", ids, {-1});
  require_shape(kOp, "grad", grad, {ids.size(0), sum.size(1)});
}

void backward_reference(Tensor sum, const Tensor& grad, const Tensor& ids) {
  check(sum, grad, ids);
  sum.add_(at::embedding_dense_backward(grad.to(sum_type(grad)), ids, sum.size(0), /*padding_idx=*/-1, /*scale_grad_by_freq=*/false));
}

void backward_meta(Tensor sum, const Tensor& grad, const Tensor& ids) { check(sum, grad, ids); }

void backward_autograd(Tensor sum, const Tensor& grad, const Tensor& ids) {
  require_no_gradient(kOp, {sum, grad});
  const at::AutoDispatchBelowADInplaceOrView guard;
  embedding_backward_(sum, grad, ids);
}

using Step = std::tuple<Tensor, Tensor>;  // EmbeddedStep's

void check_step(const Tensor& seen, const Tensor& slots, const Tensor& table, const Tensor& ids) {
  require(at::isFloatingType(table.scalar_type()), kStep, "table must be floating, got ", table.scalar_type());
  require_shape(kStep, "table", table, {-1, -1});
  require_type(kStep, "ids", ids, at::kLong);
  require_shape(kStep, "ids", ids, {-1});
  require_type(kStep, "seen", seen, at::kLong);
  require_shape(kStep, "seen", seen, {-1});
  require_slots(kStep, slots, ids.size(0), seen.size(0));
}

Step step_reference(Tensor seen, const Tensor& slots, const Tensor& table, const Tensor& ids) {
  check_step(seen, slots, table, ids);
  Tensor positions = seen.index_select(0, slots);
  seen.index_copy_(0, slots, positions + 1);
  return {at::embedding(table, ids.clamp_min(0)).to(sum_type(table)), std::move(positions)};
}

// The numbers one by one: three operators of ATen for them would take as long as a small model's layer.
Step step_cpu(Tensor seen, const Tensor& slots, const Tensor& table, const Tensor& ids) {
  if (!seen.is_contiguous()) return step_reference(seen, slots, table, ids);
  check_step(seen, slots, table, ids);
  Tensor positions = at::empty(slots.sizes(), slots.options());
  const Tensor row_slots = slots.contiguous();
  const int64_t* slot = row_slots.const_data_ptr<int64_t>();
  auto *position = positions.mutable_data_ptr<int64_t>(), *count = seen.mutable_data_ptr<int64_t>();
  for (int64_t row = 0; row < slots.size(0); ++row) position[row] = count[slot[row]]++;
  return {at::embedding(table, ids.clamp_min(0)).to(sum_type(table)), std::move(positions)};
}

Step step_meta(Tensor seen, const Tensor& slots, const Tensor& table, const Tensor& ids) {
  check_step(seen, slots, table, ids);
  return {at::empty({ids.size(0), table.size(1)}, table.options().dtype(sum_type(table))), at::empty(ids.sizes(), ids.options())};
}

Step step_autograd(Tensor seen, const Tensor& slots, const Tensor& table, const Tensor& ids) {
  require_no_gradient(kStep, {table});
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto [rows, positions] = embedding_step_(std::move(seen), slots, table, ids);
  return {rows, positions};
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

void embedding_backward_with(const EmbeddingKernels& table, Tensor sum, const Tensor& grad, const Tensor& ids) {
  check(sum, grad, ids);
  const Tensor rows = grad.contiguous(), row_ids = ids.contiguous();
  kernels::EmbeddingBackward p;
  p.tokens = ids.size(0), p.rows = sum.size(0), p.width = sum.size(1);
  p.grad = rows.const_data_ptr(), p.id = row_ids.const_data_ptr<int64_t>(), p.to = sum.mutable_data_ptr();
  if (has_kernel(sum)) p.dtype = kernel_dtype(sum);
  if (!uses_kernel(kOp, sum, has_kernel(sum) && sum.is_contiguous() && table.supports(p))) return backward_reference(sum, grad, ids);
  const Tensor scratch = scratch_memory(table.scratch(p), sum);
  require_ok(table.backward(p, scratch.mutable_data_ptr()));
}

EmbeddedStep embedding_step_with(const EmbeddingKernels& kernels, Tensor seen, const Tensor& slots, const Tensor& table,
                                 const Tensor& ids) {
  const bool by_kernel = uses_kernel(kStep, table, has_kernel(table) && seen.is_contiguous());
  const auto [y, positions] = by_kernel ? step_meta(seen, slots, table, ids) : step_reference(seen, slots, table, ids);  // which check
  if (!by_kernel) return {y, positions};
  const Tensor rows = table.contiguous(), row_ids = ids.contiguous(), row_slots = slots.contiguous();
  kernels::EmbeddingStep p;
  p.table = rows.const_data_ptr(), p.id = row_ids.const_data_ptr<int64_t>(), p.slot = row_slots.const_data_ptr<int64_t>();
  p.seen = seen.mutable_data_ptr<int64_t>(), p.row_position = positions.mutable_data_ptr<int64_t>(), p.y = y.mutable_data_ptr<float>();
  p.rows = ids.size(0), p.vocab = table.size(0), p.width = table.size(1), p.dtype = kernel_dtype(table);
  require_ok(kernels.step(p));
  return {y, positions};
}

EmbeddedStep embedding_step_(Tensor seen, const Tensor& slots, const Tensor& table, const Tensor& ids) {
  static const auto op = find_operator<decltype(step_reference)>("based::embedding_step_");
  auto [rows, positions] = op.call(std::move(seen), slots, table, ids);
  return {std::move(rows), std::move(positions)};
}

void embedding_backward_(Tensor sum, const Tensor& grad, const Tensor& ids) {
  static const auto op = find_operator<decltype(backward_reference)>("based::embedding_backward_");
  op.call(std::move(sum), grad, ids);
}

Embedded tied_embedding(const Tensor& table, const Tensor& ids) {
  if (!wants_gradient({table})) return {at::embedding(table, ids), table};
  const auto out = EmbeddingFunction::apply(table, ids);
  return {out[0], out[1]};
}

namespace {

TORCH_LIBRARY_FRAGMENT(based, m) {
  m.def("embedding_backward_(Tensor(a!) sum, Tensor grad, Tensor ids) -> ()");
  m.def("embedding_step_(Tensor(a!) seen, Tensor slots, Tensor table, Tensor ids) -> (Tensor rows, Tensor positions)");
}

TORCH_LIBRARY_IMPL(based, CompositeExplicitAutograd, m) {
  m.impl("embedding_backward_", backward_reference);
  m.impl("embedding_step_", step_reference);
}

TORCH_LIBRARY_IMPL(based, CPU, m) { m.impl("embedding_step_", step_cpu); }

TORCH_LIBRARY_IMPL(based, Meta, m) {
  m.impl("embedding_backward_", backward_meta);
  m.impl("embedding_step_", step_meta);
}

TORCH_LIBRARY_IMPL(based, Autograd, m) {
  m.impl("embedding_backward_", backward_autograd);
  m.impl("embedding_step_", step_autograd);
}

}  // namespace
}  // namespace based::ops
