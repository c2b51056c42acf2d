// torch.ops.based: layer norm and RMS norm.
#include "based/ops/norm/norm_arguments.h"
#include "stable.h"

namespace based::python {
namespace {

using kernels::LayerNormLaunchers;
using kernels::RmsNormLaunchers;
using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;
using Quadruple = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using Quintuple = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

Sizes rows_of(const Tensor& x) {
  Sizes rows = sizes_of(x);
  rows.pop_back();
  return rows;
}

// An absent tensor is undefined.
Tensor contiguous_or_undefined(const OptionalTensor& tensor) { return tensor ? as_contiguous(*tensor) : Tensor(); }

// The sum of residual and x: of the residual's type, or without one in the type of sums.
Tensor empty_sum(const OptionalTensor& residual, const Tensor& x) {
  return residual ? empty(sizes_of(x), *residual) : empty(sizes_of(x), x, sum_type(x));
}

const RmsNormLaunchers* rms_norm_launchers(const char* op, const Tensor& x, const Tensor& weight) {
  const auto* table = kernels::launchers<RmsNormLaunchers>(kernel_device(x));
  return launchers_for<RmsNormLaunchers>(op, x, table != nullptr && has_kernel(weight) && weight.numel() <= table->max_width);
}

// See rms_norm_of_terms().
struct Terms {
  Tensor x, added, deferred, sum;
};

// y and inverse_rms, which is undefined without `keep_inverse_rms`.
Pair launch_rms_norm(const char* op, const RmsNormLaunchers& table, const Terms& terms, const Tensor& weight, double eps,
                     bool keep_inverse_rms) {
  const Tensor& any = terms.x.defined() ? terms.x : terms.sum;
  const Tensor scale = as_contiguous(weight), y = empty(sizes_of(any), weight);
  kernels::RmsNorm to = ops::rms_norm_of_terms(terms, scale, eps, y);
  Tensor inverse_rms;
  if (keep_inverse_rms) {
    inverse_rms = empty(rows_of(any), any, ScalarType::Float);
    to.inverse_rms = written<float>(inverse_rms);
  }
  require_ok(op, table.forward(to, queue_of(any)), any);
  return {y, inverse_rms};
}

Pair rms_norm_forward(const Tensor& x, const Tensor& weight, double eps) {
  constexpr const char* kOp = "rms_norm_forward";
  ops::check_rms_norm(x, weight);
  const RmsNormLaunchers* table = rms_norm_launchers(kOp, x, weight);
  if (table == nullptr) return call_reference<Pair>(kOp, x, weight, eps);
  return launch_rms_norm(kOp, *table, {as_contiguous(x), {}, {}, {}}, weight, eps, true);
}

Triple rms_norm_add_forward(const OptionalTensor& residual, const Tensor& x, const Tensor& weight, double eps) {
  constexpr const char* kOp = "rms_norm_add_forward";
  ops::check_rms_norm_sum(kOp, residual, x, weight);
  const RmsNormLaunchers* table = rms_norm_launchers(kOp, residual ? *residual : x, weight);
  if (table == nullptr) return call_reference<Triple>(kOp, residual, x, weight, eps);
  const Tensor sum = empty_sum(residual, x);
  const auto [y, inverse_rms] =
      launch_rms_norm(kOp, *table, {contiguous_or_undefined(residual), as_contiguous(x), {}, sum}, weight, eps, true);
  return {sum, y, inverse_rms};
}

Tensor rms_norm_add_in_place(const Tensor& residual, const Tensor& x, const Tensor& weight, double eps, const OptionalTensor& deferred) {
  constexpr const char* kOp = "rms_norm_add_";
  ops::check_rms_norm_sum(kOp, OptionalTensor(residual), x, weight);
  if (deferred) require_shape(kOp, "deferred", *deferred, sizes_of(residual));
  if (deferred) require_type(kOp, "deferred", *deferred, weight.scalar_type());
  require(residual.is_contiguous(), kOp, "residual must be contiguous");
  const RmsNormLaunchers* table = rms_norm_launchers(kOp, residual, weight);
  if (table == nullptr) return call_reference<Tensor>(kOp, residual, x, weight, eps, deferred);
  const Terms terms{residual, as_contiguous(x), contiguous_or_undefined(deferred), residual};
  return std::get<0>(launch_rms_norm(kOp, *table, terms, weight, eps, false));
}

Tensor rms_norm_of_sum(const Tensor& residual, const Tensor& x, const Tensor& weight, double eps) {
  constexpr const char* kOp = "rms_norm_of_sum";
  ops::check_rms_norm_sum(kOp, OptionalTensor(residual), x, weight);
  const RmsNormLaunchers* table = rms_norm_launchers(kOp, residual, weight);
  if (table == nullptr) return call_reference<Tensor>(kOp, residual, x, weight, eps);
  return std::get<0>(launch_rms_norm(kOp, *table, {as_contiguous(residual), as_contiguous(x), {}, {}}, weight, eps, false));
}

Tensor rms_norm_gated(const Tensor& x, const Tensor& weight, double eps, const Tensor& gate) {
  constexpr const char* kOp = "rms_norm_gated";
  ops::check_rms_norm(x, weight);
  require_shape(kOp, "gate", gate, sizes_of(x));
  require_type(kOp, "gate", gate, weight.scalar_type());
  const RmsNormLaunchers* table = rms_norm_launchers(kOp, x, weight);
  if (table == nullptr) return call_reference<Tensor>(kOp, x, weight, eps, gate);
  const Tensor rows = as_contiguous(x), scale = as_contiguous(weight), factor = as_contiguous(gate), y = empty(sizes_of(x), gate);
  kernels::RmsNorm to = ops::rms_norm_of_terms(Terms{rows, {}, {}, {}}, scale, eps, y);
  to.gate = data(factor);
  require_ok(kOp, table->forward(to, queue_of(x)), x);
  return y;
}

void check_rms_norm_gradient(const char* op, const Tensor& grad_y, const Tensor& x, const Tensor& weight, const Tensor& inverse_rms) {
  ops::check_rms_norm(x, weight);
  require_type(op, "grad_y", grad_y, weight.scalar_type());
  require_shape(op, "grad_y", grad_y, sizes_of(x));
  require_shape(op, "inverse_rms", inverse_rms, rows_of(x));
}

// The gradient of x has x's type; with `added`, x is the sum of rms_norm_add, and its gradient has weight's type.
Pair launch_rms_norm_backward(const char* op, const RmsNormLaunchers& table, const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                              const Tensor& inverse_rms, const OptionalTensor& grad_sum, bool added) {
  const Tensor rows = as_contiguous(x), scale = as_contiguous(weight), cotangent = as_contiguous(grad_y);
  const Tensor inverse = as_contiguous(inverse_rms), grad = empty(sizes_of(x), added ? weight : x);
  const OptionalTensor rest = as_contiguous(grad_sum);
  const Tensor grad_weight = empty(sizes_of(weight), weight, ScalarType::Float);
  kernels::RmsNormBackward to;
  to.forward = ops::rms_norm_of_rows(rows, scale);
  to.forward.inverse_rms = written<float>(inverse);
  to.grad_y = data(cotangent), to.grad_sum = data(rest);
  (added ? to.grad_add : to.grad_x) = written_data(grad);
  to.grad_weight = written<float>(grad_weight);
  const Tensor scratch = scratch_memory(table.backward_scratch(to), x);
  require_ok(op, table.backward(to, written_data(scratch), queue_of(x)), x);
  return {grad, as_contiguous(grad_weight, weight.scalar_type())};
}

Pair rms_norm_backward(const Tensor& grad_y, const Tensor& x, const Tensor& weight, const Tensor& inverse_rms) {
  constexpr const char* kOp = "rms_norm_backward";
  check_rms_norm_gradient(kOp, grad_y, x, weight, inverse_rms);
  const RmsNormLaunchers* table = rms_norm_launchers(kOp, x, weight);
  if (table == nullptr) return call_reference<Pair>(kOp, grad_y, x, weight, inverse_rms);
  return launch_rms_norm_backward(kOp, *table, grad_y, x, weight, inverse_rms, {}, false);
}

Pair rms_norm_add_backward(const OptionalTensor& grad_sum, const Tensor& grad_y, const Tensor& sum, const Tensor& weight,
                           const Tensor& inverse_rms) {
  constexpr const char* kOp = "rms_norm_add_backward";
  check_rms_norm_gradient(kOp, grad_y, sum, weight, inverse_rms);
  if (grad_sum) require_type(kOp, "grad_sum", *grad_sum, weight.scalar_type());
  if (grad_sum) require_shape(kOp, "grad_sum", *grad_sum, sizes_of(sum));
  const RmsNormLaunchers* table = rms_norm_launchers(kOp, sum, weight);
  if (table == nullptr) return call_reference<Pair>(kOp, grad_sum, grad_y, sum, weight, inverse_rms);
  return launch_rms_norm_backward(kOp, *table, grad_y, sum, weight, inverse_rms, grad_sum, true);
}

const LayerNormLaunchers* layer_norm_launchers(const char* op, const Tensor& x, const Tensor& weight) {
  const auto* table = kernels::launchers<LayerNormLaunchers>(kernel_device(x));
  const bool supported =
      table != nullptr && has_kernel(x) && has_kernel(weight) && table->supports(weight.numel(), kernel_dtype(x), kernel_dtype(weight));
  return launchers_for<LayerNormLaunchers>(op, x, supported);
}

// A norm's parameters, contiguous.
struct Parameters {
  Tensor weight, bias;
  Parameters(const Tensor& norm_weight, const Tensor& norm_bias) : weight(as_contiguous(norm_weight)), bias(as_contiguous(norm_bias)) {}
};

// y, mean and inverse_std of the norm of x + added, which is stored in `sum`. Without a residual x is undefined, and so are `added` and
// `sum` where nothing is added; the statistics are undefined unless they are kept.
Triple launch_layer_norm(const char* op, const LayerNormLaunchers& table, const Terms& terms, const Parameters& parameters, double eps,
                         bool keeps_statistics) {
  const Tensor& rows = terms.x.defined() ? terms.x : terms.sum;
  const Tensor y = empty(sizes_of(rows), parameters.weight);
  kernels::LayerNorm to = ops::layer_norm_of_rows(parameters, rows, eps);
  if (terms.x.defined()) to.x = data(terms.x);
  if (terms.added.defined()) to.add = data(terms.added);
  if (terms.sum.defined()) to.sum = written_data(terms.sum);
  to.y = written_data(y);
  Tensor mean, inverse_std;
  if (keeps_statistics) {
    mean = empty(rows_of(rows), rows, ScalarType::Float), inverse_std = empty(rows_of(rows), rows, ScalarType::Float);
    to.mean = written<float>(mean), to.inverse_std = written<float>(inverse_std);
  }
  require_ok(op, table.forward(to, queue_of(rows)), rows);
  return {y, mean, inverse_std};
}

Triple layer_norm_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  constexpr const char* kOp = "layer_norm_forward";
  ops::check_layer_norm(kOp, x, weight, bias);
  const LayerNormLaunchers* table = layer_norm_launchers(kOp, x, weight);
  if (table == nullptr) return call_reference<Triple>(kOp, x, weight, bias, eps);
  return launch_layer_norm(kOp, *table, {as_contiguous(x), {}, {}, {}}, {weight, bias}, eps, true);
}

Quadruple layer_norm_add_forward(const OptionalTensor& residual, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  constexpr const char* kOp = "layer_norm_add_forward";
  ops::check_layer_norm_sum(kOp, residual, x, weight, bias);
  const LayerNormLaunchers* table = layer_norm_launchers(kOp, residual ? *residual : x, weight);
  if (table == nullptr) return call_reference<Quadruple>(kOp, residual, x, weight, bias, eps);
  const Tensor sum = empty_sum(residual, x);
  const Terms terms{contiguous_or_undefined(residual), as_contiguous(x), {}, sum};
  const auto [y, mean, inverse_std] = launch_layer_norm(kOp, *table, terms, {weight, bias}, eps, true);
  return {sum, y, mean, inverse_std};
}

Tensor layer_norm_add_in_place(const Tensor& residual, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  constexpr const char* kOp = "layer_norm_add_";
  ops::check_layer_norm_sum(kOp, OptionalTensor(residual), x, weight, bias);
  require(residual.is_contiguous(), kOp, "residual must be contiguous");
  const LayerNormLaunchers* table = layer_norm_launchers(kOp, residual, weight);
  if (table == nullptr) return call_reference<Tensor>(kOp, residual, x, weight, bias, eps);
  return std::get<0>(launch_layer_norm(kOp, *table, {residual, as_contiguous(x), {}, residual}, {weight, bias}, eps, false));
}

// A gradient of the weight's type and the sum's shape, where it is given.
void check_layer_norm_gradient(const char* op, const char* name, const OptionalTensor& gradient, const Tensor& sum, const Tensor& weight) {
  if (!gradient) return;
  require_type(op, name, *gradient, weight.scalar_type());
  require_shape(op, name, *gradient, sizes_of(sum));
}

Triple layer_norm_backward(const OptionalTensor& grad_sum, const Tensor& grad_y, const Tensor& sum, const Tensor& weight,
                           const Tensor& bias, const Tensor& mean, const Tensor& inverse_std) {
  constexpr const char* kOp = "layer_norm_backward";
  ops::check_layer_norm(kOp, sum, weight, bias);
  check_layer_norm_gradient(kOp, "grad_sum", grad_sum, sum, weight);
  check_layer_norm_gradient(kOp, "grad_y", grad_y, sum, weight);
  const LayerNormLaunchers* table = layer_norm_launchers(kOp, sum, weight);
  if (table == nullptr) return call_reference<Triple>(kOp, grad_sum, grad_y, sum, weight, bias, mean, inverse_std);
  require_shape(kOp, "mean", mean, rows_of(sum));
  require_shape(kOp, "inverse_std", inverse_std, rows_of(sum));
  const Parameters parameters(weight, bias);
  const Tensor rows = as_contiguous(sum), means = as_contiguous(mean), inverse = as_contiguous(inverse_std);
  const Tensor cotangent = as_contiguous(grad_y), grad_x = empty(sizes_of(sum), weight);
  const OptionalTensor rest = as_contiguous(grad_sum);
  const Tensor grad_weight = empty(sizes_of(weight), weight, ScalarType::Float),
               grad_bias = empty(sizes_of(weight), weight, ScalarType::Float);
  kernels::LayerNormBackward to;
  to.forward = ops::layer_norm_of_rows(parameters, rows, 0);
  to.forward.x = data(rows), to.forward.mean = written<float>(means), to.forward.inverse_std = written<float>(inverse);
  to.grad_y = data(cotangent), to.grad_sum = data(rest), to.grad_x = written_data(grad_x);
  to.grad_weight = written<float>(grad_weight), to.grad_bias = written<float>(grad_bias);
  const Tensor scratch = scratch_memory(table->backward_scratch(to), sum);
  require_ok(kOp, table->backward(to, written_data(scratch), queue_of(sum)), sum);
  return {grad_x, as_contiguous(grad_weight, weight.scalar_type()), as_contiguous(grad_bias, weight.scalar_type())};
}

void check_twice(const char* op, const Tensor& rows, const Tensor& weight, const Tensor& next_weight, const Tensor& next_bias) {
  require_like(op, "next_weight", next_weight, weight);
  ops::check_layer_norm(op, rows, next_weight, next_bias);
}

// The statistics of both norms are the halves of mean and inverse_std [2, rows…].
void set_statistics(kernels::LayerNorm& first, kernels::LayerNorm& second, const Tensor& mean, const Tensor& inverse_std) {
  first.mean = written<float>(mean), first.inverse_std = written<float>(inverse_std);
  second.mean = first.mean + first.rows, second.inverse_std = first.inverse_std + first.rows;
}

Quintuple layer_norm_add_twice_forward(const OptionalTensor& residual, const Tensor& x, const Tensor& weight, const Tensor& bias,
                                       const Tensor& next_weight, const Tensor& next_bias, double eps, bool keeps_sum) {
  constexpr const char* kOp = "layer_norm_add_twice_forward";
  ops::check_layer_norm_sum(kOp, residual, x, weight, bias);
  check_twice(kOp, residual ? *residual : x, weight, next_weight, next_bias);
  const LayerNormLaunchers* table = layer_norm_launchers(kOp, residual ? *residual : x, weight);
  if (table == nullptr) return call_reference<Quintuple>(kOp, residual, x, weight, bias, next_weight, next_bias, eps, keeps_sum);
  const OptionalTensor stream = as_contiguous(residual);
  const Parameters parameters(weight, bias), next_parameters(next_weight, next_bias);
  const Tensor added = as_contiguous(x), first_sum = empty_sum(residual, x), y = empty(sizes_of(x), x);
  const Tensor sum = empty(keeps_sum ? sizes_of(x) : Sizes{0}, first_sum);
  Sizes statistics = rows_of(x);
  statistics.insert(statistics.begin(), 2);
  const Tensor mean = empty(statistics, x, ScalarType::Float), inverse_std = empty(statistics, x, ScalarType::Float);
  kernels::LayerNormTwice to{ops::layer_norm_of_rows(parameters, first_sum, eps), ops::layer_norm_of_rows(next_parameters, first_sum, eps)};
  set_statistics(to.first, to.second, mean, inverse_std);
  to.first.x = data(stream), to.first.add = data(added), to.first.sum = written_data(first_sum);
  if (keeps_sum) to.second.sum = written_data(sum);
  to.second.y = written_data(y);
  require_ok(kOp, table->twice_forward(to, queue_of(x)), x);
  return {first_sum, sum, y, mean, inverse_std};
}

Quintuple layer_norm_add_twice_backward(const OptionalTensor& grad_sum, const Tensor& grad_y, const Tensor& first_sum, const Tensor& weight,
                                        const Tensor& bias, const Tensor& next_weight, const Tensor& next_bias, const Tensor& mean,
                                        const Tensor& inverse_std) {
  constexpr const char* kOp = "layer_norm_add_twice_backward";
  ops::check_layer_norm(kOp, first_sum, weight, bias);
  check_twice(kOp, first_sum, weight, next_weight, next_bias);
  check_layer_norm_gradient(kOp, "grad_sum", grad_sum, first_sum, weight);
  check_layer_norm_gradient(kOp, "grad_y", grad_y, first_sum, weight);
  const LayerNormLaunchers* table = layer_norm_launchers(kOp, first_sum, weight);
  if (table == nullptr)
    return call_reference<Quintuple>(kOp, grad_sum, grad_y, first_sum, weight, bias, next_weight, next_bias, mean, inverse_std);
  Sizes statistics = rows_of(first_sum);
  statistics.insert(statistics.begin(), 2);
  require_shape(kOp, "mean", mean, statistics);
  require_shape(kOp, "inverse_std", inverse_std, statistics);
  const Parameters parameters(weight, bias), next_parameters(next_weight, next_bias);
  const Tensor rows = as_contiguous(first_sum), means = as_contiguous(mean), inverse = as_contiguous(inverse_std);
  const Tensor cotangent = as_contiguous(grad_y), grad_x = empty(sizes_of(first_sum), weight);
  const OptionalTensor rest = as_contiguous(grad_sum);
  kernels::LayerNormTwiceBackward to;
  to.first = ops::layer_norm_of_rows(parameters, rows, 0), to.second = ops::layer_norm_of_rows(next_parameters, rows, 0);
  set_statistics(to.first, to.second, means, inverse);
  to.first.x = data(rows);
  to.grad_y = data(cotangent), to.grad_sum = data(rest), to.grad_x = written_data(grad_x);
  const auto column = [&] { return empty(sizes_of(weight), weight, ScalarType::Float); };
  const Tensor grad_weight = column(), grad_bias = column(), grad_next_weight = column(), grad_next_bias = column();
  to.grad_weight[0] = written<float>(grad_weight), to.grad_bias[0] = written<float>(grad_bias);
  to.grad_weight[1] = written<float>(grad_next_weight), to.grad_bias[1] = written<float>(grad_next_bias);
  const Tensor scratch = scratch_memory(table->twice_backward_scratch(to), rows);
  require_ok(kOp, table->twice_backward(to, written_data(scratch), queue_of(rows)), rows);
  const auto typed = [&](const Tensor& sums) { return as_contiguous(sums, weight.scalar_type()); };
  return {grad_x, typed(grad_weight), typed(grad_bias), typed(grad_next_weight), typed(grad_next_bias)};
}

void register_rms_norm(Library& m) {
  implement<rms_norm_forward>(m, "rms_norm_forward");
  implement<rms_norm_backward>(m, "rms_norm_backward");
  implement<rms_norm_add_forward>(m, "rms_norm_add_forward");
  implement<rms_norm_add_backward>(m, "rms_norm_add_backward");
  implement<rms_norm_add_in_place>(m, "rms_norm_add_");
  implement<rms_norm_of_sum>(m, "rms_norm_of_sum");
  implement<rms_norm_gated>(m, "rms_norm_gated");
}

STABLE_TORCH_LIBRARY_FRAGMENT(based, m) {
  // Composed of other operators in Python.
  m.def("layer_norm(Tensor x, Tensor weight, Tensor bias, float eps) -> Tensor");
  m.def("layer_norm_add(Tensor? residual, Tensor x, Tensor weight, Tensor bias, float eps) -> (Tensor sum, Tensor y)");
  m.def(
      "layer_norm_add_twice(Tensor? residual, Tensor x, Tensor weight, Tensor bias, Tensor next_weight, Tensor next_bias, float eps, bool "
      "keeps_sum) -> (Tensor sum, Tensor y)");
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  m.def("rms_norm_add(Tensor? residual, Tensor x, Tensor weight, float eps) -> (Tensor sum, Tensor y)");
  // Kernels.
  define_with_reference(
      m, "layer_norm_forward(Tensor x, Tensor weight, Tensor bias, float eps) -> (Tensor y, Tensor mean, Tensor inverse_std)");
  define_with_reference(m,
                        "layer_norm_add_forward(Tensor? residual, Tensor x, Tensor weight, Tensor bias, float eps) -> (Tensor sum, Tensor "
                        "y, Tensor mean, Tensor inverse_std)");
  define_with_reference(m,
                        "layer_norm_backward(Tensor? grad_sum, Tensor grad_y, Tensor sum, Tensor weight, Tensor bias, Tensor mean, Tensor "
                        "inverse_std) -> (Tensor grad_x, Tensor grad_weight, Tensor grad_bias)");
  define_with_reference(m, "layer_norm_add_(Tensor(a!) residual, Tensor x, Tensor weight, Tensor bias, float eps) -> Tensor");
  define_with_reference(
      m,
      "layer_norm_add_twice_forward(Tensor? residual, Tensor x, Tensor weight, Tensor bias, Tensor next_weight, Tensor next_bias, float "
      "eps, bool keeps_sum) -> (Tensor first_sum, Tensor sum, Tensor y, Tensor mean, Tensor inverse_std)");
  define_with_reference(m,
                        "layer_norm_add_twice_backward(Tensor? grad_sum, Tensor grad_y, Tensor first_sum, Tensor weight, Tensor bias, "
                        "Tensor next_weight, Tensor next_bias, Tensor mean, Tensor inverse_std) -> (Tensor grad_x, Tensor grad_weight, "
                        "Tensor grad_bias, Tensor grad_next_weight, Tensor grad_next_bias)");
  define_with_reference(m, "rms_norm_forward(Tensor x, Tensor weight, float eps) -> (Tensor y, Tensor inverse_rms)");
  define_with_reference(
      m, "rms_norm_backward(Tensor grad_y, Tensor x, Tensor weight, Tensor inverse_rms) -> (Tensor grad_x, Tensor grad_weight)");
  define_with_reference(
      m, "rms_norm_add_forward(Tensor? residual, Tensor x, Tensor weight, float eps) -> (Tensor sum, Tensor y, Tensor inverse_rms)");
  define_with_reference(m,
                        "rms_norm_add_backward(Tensor? grad_sum, Tensor grad_y, Tensor sum, Tensor weight, Tensor inverse_rms) -> (Tensor "
                        "grad_x, Tensor grad_weight)");
  define_with_reference(m, "rms_norm_add_(Tensor(a!) residual, Tensor x, Tensor weight, float eps, Tensor? deferred=None) -> Tensor");
  define_with_reference(m, "rms_norm_of_sum(Tensor residual, Tensor x, Tensor weight, float eps) -> Tensor");
  define_with_reference(m, "rms_norm_gated(Tensor x, Tensor weight, float eps, Tensor gate) -> Tensor");
}

// On the CPU torch's layer norm is fast.
STABLE_TORCH_LIBRARY_IMPL(based, CPU, m) { register_rms_norm(m); }
STABLE_TORCH_LIBRARY_IMPL(based, CUDA, m) {
  register_rms_norm(m);
  implement<layer_norm_forward>(m, "layer_norm_forward");
  implement<layer_norm_backward>(m, "layer_norm_backward");
  implement<layer_norm_add_forward>(m, "layer_norm_add_forward");
  implement<layer_norm_add_in_place>(m, "layer_norm_add_");
  implement<layer_norm_add_twice_forward>(m, "layer_norm_add_twice_forward");
  implement<layer_norm_add_twice_backward>(m, "layer_norm_add_twice_backward");
}

}  // namespace
}  // namespace based::python
