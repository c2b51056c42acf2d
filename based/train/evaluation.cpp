#include "based/train/evaluation.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "based/core/interrupt.h"
#include "based/train/text_data.h"

namespace based {
namespace {

constexpr int64_t kGroupTokens = 2048;
constexpr int64_t kLeastGroups = 8;  // if there are as many windows, so that several ranks share a small held-out set

int64_t group_rows(int64_t length, int64_t windows) {
  return std::max<int64_t>(1, std::min(kGroupTokens / length, (windows + kLeastGroups - 1) / kLeastGroups));
}

}  // namespace

HeldOutWindows::HeldOutWindows(std::shared_ptr<const TokenDataset> data, const LoaderConfig& order, int64_t windows)
    : data_(std::move(data)), order_(order), windows_(windows), group_rows_(group_rows(order.length, windows)) {
  order_.batch = 1;
}

void HeldOutWindows::add_slices(const TokenMixture& train, std::vector<int64_t> thresholds) {
  thresholds_ = std::move(thresholds);
  const Loader loader(data_, order_);
  for (int64_t window = 0; window < windows_; ++window) slices_.collect(token_pairs(loader.batch_at({window})));
  for (const WeightedSet& set : train.sets())
    if (!slices_.count(*set.data, [](int64_t) { return !interrupted(); }))
      throw Error("interrupted while the pairs of the training tokens were counted (train.slices)");
}

// double [2 + 2 · thresholds, windows]: the nats and the number of labels of each window, then both of its AR tokens for each threshold.
Tensor HeldOutWindows::score_windows(LanguageModel& model, const Collectives& ranks) const {
  const auto doubles = torch::dtype(torch::kDouble).device(model.device());
  const auto figures = static_cast<int64_t>(2 + 2 * thresholds_.size());
  const Tensor scores = torch::zeros({figures, windows_}, doubles);
  LoaderConfig order = order_;
  for (int64_t first = group_rows_ * ranks.rank(); first < windows_; first += group_rows_ * ranks.world()) {
    order.batch = std::min(group_rows_, windows_ - first);
    const TokenBatch tokens = Loader(data_, order).batch_at({first});
    const Batch batch = to_batch(tokens, model.device());
    const Tensor nats = model.evaluation_nats(batch.ids, batch.labels, batch.rows).view({order.batch, order.length});
    const Tensor labelled = (batch.labels >= 0).view({order.batch, order.length});
    const auto keep = [&](int64_t row, const Tensor& mask) {
      scores[row].narrow(0, first, order.batch).copy_((nats * mask).sum(1));
      scores[row + 1].narrow(0, first, order.batch).copy_(mask.sum(1));
    };
    keep(0, labelled);
    if (thresholds_.empty()) continue;
    const Tensor counts =
        torch::tensor(slices_.training_counts(token_pairs(tokens)), torch::kInt64).to(model.device()).view({order.batch, order.length});
    for (size_t i = 0; i < thresholds_.size(); ++i)
      keep(static_cast<int64_t>(2 + 2 * i), labelled.logical_and(counts >= 0).logical_and(counts <= thresholds_[i]));
  }
  return scores;
}

Figures HeldOutWindows::score(LanguageModel& model, Collectives& ranks) const {
  const torch::NoGradGuard no_grad;
  Tensor scores;
  try {
    scores = score_windows(model, ranks);
  } catch (const c10::OutOfMemoryError& error) {
    throw Error("evaluation: the memory of " + model.device().str() +
                " is full; training leaves too little of it: raise train.accumulate, set train.checkpoint_activations, or stop other "
                "programs on the GPU (" +
                error.what_without_backtrace() + ")");
  }
  ranks.all_reduce(scores)->wait();  // a window has zeros on all ranks but one, so these sums are exact
  const Tensor host = scores.cpu();
  const auto sum = [&](size_t row) {
    const double* values = host.const_data_ptr<double>() + static_cast<int64_t>(row) * windows_;
    return std::accumulate(values, values + windows_, 0.0);
  };
  const double nats = sum(0), labels = sum(1);
  Figures figures{{"loss", nats / labels}, {"perplexity", std::exp(nats / labels)}};
  for (size_t i = 0; i < thresholds_.size(); ++i) {
    const double ar_nats = sum(2 + 2 * i), ar = sum(3 + 2 * i);
    const std::string threshold = "_" + std::to_string(thresholds_[i]);
    figures["slice_ar_share" + threshold] = ar / labels;
    if (ar > 0) figures["slice_ar" + threshold] = std::exp(ar_nats / ar);
    if (labels > ar) figures["slice_other" + threshold] = std::exp((nats - ar_nats) / (labels - ar));
  }
  return figures;
}

}  // namespace based
