// The residual stream of a pre-norm model, and the norms that read it. A layer's output is not added at once: the next norm adds it in the
// same pass over memory.
#pragma once
#include <string>

#include "based/models/config.h"
#include "based/runtime/torch.h"

namespace based {

using torch::Tensor;

// The parameters of a norm: "weight", and "bias" for LayerNorm.
class Norm : public torch::nn::Module {
 public:
  Norm(const std::string& kind, const ModelConfig& config);  // kind: rms_norm or layer_norm
  bool is_layer_norm() const { return bias_.defined(); }
  const Tensor& weight() const { return weight_; }
  const Tensor& bias() const { return bias_; }
  double eps() const { return eps_; }

 private:
  double eps_;
  Tensor weight_, bias_;
};

// The stream's value is the sum of up to four parts: `sum`, which is fp32 in bf16 models, `unwritten` and `pending`, which are layer
// outputs, and the output of a deferred norm. The table gives the operator that each call runs.
//
//   gradients | parts                 | norm(), RMSNorm               | norm(), LayerNorm       | parts afterwards
//   ----------+-----------------------+-------------------------------+-------------------------+-----------------------
//   on        | sum                   | rms_norm                      | layer_norm              | sum
//   on        | [sum +] pending       | rms_norm_add                  | layer_norm_add          | sum
//   on        | [sum +] pending       | the deferred norm by itself,  | layer_norm_add_twice    | sum
//             |   + deferred norm     | then rms_norm_add             |                         |
//   off       | sum                   | rms_norm                      | layer_norm              | sum
//   off       | pending               | cast to the sum's type,       | cast to the sum's type, | sum
//             |                       | rms_norm                      | layer_norm              |
//   off       | sum + pending         | rms_norm_add_                 | layer_norm_add_         | sum, updated in place
//   off       |   with skip_sum_write | rms_norm_of_sum               | layer_norm_add_         | RMSNorm: sum + unwritten
//   off       | sum + unwritten       | rms_norm_add_, adds both      | -                       | sum, updated in place
//             |   + pending           |                               |                         |
//
//   add(output)  no operator: the output becomes `pending`
//   add_norm()   for a LayerNorm with gradients on and an output pending, no operator: the norm is deferred. Otherwise norm(), whose result
//                becomes `pending`
//   last_norm()  norm(); after a deferred norm, layer_norm_add_twice without the second sum
//   total()      the deferred norm by itself as norm(), then sum + pending; without a sum the cast alone
class ResidualStream {
 public:
  // sum [tokens, d_model]. A norm may overwrite it where gradients are off.
  static ResidualStream from_sum(Tensor sum);
  // output [tokens, d_model]: the stream's first part.
  static ResidualStream from_output(Tensor output);

  // Adds a layer's output, [tokens, d_model] of the weights' type. Nothing may be pending: a norm comes between two layers.
  void add(Tensor output) { pending_ = std::move(output); }
  // The norm of the stream's value, [tokens, d_model] of the weights' type. `skip_sum_write`: the sum is not written here but by the next
  // norm, which saves a pass over it.
  Tensor norm(const Norm& norm, bool skip_sum_write = false);
  // Adds norm(…) to the stream, as a layer that is a norm alone. `norm` must outlive the stream.
  void add_norm(const Norm& norm, bool skip_sum_write = false);
  // norm() of a stream that nothing reads afterwards.
  Tensor last_norm(const Norm& norm);
  // The stream's value, of the sum's type. The stream is empty afterwards.
  Tensor total();
  // These rows of a stream that consists of sum and pending output; rows int64 [n].
  ResidualStream select(const Tensor& rows) const;

 private:
  ResidualStream(Tensor sum, Tensor pending) : sum_(std::move(sum)), pending_(std::move(pending)) {}
  void run_deferred_norm();
  Tensor norm_after_deferred(const Norm& norm, bool keeps_sum);

  Tensor sum_, unwritten_, pending_;     // [tokens, d_model] each; undefined: not there
  const Norm* deferred_norm_ = nullptr;  // its result is still to be computed and added
};

}  // namespace based
