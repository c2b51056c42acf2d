// One optimizer step on one device. Nothing in it waits for a GPU: what it found is read when there is time.
#pragma once
#include <deque>
#include <memory>
#include <vector>

#include "based/models/language_model.h"
#include "based/ops/dropout.h"
#include "based/ops/replay.h"
#include "based/train/optimizer.h"

namespace based {

struct Batch {
  Tensor ids, labels;  // int64 [tokens]; label −100: none
  Sequences rows;
  std::vector<int64_t> windows = {};  // of the data, for messages
  int64_t labelled = -1;              // how many labels there are; −1: counted where that is needed, which waits for the device
  // int64 [labels], ascending: the tokens that have a label, where that is known; `labels` is then int64 [labels], theirs alone.
  Tensor places = {};
};

struct TrainStepOptions {
  // Shapes of steps, their batches' rows and numbers of labels, that are recorded (ops/replay.h): a shape's first step is recorded and
  // replayed from then on, with the same numbers as without. Labels must be counted, and nothing may be recomputed in the backward pass.
  int64_t recordings = 0;
  int64_t seed = 0;  // of what is dropped
};

class TrainStep {
 public:
  TrainStep(LanguageModel& model, AdamW& optimizer, TrainStepOptions options = {});

  // Forward and backward over the batches, whose loss is the mean over all labels, clipping, the update. Returns double [2] on the model's
  // device: the loss, and the norm of the gradient before clipping. Where one of them is not finite nothing was updated. `step`, from 0,
  // decides with the seed what is dropped. `look` reads the loss of each batch at once, and goes no further where it is not finite (the
  // norm is then 0); not where steps are recorded. Throws Error for a shape beyond options.recordings.
  Tensor run(const std::vector<Batch>& batches, int64_t step, double rate, bool look = false);

 private:
  // The step of one shape, and the memory that it reads beside rate_, draws_ and enabled_. It writes figures_.
  struct Recording {
    std::vector<Batch> batches;
    std::unique_ptr<ops::Replay> replay;
    bool fits(const std::vector<Batch>& others) const;
    void copy_in(const std::vector<Batch>& others);
  };

  Tensor launch(const std::vector<Batch>& batches, const Tensor& rate, bool look);
  Recording& recording_of(const std::vector<Batch>& batches);
  void record_step(Recording& recording);

  LanguageModel& model_;
  AdamW& optimizer_;
  const TrainStepOptions options_;
  std::deque<Recording> recordings_;  // what is recorded refers to them
  ops::Draws draws_;
  Tensor rate_, figures_;
  Tensor enabled_;  // float []: 0 keeps a step from updating anything; undefined: 1
};

}  // namespace based
