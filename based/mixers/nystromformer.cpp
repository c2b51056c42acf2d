// Nyströmformer (Xiong et al. 2021) in causal form. A sequence is cut into segments of ⌈l_max / landmarks⌉ tokens. A complete segment j has
// a landmark: the means q̃_j, k̃_j of its queries and keys. A token attends to the tokens of its own segment up to itself, and to the
// landmarks of the segments before it. The landmarks' values are u = T⁻¹ P. Row j of T is softmax(q̃ k̃ᵀ) over landmarks ≤ j; row j of P is
// softmax(q̃ kᵀ) v over the tokens up to the end of segment j. T is lower triangular, so that u_j does not depend on later landmarks, and a
// triangular solve replaces the iterative inverse. A landmark has the weight of all its tokens together: if all scores are equal, a token's
// output is the mean of its past. With one token per segment, the result is exact attention.
//
// The published causal form masks landmarks by their index, although they are means over segments: through them, tokens depend on the
// future.
#include <cmath>
#include <limits>
#include <vector>

#include "based/mixers/kit/mixer.h"
#include "based/mixers/kit/parameters.h"
#include "based/ops/framework/arguments.h"
#include "based/ops/framework/rows.h"
#include "based/ops/linear/split_columns.h"

namespace based {
namespace {

struct NystromformerConfig {
  int64_t heads = 1;
  int64_t landmarks = 64;
  int64_t l_max = 1024;
  double damping = 1;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("heads", heads, "attention heads, each of size d_model / heads");
    field("landmarks", landmarks, "segments of a sequence of l_max tokens");
    field("l_max", l_max, "length of a sequence with that many landmarks; longer sequences have more");
    field("damping", damping, "how strongly landmarks' values are drawn to the means of their segments; 0: the plain Nystrom method");
  }
};

class Nystromformer final : public ParallelMixer {
 public:
  Nystromformer(const NystromformerConfig& config, const MixerContext& context)
      : heads_(config.heads), d_model_(context.d_model), damping_(config.damping) {
    check_option("nystromformer", "heads", config.heads, 1, 4096);
    head_dim_ = divided("nystromformer", "d_model", d_model_, "heads", config.heads);
    check_option("nystromformer", "landmarks", config.landmarks, 1, int64_t{1} << 20);
    check_option("nystromformer", "l_max", config.l_max, 1, int64_t{1} << 24);
    if (!(config.damping >= 0)) throw UsageError("nystromformer: damping must not be negative");
    segment_ = (config.l_max + config.landmarks - 1) / config.landmarks;
    qkv_proj_ = register_module("qkv_proj", std::make_shared<Projection>(d_model_, 3 * d_model_, false));
    out_proj_ = register_module("out_proj", std::make_shared<Projection>(d_model_, d_model_, false, output_initial_std(context.layers)));
  }

  Tensor forward(const Tensor& x, const Pass& pass) override {
    const auto qkv = ops::split_columns(qkv_proj_->forward(x), {d_model_, d_model_, d_model_});
    std::vector<Tensor> outputs;
    for (const ops::Run& run : ops::equal_runs(pass.rows().starts())) {
      if (run.length == 0) continue;
      const auto by_head = [&](const Tensor& columns) {  // [rows, heads, length, head_dim] in the accumulation type
        const Tensor rows = ops::tokens_of(columns, run).to(ops::sum_type(columns));
        return rows.unflatten(2, {heads_, head_dim_}).transpose(1, 2);
      };
      outputs.push_back(attend(by_head(qkv[0]), by_head(qkv[1]), by_head(qkv[2])).transpose(1, 2).reshape({-1, d_model_}));
    }
    return out_proj_->forward(ops::join(outputs, x.sizes(), x.options()).to(x.scalar_type()));
  }

  // The keys and values of all tokens, to which each new landmark attends, and of the landmarks.
  int64_t bytes_to_decode(int64_t tokens) const override { return state_formula(tokens).value(); }
  Formula state_formula(int64_t tokens) const override {
    const Formula length{"tokens", tokens}, segment{"ceil(l_max / landmarks)", segment_}, d_model{"d_model", d_model_};
    const Formula keys = state_number_bytes(qkv_proj_->weight()) * length;
    return 2 * d_model * (segment_ > 1 ? keys + sum_bytes(qkv_proj_->weight()) * (length / segment) : keys);
  }

 private:
  // q, k, v and the result [rows, heads, length, head_dim].
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v) const {
    const int64_t length = q.size(2), segments = (length + segment_ - 1) / segment_, finished = segments - 1;
    const double scale = 1 / std::sqrt(static_cast<double>(head_dim_)), never = -std::numeric_limits<double>::infinity();
    const auto in_segments = [&](const Tensor& t, int64_t count) {  // [rows, heads, count, segment, head_dim]
      return at::constant_pad_nd(t, {0, 0, 0, std::max<int64_t>(0, count * segment_ - length)})
          .narrow(2, 0, count * segment_)
          .unflatten(2, {count, segment_});
    };
    const auto steps = [&](int64_t count) { return torch::arange(count, torch::dtype(torch::kInt64).device(q.device())); };
    const Tensor own_q = in_segments(q, segments), own_v = in_segments(v, segments);
    const Tensor later = steps(segment_).unsqueeze(1) < steps(segment_);
    Tensor scores = (torch::matmul(own_q, in_segments(k, segments).transpose(3, 4)) * scale).masked_fill(later, never);
    if (finished == 0) return torch::matmul(scores.softmax(-1), own_v).flatten(2, 3).narrow(2, 0, length);

    const Tensor landmark_q = in_segments(q, finished).mean(3), landmark_k = in_segments(k, finished).mean(3);
    const Tensor landmark_scores = torch::matmul(own_q, landmark_k.unsqueeze(2).transpose(3, 4)) * scale +
                                   std::log(static_cast<double>(segment_));  // [rows, heads, segments, segment, finished]
    const Tensor not_before = steps(segments).view({segments, 1, 1}) <= steps(finished);
    const Tensor weights = torch::cat({landmark_scores.masked_fill(not_before, never), scores}, 4).softmax(-1);
    const Tensor values = segment_ == 1 ? v.narrow(2, 0, finished) : landmark_values(landmark_q * scale, landmark_k, k, v);
    const Tensor past = torch::matmul(weights.narrow(4, 0, finished), values.unsqueeze(2));
    return (past + torch::matmul(weights.narrow(4, finished, segment_), own_v)).flatten(2, 3).narrow(2, 0, length);
  }

  // The landmarks' values u, [rows, heads, landmarks, head_dim].
  Tensor landmark_values(const Tensor& landmark_q, const Tensor& landmark_k, const Tensor& k, const Tensor& v) const {
    const int64_t count = landmark_k.size(2), tokens = count * segment_;
    const double never = -std::numeric_limits<double>::infinity();
    const Tensor rows = torch::arange(count, torch::dtype(torch::kInt64).device(k.device())).unsqueeze(1);
    const auto weights = [&](const Tensor& keys, const Tensor& later) {
      return torch::matmul(landmark_q, keys.transpose(2, 3)).masked_fill(later, never).softmax(-1);
    };
    const Tensor landmarks = weights(landmark_k, rows < rows.t());
    const Tensor token_segments = torch::arange(tokens, rows.options()).div(segment_, "floor");
    const Tensor sums = torch::matmul(weights(k.narrow(2, 0, tokens), rows < token_segments), v.narrow(2, 0, tokens));
    const Tensor means = v.narrow(2, 0, tokens).unflatten(2, {count, segment_}).mean(3);
    return at::linalg_solve_triangular(landmarks + damping_ * torch::eye(count, landmarks.options()), sums + damping_ * means,
                                       /*upper=*/false);
  }

  int64_t heads_, d_model_, head_dim_ = 0, segment_ = 1;
  double damping_;
  std::shared_ptr<Projection> qkv_proj_, out_proj_;
};

}  // namespace

BASED_DEFINE_MIXER(nystromformer, Nystromformer, NystromformerConfig,
                   "attention to the own segment, and to earlier segments through one landmark each, by the Nystrom method")

}  // namespace based
