#include "based/experiments/recall_eval.h"

namespace based {

void check_positions(const ModelConfig& model, int64_t length) {
  if (model.max_positions == 0 || length <= model.max_positions) return;
  throw UsageError("examples of " + std::to_string(length) + " tokens are more than model.max_positions = " +
                   std::to_string(model.max_positions) + ", the positions that the model learns");
}

Recall measure_recall(LanguageModel& model, const std::vector<RecallData::Segment>& test, int64_t batch) {
  for (const auto& segment : test) check_positions(model.config(), segment.length);
  const torch::NoGradGuard no_grad;
  model.eval();
  const torch::Device device = model.device();
  Recall recall;
  double examples = 0;
  for (const auto& segment : test) {
    const Tensor counts =
        torch::zeros({3}, torch::dtype(torch::kInt64).device(device));  // hits, labels, those where what it says is not finite
    for (int64_t first = 0; first < segment.examples; first += batch) {
      const int64_t rows = std::min(batch, segment.examples - first);
      const Tensor ids = segment.inputs.narrow(0, first, rows).reshape({-1}),
                   targets = segment.targets.narrow(0, first, rows).reshape({-1});
      ModelState state = model.make_state(rows);
      const Slots slots = torch::arange(rows, torch::dtype(torch::kInt64).device(device));
      const Tensor hidden = model.prefill(ids, Sequences::equal(rows, segment.length, device), state, slots);
      const Tensor asked = (targets != kNoLabel).nonzero().reshape({-1});
      const Tensor said = model.most_likely(hidden.index_select(0, asked));
      counts[0] += (said == targets.index_select(0, asked)).sum();
      counts[1] += asked.numel();
      counts[2] += (said < 0).sum();
    }
    const Tensor host = counts.cpu();
    const int64_t* count = host.const_data_ptr<int64_t>();
    if (count[2] > 0) throw Error("the recall cannot be measured: what the model says is not finite");
    recall.segments.push_back(static_cast<double>(count[0]) / static_cast<double>(std::max<int64_t>(count[1], 1)));
    recall.mean += recall.segments.back() * static_cast<double>(segment.examples);
    examples += static_cast<double>(segment.examples);
  }
  recall.mean /= std::max(examples, 1.0);
  return recall;
}

}  // namespace based
