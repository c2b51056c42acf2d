#include "based/experiments/recall_eval.h"

namespace based {

void check_positions(const ModelConfig& model, int64_t length) {
  if (model.max_positions == 0 || length <= model.max_positions) return;
  throw UsageError("examples of " + std::to_string(length) + " tokens are more than model.max_positions = " +
                   std::to_string(model.max_positions) + ", the positions that the model learns");
}

std::vector<RecallPiece> recall_pieces(const RecallData::Segment& segment, int64_t count) {
  const Tensor words = segment.targets.flatten(), all = (words >= 0).nonzero().squeeze(1), targets = words.index_select(0, all);
  BASED_ASSERT(all.size(0) == segment.examples * segment.labels);
  const Tensor places = all.remainder(count * segment.length);
  std::vector<RecallPiece> pieces;
  for (int64_t first = 0; first < segment.examples; first += count) {
    const int64_t size = std::min(count, segment.examples - first), begin = first * segment.labels, labels = size * segment.labels;
    pieces.push_back({&segment, first, size, places.narrow(0, begin, labels), targets.narrow(0, begin, labels)});
  }
  return pieces;
}

Recall measure_recall(LanguageModel& model, const std::vector<std::vector<RecallPiece>>& segments,
                      const std::function<Tensor(const RecallPiece&)>& read) {
  const torch::NoGradGuard no_grad;
  std::vector<Tensor> found;  // int64 [2] of each segment: correct predictions, and predictions from logits that are not finite
  for (const auto& pieces : segments) {
    Tensor sums = torch::zeros({2}, torch::dtype(torch::kInt64).device(model.device()));
    for (const RecallPiece& piece : pieces) {
      const Tensor predicted = model.most_likely(read(piece).index_select(0, piece.places));
      sums += torch::stack({(predicted == piece.targets).sum(), (predicted < 0).sum()});
    }
    found.push_back(sums);
  }
  const Tensor host = torch::stack(found).cpu();
  const int64_t* count = host.const_data_ptr<int64_t>();
  Recall recall;
  double examples = 0;
  for (const auto& pieces : segments) {
    const RecallData::Segment& segment = *pieces.at(0).segment;
    const int64_t hits = *count++, not_finite = *count++;
    if (not_finite > 0) throw Error("the recall cannot be measured: the model's logits are not finite");
    recall.segments.push_back(static_cast<double>(hits) / static_cast<double>(segment.labels * segment.examples));
    recall.mean += recall.segments.back() * static_cast<double>(segment.examples);
    examples += static_cast<double>(segment.examples);
  }
  recall.mean /= examples;
  return recall;
}

Recall measure_recall(LanguageModel& model, const std::vector<RecallData::Segment>& test, int64_t batch) {
  for (const auto& segment : test) check_positions(model.config(), segment.length);
  model.eval();
  std::vector<std::vector<RecallPiece>> segments;
  segments.reserve(test.size());
  for (const auto& segment : test) segments.push_back(recall_pieces(segment, batch));
  return measure_recall(model, segments, [&](const RecallPiece& piece) {
    return model.forward(piece.inputs(), Sequences::equal(piece.count, piece.segment->length, model.device()));
  });
}

}  // namespace based
