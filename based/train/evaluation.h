// The loss on held-out text during training.
#pragma once
#include <memory>
#include <vector>

#include "based/data/loader.h"
#include "based/data/slices.h"
#include "based/parallel/collectives.h"
#include "based/train/loop.h"

namespace based {

// Held-out windows that every evaluation scores: the first `windows` of the order. `order.batch` is not used.
class HeldOutWindows {
 public:
  HeldOutWindows(std::shared_ptr<const TokenDataset> data, const LoaderConfig& order, int64_t windows);

  // Lets score() report the slices AR and Other (data/slices.h) for each threshold. Reads the training tokens once. Throws Error if a
  // signal interrupts it.
  void add_slices(const TokenMixture& train, std::vector<int64_t> thresholds);

  // "loss": the mean nats a label, and "perplexity". For each threshold T also "slice_ar_T" and "slice_other_T", the perplexities of the
  // slices, and "slice_ar_share_T", the share of AR in all labels; an empty slice has no perplexity. The ranks share the windows, each of
  // which is scored once; all ranks must call this, and get the same bits. Windows are scored in groups that do not depend on the number of
  // ranks or on the training batch, and their nats are summed in the order of delivery in double, so the result is the same for any number
  // of ranks. A group has about 2048 tokens, or one window if windows are longer, so evaluation needs less memory than training with a row
  // of that length. Throws Error if a GPU's memory is full.
  Figures score(LanguageModel& model, Collectives& ranks) const;

 private:
  Tensor score_windows(LanguageModel& model, const Collectives& ranks) const;

  std::shared_ptr<const TokenDataset> data_;
  LoaderConfig order_;
  int64_t windows_, group_rows_;
  Slices slices_;
  std::vector<int64_t> thresholds_;
};

}  // namespace based
