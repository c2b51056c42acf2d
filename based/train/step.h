// One optimizer step on one device. It does not wait for a GPU: the loss and the gradient norm stay on the device until they are read.
#pragma once
#include <deque>
#include <memory>
#include <vector>

#include "based/models/language_model.h"
#include "based/ops/training/dropout.h"
#include "based/parallel/collectives.h"
#include "based/runtime/replay.h"
#include "based/train/optimizer.h"

namespace based {

struct Batch {
  Tensor ids, labels;  // int64 [tokens]; label −100: the token has none
  Sequences rows;
  std::vector<int64_t> windows = {};  // indices of the data's windows, for messages
  int64_t labelled = -1;              // number of labels; −1: unknown, and counted if needed, which waits for the device
  // int64 [labels], ascending: indices of the tokens that have a label. If it is defined, `labels` is int64 [labels] and has only theirs.
  Tensor places = {};
  int64_t step_labels = -1;  // number of labels of the whole step, over all micro-batches and ranks; −1: those of this rank
  // Number of tokens of the step before this batch, over all micro-batches and ranks: dropout draws for a token by its index in the step,
  // so the draws do not depend on how a step is divided. −1: dropout draws by the batch's index among the rank's micro-batches.
  int64_t first_token = -1;
};

struct TrainStepOptions {
  // Most step shapes (the batches' rows and numbers of labels) that are recorded and replayed (runtime/replay.h); 0: no recording. The
  // first step of each shape is recorded; later ones replay it with the same results. Batch::labelled must be set, and activations must not
  // be recomputed in the backward pass.
  int64_t recordings = 0;
  int64_t seed = 0;  // seed of dropout
  // The ranks that share each step's batch, the same object as the optimizer's; null: this rank has it all. Several ranks can record one
  // shape only, since recording a step takes several steps' communication, in which all ranks must take part.
  std::shared_ptr<Collectives> ranks = nullptr;
};

// TrainStepOptions::recordings by the key train.graph, for steps of one shape. Logs that a CPU records nothing, unless `logs` is false.
int64_t recordings_of_graph(bool graph, torch::Device device, bool logs = true);

class TrainStep {
 public:
  TrainStep(LanguageModel& model, AdamW& optimizer, TrainStepOptions options = {});

  // Runs forward and backward over this rank's batches, clips the gradient and updates the weights. The loss is the mean over all labels of
  // the step, those of other ranks too, and the gradient is that of this mean. Returns double [2] on the model's device, the same bits on
  // all ranks: the loss, and the gradient norm before clipping. If either is not finite, nothing is updated. `step`, counted from 0, and
  // the seed determine dropout. With `look` each batch's loss is read at once, and the step stops at a loss that is not finite, with a norm
  // of 0; recorded steps and steps of several ranks ignore `look`. All ranks must give the same number of batches, and several ranks need
  // Batch::step_labels. Throws Error for a new shape if options.recordings shapes are recorded already.
  Tensor run(const std::vector<Batch>& batches, int64_t step, double rate, bool look = false);

 private:
  // The recorded step of one shape and its input batches. It also reads rate_, draws_ and enabled_, and writes loss_and_norm_.
  struct Recording {
    std::vector<Batch> batches;
    std::unique_ptr<runtime::Replay> replay;
    bool fits(const std::vector<Batch>& others) const;
    void copy_in(const std::vector<Batch>& others);
  };

  // The source of dropout of the rank's batch with this index.
  ops::Draws draws_for(const Batch& batch, size_t index) const;
  Tensor launch(const std::vector<Batch>& batches, const Tensor& rate, bool look);
  Recording& recording_of(const std::vector<Batch>& batches);
  void record_step(Recording& recording);

  LanguageModel& model_;
  AdamW& optimizer_;
  const TrainStepOptions options_;
  std::deque<Recording> recordings_;  // a deque, because the recorded graphs hold pointers to the elements
  ops::Draws draws_;
  Tensor rate_, loss_and_norm_;
  Tensor enabled_;  // float []: 0 disables a step's update; undefined: 1
};

}  // namespace based
