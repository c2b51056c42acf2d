#include "based/ops/training/cross_entropy.h"

#include "based/kernels/training/cross_entropy.h"
#include "based/ops/framework/on_device.h"
#include "based/ops/linear/linear.h"

namespace based::ops {
namespace {

using CrossEntropyResults = Result<CrossEntropyForward>;

constexpr double kPaddingLogit = -1e38;  // finite in bf16, too, and e to the power of any difference from it is 0

constexpr const char* kCrossEntropyOp = "cross_entropy";
constexpr const char* kScores = "token_log_probabilities";
constexpr int64_t kCrossEntropyChunkLogitBytes = int64_t{8} << 20;  // these stay in the cache from one product to the next
constexpr int64_t kChunkRows = 64;  // the least: with fewer, adding up weight's gradient costs more than its products

// `words` has an entry for each row of `one_each`.
void check_product(const char* op, const Tensor& hidden, const Tensor& weight, const char* name, const Tensor& words,
                   const Tensor& one_each) {
  require(at::isFloatingType(hidden.scalar_type()), op, "hidden must be floating, got ", hidden.scalar_type());
  require_shape(op, "hidden", hidden, {-1, -1});
  require_like(op, "weight", weight, hidden);
  require_shape(op, "weight", weight, {-1, hidden.size(1)});
  require(weight.size(0) >= 1, op, "weight must have a row a word, got ", weight.sizes());
  require_type(op, name, words, at::kLong);
  require_shape(op, name, words, {one_each.size(0)});
}

void check(const TokenLogProbabilities& in) {
  check_product(kScores, in.hidden, in.weight, "targets", in.targets, in.hidden);
  require(in.vocab_size >= 1 && in.vocab_size <= in.weight.size(0), kScores, "vocab_size must be 1..", in.weight.size(0), ", got ",
          in.vocab_size);
}

void check(const CrossEntropy& in) {
  if (in.labelled_rows) {
    require_shape(kCrossEntropyOp, "labelled_rows", *in.labelled_rows, {-1});
    require_type(kCrossEntropyOp, "labelled_rows", *in.labelled_rows, at::kLong);
  }
  check_product(kCrossEntropyOp, in.hidden, in.weight, "labels", in.labels, in.labelled_rows ? *in.labelled_rows : in.hidden);
  const int64_t most = in.labels.size(0), least = in.labelled_rows ? most : 0;
  require(in.labelled == -1 || (in.labelled >= least && in.labelled <= most), kCrossEntropyOp, "labelled must be -1 or ",
          in.labelled_rows ? "" : "0..", most, ", got ", in.labelled);
}

void check_targets(const char* op, const char* rule, const Tensor& targets, int64_t vocab) {
  if (!targets.is_cpu() || targets.numel() == 0) return;  // the host does not wait for values on a device
  const int64_t least = targets.min().item<int64_t>(), most = targets.max().item<int64_t>();
  require(least >= 0 && most < vocab, op, rule, vocab - 1, ", got ", least < 0 ? least : most);
}

int64_t rows_of_a_chunk(const CrossEntropyParts& parts, const Tensor& hidden, const Tensor& weight, int64_t rows) {
  return std::min(std::max(parts.chunk_bytes / (weight.size(0) * hidden.element_size()), kChunkRows), rows);
}

void check_labelled_rows(const Tensor& rows, int64_t tokens) {
  if (!rows.is_cpu() || rows.numel() == 0) return;  // the host does not wait for values on a device
  require((rows.diff() > 0).all().item<bool>(), kCrossEntropyOp, "labelled_rows must ascend");
  const int64_t first = rows[0].item<int64_t>(), last = rows[-1].item<int64_t>();
  require(first >= 0 && last < tokens, kCrossEntropyOp, "labelled_rows must be 0..", tokens - 1, ", got ", first < 0 ? first : last);
}

// The rows that have a label; undefined: all have one. Where the caller gives the number of labels, the host does not wait for a device.
Tensor rows_with_label(const Tensor& labels, int64_t labelled) {
  const Tensor has_label = labels != kIgnoredLabel;
  if (labelled < 0) return has_label.nonzero().squeeze(1);
  if (labels.is_cpu()) {
    const int64_t counted = has_label.sum().item<int64_t>();
    require(counted == labelled, kCrossEntropyOp, "labelled must be the number of labels, ", counted, ", or -1, got ", labelled);
  }
  return labelled == labels.size(0) ? Tensor() : at::nonzero_static(has_label, labelled).squeeze(1);
}

void softmax_reference(const CrossEntropyChunk& c) {
  const Tensor target = c.targets.unsqueeze(1), log_probability = c.logits.to(sum_type(c.logits)).log_softmax(1);
  c.losses.copy_(log_probability.gather(1, target).squeeze(1)).neg_();
  if (!c.gradient.defined()) return;
  c.gradient.copy_(log_probability.exp().scatter_add_(1, target, at::full_like(target, -1, log_probability.options())) * c.scale);
}

void softmax(const CrossEntropyChunk& chunk) {
  const auto& [logits, targets, losses, gradient, scale] = chunk;
  const auto* table = launchers_for<kernels::CrossEntropyLaunchers>(kCrossEntropyOp, logits);
  if (table == nullptr) return softmax_reference(chunk);
  kernels::CrossEntropy to;
  to.logits = logits.mutable_data_ptr();
  if (gradient.defined() && !gradient.is_same(logits)) to.half_gradient = gradient.mutable_data_ptr<at::Half>();
  to.label = targets.const_data_ptr<int64_t>();
  to.loss = losses.mutable_data_ptr<float>();
  to.rows = logits.size(0), to.vocab = logits.size(1);
  to.scale = static_cast<float>(scale);
  to.gradient = gradient.defined();
  to.dtype = kernel_dtype(logits);
  require_ok(table->softmax(to, queue_of(logits)));
}

// On a CPU chunk by chunk: the bits of ATen's sum of all losses would depend on the number of threads.
Tensor sum_of(const Tensor& losses, int64_t chunk) {
  if (!losses.is_cpu()) return losses.sum();
  Tensor sum = at::zeros({}, losses.options());
  for (const Tensor& part : losses.split(chunk)) sum += part.sum();
  return sum;
}

// A probability's gradient is at most 1. Times this factor it is far below the largest fp16, 65504, and has 10 bits of mantissa down to
// probabilities of 2e-9.
constexpr double kHalfScale = 32768;

// fp16 has the 10 bits of mantissa of TF32 from 6e-5 on; the error of smaller entries is at most 3e-8. Entries beyond ±65504 become ±65504;
// outputs of a norm and decayed weights are far from that. NaN stays NaN.
Tensor as_half(const Tensor& x) { return x.to(at::kHalf).clamp_(-65504, 65504); }

// Multiplies the defined tensors in place, in one launch.
void multiply_defined(std::initializer_list<Tensor> tensors, double factor) {
  std::vector<Tensor> defined;
  for (const Tensor& tensor : tensors)
    if (tensor.defined()) defined.push_back(tensor);
  at::_foreach_mul_(defined, factor);
}

}  // namespace

void add_product(Tensor& sum, const Tensor& a, const Tensor& b, Tensor& memory, bool first) {
  if (sum.scalar_type() == a.scalar_type()) {
    first ? at::mm_out(sum, a, b) : sum.addmm_(a, b);
  } else {
    if (!memory.defined()) memory = at::empty(sum.sizes(), a.options());
    at::mm_out(memory, a, b);
    first ? sum.copy_(memory) : sum.add_(memory);
  }
}

Tensor token_log_probabilities_in_chunks(const CrossEntropyParts& parts, const TokenLogProbabilities& in) {
  const auto& [hidden, weight, targets, vocab_size] = in;
  check(in);
  check_targets(kScores, "targets must be 0..", targets, vocab_size);
  const int64_t count = targets.size(0), chunk = rows_of_a_chunk(parts, hidden, weight, count);
  const Tensor scores = at::empty({count}, hidden.options().dtype(sum_type(hidden)));
  const Tensor memory = at::empty({chunk, weight.size(0)}, hidden.options());
  for (int64_t begin = 0; begin < count; begin += chunk) {
    const int64_t size = std::min(chunk, count - begin);
    Tensor logits = memory.narrow(0, 0, size);
    at::mm_out(logits, hidden.narrow(0, begin, size), weight.t());
    // The padding's logits are overwritten: products with an odd number of columns would be slower. The value is finite since a thread of a
    // GPU that reads padding alone subtracts the largest logit that it has read.
    logits.narrow(1, vocab_size, weight.size(0) - vocab_size).fill_(kPaddingLogit);
    softmax({logits, targets.narrow(0, begin, size), scores.narrow(0, begin, size), /*gradient=*/Tensor(), 1});
  }
  return scores.neg_();
}

// The forward computes the gradient in the place of the logits. To compute the large logits again in a backward would cost a third more.
CrossEntropyResults cross_entropy_in_chunks(const CrossEntropyParts& parts, const CrossEntropyForward& in) {
  const Tensor &hidden = in.inputs.hidden, &weight = in.inputs.weight, &labels = in.inputs.labels;
  const bool grad_hidden = in.grad_hidden, grad_weight = in.grad_weight;
  check(in.inputs);
  const at::ScalarType type = sum_type(hidden);
  const OptionalTensor& known = in.inputs.labelled_rows;
  if (known) check_labelled_rows(*known, hidden.size(0));
  const Tensor found = known ? Tensor() : rows_with_label(labels, in.inputs.labelled), chosen = known ? *known : found;
  const Tensor inputs = chosen.defined() ? hidden.index_select(0, chosen) : hidden;
  const Tensor targets = found.defined() ? labels.index_select(0, found) : labels;
  check_targets(kCrossEntropyOp, known ? "labels of labelled_rows must be 0.." : "labels must be -100 or 0..", targets, weight.size(0));
  const int64_t count = targets.size(0), vocab = weight.size(0);
  const int64_t chunk = rows_of_a_chunk(parts, hidden, weight, count);
  const Tensor losses = at::empty({count}, hidden.options().dtype(type));
  const Tensor input_grad = grad_hidden ? at::empty(inputs.sizes(), inputs.options()) : Tensor();
  const auto sums = [&](int64_t rows, int64_t columns) {
    const at::TensorOptions options = weight.options().dtype(type);
    return count > 0 ? at::empty({rows, columns}, options) : at::zeros({rows, columns}, options);
  };
  Tensor weight_grad;  // transposed
  if (grad_weight) weight_grad = parts.weight_grad_row_major ? sums(vocab, weight.size(1)).t() : sums(weight.size(1), vocab);
  const bool half = parts.half_gradient && (grad_hidden || grad_weight);
  const Tensor factor_inputs = half && grad_weight ? as_half(inputs) : inputs,
               factor_weight = half && grad_hidden ? as_half(weight) : weight;
  const double mean_scale = 1.0 / static_cast<double>(count);
  Tensor product, no_product;
  const Tensor memory = at::empty({chunk, vocab}, hidden.options());
  const Tensor half_memory = half ? at::empty({chunk, vocab}, hidden.options().dtype(at::kHalf)) : Tensor();
  for (int64_t begin = 0; begin < count; begin += chunk) {
    const int64_t size = std::min(chunk, count - begin);
    Tensor logits = memory.narrow(0, 0, size), gradient;
    if (grad_hidden || grad_weight) gradient = half ? half_memory.narrow(0, 0, size) : logits;
    at::mm_out(logits, inputs.narrow(0, begin, size), weight.t());
    softmax({logits, targets.narrow(0, begin, size), losses.narrow(0, begin, size), gradient, half ? kHalfScale : mean_scale});
    if (grad_hidden) {
      Tensor rows = input_grad.narrow(0, begin, size);
      parts.add_product(rows, gradient, factor_weight, no_product, /*first=*/true);
    }
    if (grad_weight) parts.add_product(weight_grad, factor_inputs.narrow(0, begin, size).t(), gradient, product, begin == 0);
  }
  Tensor loss = sum_of(losses, chunk);
  if (count > 0) loss /= count;
  if (half && count > 0) multiply_defined({input_grad, weight_grad}, mean_scale / kHalfScale);
  if (grad_weight) weight_grad = weight_grad.t().to(weight.scalar_type()).contiguous();
  return {loss, input_grad, found, weight_grad};
}

namespace {

constexpr CrossEntropyParts kParts{add_product, kCrossEntropyChunkLogitBytes};

CrossEntropyResults forward_reference(const CrossEntropyForward& in) { return cross_entropy_in_chunks(kParts, in); }

CrossEntropyResults forward_cpu(const CrossEntropyForward& in) {
  const auto& [hidden, weight, labels, labelled, labelled_rows] = in.inputs;
  check(in.inputs);  // before the types are converted to fp32
  if (!multiplies_in_fp32(hidden, weight)) return cross_entropy_in_chunks(kParts, in);
  const Tensor wide_hidden = hidden.to(at::kFloat), wide_weight = weight.to(at::kFloat);
  const auto [loss, input_grad, chosen, weight_grad] =
      cross_entropy_in_chunks(kParts, {{wide_hidden, wide_weight, labels, labelled, labelled_rows}, in.grad_hidden, in.grad_weight});
  const auto rounded = [](const Tensor& gradient) { return gradient.defined() ? gradient.to(at::kBFloat16) : gradient; };
  return {loss, rounded(input_grad), chosen, rounded(weight_grad)};
}

CrossEntropyResults forward_meta(const CrossEntropyForward& in) {
  check(in.inputs);
  const Tensor &hidden = in.inputs.hidden, &weight = in.inputs.weight, &labels = in.inputs.labels;
  const bool all = in.inputs.labelled < 0 || in.inputs.labelled == labels.size(0);  // without values there is no count
  const int64_t count = all ? labels.size(0) : in.inputs.labelled;
  return {at::empty({}, hidden.options().dtype(sum_type(hidden))),
          in.grad_hidden ? at::empty({count, hidden.size(1)}, hidden.options()) : Tensor(),
          all || in.inputs.labelled_rows ? Tensor() : at::empty({count}, labels.options()),
          in.grad_weight ? at::empty(weight.sizes(), weight.options()) : Tensor()};
}

Tensor scores_reference(const TokenLogProbabilities& in) { return token_log_probabilities_in_chunks(kParts, in); }

Tensor scores_cpu(const TokenLogProbabilities& in) {
  check(in);
  if (!multiplies_in_fp32(in.hidden, in.weight)) return token_log_probabilities_in_chunks(kParts, in);
  return token_log_probabilities_in_chunks(kParts, {in.hidden.to(at::kFloat), in.weight.to(at::kFloat), in.targets, in.vocab_size});
}

Tensor scores_meta(const TokenLogProbabilities& in) {
  check(in);
  return at::empty({in.hidden.size(0)}, in.hidden.options().dtype(sum_type(in.hidden)));
}

Tensor scores_autograd(const TokenLogProbabilities& in) {
  require(!wants_gradient({in.hidden, in.weight}), kScores, "has no gradient; turn gradients off around it");
  const at::AutoDispatchBelowADInplaceOrView guard;
  return call(in);
}

struct CrossEntropyFunction : torch::autograd::Function<CrossEntropyFunction> {
  using Context = torch::autograd::AutogradContext;
  using Variables = torch::autograd::variable_list;

  static Tensor forward(Context* context, const Tensor& hidden, const Tensor& weight, const Tensor& labels, int64_t labelled,
                        const OptionalTensor& labelled_rows) {
    const bool grad_hidden = hidden.requires_grad(), grad_weight = weight.requires_grad();
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto [loss, input_grad, chosen, weight_grad] =
        call(CrossEntropyForward{{hidden, weight, labels, labelled, labelled_rows}, grad_hidden, grad_weight});
    context->save_for_backward({input_grad, weight_grad, labelled_rows ? *labelled_rows : chosen});
    context->saved_data["tokens"] = hidden.size(0);
    return loss;
  }

  static Variables backward(Context* context, const Variables& grads) {
    Variables found = context->get_saved_variables(), defined;
    const Tensor chosen = found[2];
    found.pop_back();
    for (const Tensor& t : found)
      if (t.defined()) defined.push_back(t);
    // One call for all: a single product with a number on the device takes twice as long.
    const Variables scaled = at::_foreach_mul(defined, grads[0].to(defined.front().scalar_type()));
    size_t next = 0;
    for (Tensor& t : found)
      if (t.defined()) t = scaled[next++];
    if (found[0].defined() && chosen.defined())
      found[0] = at::zeros({context->saved_data["tokens"].toInt(), found[0].size(1)}, found[0].options()).index_copy_(0, chosen, found[0]);
    return {found[0], found[1], Tensor(), Tensor(), Tensor()};
  }
};

Tensor loss_of(const CrossEntropy& in) { return std::get<0>(call(CrossEntropyForward{in, false, false})); }

Tensor loss_autograd(const CrossEntropy& in) {
  if (wants_gradient({in.hidden, in.weight}))
    return CrossEntropyFunction::apply(in.hidden, in.weight, in.labels, in.labelled, in.labelled_rows);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return loss_of(in);
}

}  // namespace

Tensor cross_entropy_reference(const Tensor& hidden, const Tensor& weight, const Tensor& labels) {
  check(CrossEntropy{hidden, weight, labels, -1, {}});
  const Tensor logits = at::linear(hidden, weight).to(sum_type(hidden));
  return at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum, kIgnoredLabel) / (labels != kIgnoredLabel).sum().clamp_min(1);
}

Tensor token_log_probabilities(const Tensor& hidden, const Tensor& weight, const Tensor& targets, int64_t vocab_size) {
  return call(TokenLogProbabilities{hidden, weight, targets, vocab_size});
}

Tensor cross_entropy(const Tensor& hidden, const Tensor& weight, const Tensor& labels, int64_t labelled,
                     const OptionalTensor& labelled_rows) {
  return call(CrossEntropy{hidden, weight, labels, labelled, labelled_rows});
}

TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) {
  define<CrossEntropy>(m).reference<loss_of>().autograd<loss_autograd>();
  define<CrossEntropyForward>(m).reference<forward_reference>().cpu<forward_cpu>().meta<forward_meta>();
  define<TokenLogProbabilities>(m).reference<scores_reference>().cpu<scores_cpu>().meta<scores_meta>().autograd<scores_autograd>();
  m.def("cross_entropy_reference(Tensor hidden, Tensor weight, Tensor labels) -> Tensor", cross_entropy_reference);
}

}  // namespace based::ops
