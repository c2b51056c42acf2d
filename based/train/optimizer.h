// AdamW, its learning rate schedule and clipping.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "based/core/config.h"
#include "based/ops/torch.h"

namespace based {

using torch::Tensor;

// Parameters that are trained otherwise than the rest.
struct OptimizerGroup {
  std::string pattern;
  double learning_rate_scale = 1;
  double weight_decay = -1;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("pattern", pattern,
          "of the parameters' names, as a shell's: * is any text (layers.*.mixer.*); the first group that matches holds");
    field("learning_rate_scale", learning_rate_scale, "factor of the learning rate; 0: they stay as they are drawn");
    field("weight_decay", weight_decay, "of all that match; -1: as without the group");
  }
};

struct OptimizerOptions {
  double learning_rate = 1e-3;
  double min_learning_rate = 1e-4;  // where the cosine ends
  double warmup = 0.01;             // share of the steps over which the rate rises linearly
  std::string schedule = "step";    // how often the cosine moves
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;
  bool decay_all = false;
  double clip = 1;
  std::vector<OptimizerGroup> groups;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("learning_rate", learning_rate, "peak learning rate");
    field("min_learning_rate", min_learning_rate, "learning rate at the end of the cosine");
    field("warmup", warmup, "share of the steps over which the rate rises linearly");
    field("schedule", schedule, "step: the cosine moves with each step; epoch: with each pass over the data, without warmup");
    field("beta1", beta1, "decay of the first moment");
    field("beta2", beta2, "decay of the second moment");
    field("eps", eps, "added to the root of the second moment");
    field("weight_decay", weight_decay, "decoupled weight decay");
    field("decay_all", decay_all, "decay biases, norms and filters too; by default only tensors with two or more dimensions");
    field("clip", clip, "largest global gradient norm; 0: no clipping");
    field("groups", groups, "parameters, by name, with a learning rate and weight decay of their own");
  }
};

// Throws UsageError naming the option that is out of its range; none may be infinite or NaN.
void check_optimizer_options(const OptimizerOptions& options);

// Rate of step 0 … steps − 1: (step + 1)/warmup_steps of the peak while warming up, then a cosine to the minimum. With schedule "epoch" a
// cosine over the epochs of `epoch_steps` steps, of which the last may be shorter: as PyTorch's CosineAnnealingLR, stepped once an epoch,
// with T_max epochs and eta_min = min_learning_rate. Throws UsageError where that schedule is asked for and there are no epochs.
double learning_rate(const OptimizerOptions& options, int64_t step, int64_t steps, int64_t epoch_steps = 0);

// Decoupled weight decay p −= lr·decay·p, then p −= lr·m̂/(√v̂ + eps), moments corrected for their bias. Parameters in 16 bits have a master
// in fp32: that is what is updated, and the parameter is its rounding.
class AdamW {
 public:
  // Throws UsageError for options that are out of range, and for a group that no parameter is in.
  AdamW(const torch::nn::Module& module, const OptimizerOptions& options);

  void zero_grad();
  // After each backward: takes 16-bit gradients off their parameters. The first stay as they are, more are added up in fp32. fp32 ones
  // are added up by autograd itself.
  void collect_gradients();
  struct Findings {
    Tensor figures;  // double [2]: the loss, and the global 2-norm of the gradients
    Tensor usable;   // float [], for step(): `enabled`, undefined being 1, where both figures are finite, or 0
  };
  // Of a loss, fp32 or fp64 [], and its gradients, beside the parameters; nothing waits for it. The next step() scales the gradients to at
  // most options.clip, by clip/(norm + 1e-6) as torch does; they themselves stay as they are.
  Findings clip_gradients(const Tensor& loss, const Tensor& enabled = {});
  // A rate as step takes it, beside the parameters: double [], on a GPU float [].
  Tensor make_rate(double rate) const;
  // Changes nothing where `usable`, float [] beside the parameters, is 0 instead of 1; undefined: 1.
  void step(const Tensor& rate, const Tensor& usable = {});
  void step(double rate) { step(make_rate(rate)); }

  struct Slot {
    std::string name;
    Tensor parameter, master;                   // one tensor unless the parameter has 16 bits
    Tensor first_moment, second_moment, steps;  // steps: float [], as the fused update keeps it
    bool has_master() const { return !master.is_same(parameter); }
  };
  // In the order of the module's named parameters; for checkpoints.
  std::vector<Slot>& slots() { return slots_; }
  const std::vector<Slot>& slots() const { return slots_; }
  torch::Device device() const { return slots_.at(0).parameter.device(); }

 private:
  struct Group {
    double decay = 0, rate_scale = 1;
    std::vector<size_t> members;
  };
  std::vector<size_t>& members_of(double decay, double rate_scale);  // of the group, which is made where there is none
  const Tensor& gradient(size_t slot) const;                         // undefined where there is none
  OptimizerOptions options_;
  std::vector<Slot> slots_;
  std::vector<Group> groups_;
  std::vector<Tensor> collected_;  // of slots with a master: 16 bits of one backward, or the fp32 sum of more
  std::optional<Tensor> scale_;    // of the gradients, for the next step
};

}  // namespace based
