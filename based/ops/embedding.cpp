#include "based/ops/embedding.h"

#include "based/ops/arguments.h"
#include "based/ops/launch.h"

namespace based::ops {
namespace {

constexpr const char* kOp = "embedding_backward_";

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

TORCH_LIBRARY_FRAGMENT(based, m) { m.def("embedding_backward_(Tensor(a!) sum, Tensor grad, Tensor ids) -> ()"); }

TORCH_LIBRARY_IMPL(based, CompositeExplicitAutograd, m) { m.impl("embedding_backward_", backward_reference); }
TORCH_LIBRARY_IMPL(based, Meta, m) { m.impl("embedding_backward_", backward_meta); }
TORCH_LIBRARY_IMPL(based, Autograd, m) { m.impl("embedding_backward_", backward_autograd); }

}  // namespace
}  // namespace based::ops
