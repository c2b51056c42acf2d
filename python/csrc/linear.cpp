// torch.ops.based: linear layers and the gated MLP.
#include "based/kernels/linear/linear.h"

#include "based/ops/linear/linear_arguments.h"
#include "stable.h"

namespace based::python {
namespace {

using kernels::LinearLaunchers;

struct Layer {
  Tensor x, weight;
  OptionalTensor bias;
};

// A launch's arguments and the tensors that own their memory.
struct Launch {
  Layer layer;
  Tensor y;
  kernels::Linear arguments;
};

// y has `columns` columns: the number of weight's rows, or half of it for SwiGLU.
Launch prepare(const Layer& in, int64_t columns) {
  Launch launch{{with_unit_columns(in.x), with_unit_columns(in.weight), as_contiguous(in.bias)}, empty({in.x.size(0), columns}, in.x), {}};
  launch.arguments = ops::linear_tensor_arguments(launch.layer, launch.y);
  return launch;
}

// Kernels compute products of few rows; torch's are faster for more.
constexpr int64_t kMostCpuRows = 64;
bool has_few_rows(const Tensor& x) {
  return x.size(0) <= (x.is_cuda() ? kernels::cuda::most_linear_rows(/*weight_is_constant=*/false) : kMostCpuRows);
}

// Null for rows without a kernel. Torch's products are fast, so there is no warning.
const LinearLaunchers* launchers_of_rows(const Tensor& x) {
  return has_kernel(x) && has_few_rows(x) ? kernels::launchers<LinearLaunchers>(kernel_device(x)) : nullptr;
}

Tensor linear(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  constexpr const char* kOp = "linear";
  const Layer in{x, weight, bias};
  ops::check_linear_tensors(in);
  if (const LinearLaunchers* table = launchers_of_rows(x)) {
    const Launch launch = prepare(in, weight.size(0));
    if (table->supports(launch.arguments)) {
      require_ok(kOp, table->forward(launch.arguments, queue_of(x)), x);
      return launch.y;
    }
  }
  return call_reference<Tensor>(kOp, x, weight, bias);
}

Tensor linear_swiglu(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  constexpr const char* kOp = "linear_swiglu";
  const Layer in{x, weight, bias};
  ops::check_linear_tensors(in);
  require(weight.size(0) % 2 == 0, kOp, "weight must have an even number of rows, got ", weight.size(0));
  const LinearLaunchers* table = launchers_of_rows(x);
  if (table != nullptr && table->swiglu_supports != nullptr) {
    const Launch launch = prepare(in, weight.size(0) / 2);
    if (table->swiglu_supports(launch.arguments)) {
      require_ok(kOp, table->swiglu(launch.arguments, queue_of(x)), x);
      return launch.y;
    }
  }
  return call_reference<Tensor>(kOp, x, weight, bias);
}

void register_kernels(Library& m) {
  implement<linear>(m, "linear");
  implement<linear_swiglu>(m, "linear_swiglu");
}

STABLE_TORCH_LIBRARY_FRAGMENT(based, m) {
  // Composed of other operators in Python.
  m.def("gated_mlp(Tensor x, Tensor weight_in, Tensor weight_out) -> Tensor");
  // Kernels.
  define_with_reference(m, "linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor");
  define_with_reference(m, "linear_swiglu(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(based, CPU, m) { register_kernels(m); }
STABLE_TORCH_LIBRARY_IMPL(based, CUDA, m) { register_kernels(m); }

}  // namespace
}  // namespace based::python
