// One optimizer step on one device. Nothing in it waits for a GPU: what it found is read when there is time.
#pragma once
#include <memory>
#include <vector>

#include "based/models/language_model.h"
#include "based/ops/replay.h"
#include "based/train/optimizer.h"

namespace based {

struct Batch {
  Tensor ids, labels;  // int64 [tokens]; label −100: none
  Sequences rows;
  std::vector<int64_t> windows = {};  // of the data, for messages
  int64_t labelled = -1;              // how many labels there are; −1: counted where that is needed, which waits for the device
};

class TrainStep {
 public:
  // `recorded`: the first step is recorded (ops/replay.h) and replayed from then on, with the same numbers as without. All steps'
  // batches must then have the same rows and as many labels, which are known; and nothing may be recomputed in the backward pass.
  TrainStep(LanguageModel& model, AdamW& optimizer, bool recorded = false);

  // Forward and backward over the batches, whose loss is the mean over all labels, clipping, the update. Returns double [2] on the model's
  // device: the loss, and the norm of the gradient before clipping. Where one of them is not finite nothing was updated. `look` reads the
  // loss of each batch at once, and goes no further where it is not finite (the norm is then 0); not where steps are recorded. Throws
  // Error for batches that do not fit the recording.
  Tensor run(const std::vector<Batch>& batches, double rate, bool look = false);

 private:
  Tensor launch(const std::vector<Batch>& batches, const Tensor& rate, bool look);
  void record_step(const std::vector<Batch>& batches);
  void copy_in(const std::vector<Batch>& batches);

  LanguageModel& model_;
  AdamW& optimizer_;
  const bool recorded_;
  std::unique_ptr<ops::Replay> replay_;
  std::vector<Batch> fixed_;  // the memory that a recorded step reads, with rate_ and enabled_; it writes figures_
  Tensor rate_, figures_;
  Tensor enabled_;  // float []: 0 keeps a step from updating anything; undefined: 1
};

}  // namespace based
