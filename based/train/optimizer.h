// AdamW, its learning rate schedule and clipping.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "based/core/config.h"
#include "based/runtime/torch.h"

namespace based {

using torch::Tensor;

// Parameters with their own learning rate and weight decay.
struct OptimizerGroup {
  std::string pattern;
  double learning_rate_scale = 1;
  double weight_decay = -1;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("pattern", pattern,
          "shell pattern of parameter names: * matches any text (layers.*.mixer.*); a parameter uses the first group that matches");
    field("learning_rate_scale", learning_rate_scale, "factor of the learning rate; 0: the parameters keep their initial values");
    field("weight_decay", weight_decay, "weight decay of the group's parameters; -1: as without the group");
  }
};

struct OptimizerOptions {
  double learning_rate = 1e-3;
  double min_learning_rate = 1e-4;  // at the end of the cosine
  double warmup = 0.01;             // share of the steps over which the rate rises linearly
  std::string schedule = "step";    // "step" or "epoch": how often the rate changes
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
    field("schedule", schedule, "step: the cosine advances with each step; epoch: with each pass over the data, without warmup");
    field("beta1", beta1, "decay of the first moment");
    field("beta2", beta2, "decay of the second moment");
    field("eps", eps, "added to the root of the second moment");
    field("weight_decay", weight_decay, "decoupled weight decay");
    field("decay_all", decay_all, "decay all parameters; by default only tensors with two or more dimensions, not biases and norms");
    field("clip", clip, "largest global gradient norm; 0: no clipping");
    field("groups", groups, "parameters, by name, with their own learning rate and weight decay");
  }
};

// Throws UsageError naming an option that is out of range, infinite or NaN.
void check_optimizer_options(const OptimizerOptions& options);

// The learning rate of step 0 … steps − 1: (step + 1)/warmup_steps of the peak during warmup, then a cosine to the minimum. With schedule
// "epoch" it is PyTorch's CosineAnnealingLR, stepped once per epoch, with T_max = number of epochs and eta_min = min_learning_rate. An
// epoch has `epoch_steps` steps; the last may be shorter. Throws UsageError for that schedule if epoch_steps is 0.
double learning_rate(const OptimizerOptions& options, int64_t step, int64_t steps, int64_t epoch_steps = 0);

// Decoupled weight decay p −= lr·decay·p, then p −= lr·m̂/(√v̂ + eps), with bias-corrected moments m̂ and v̂. A 16-bit parameter has an
// fp32 master copy: the update changes the master, and the parameter is the master rounded to 16 bits.
class AdamW {
 public:
  // Throws UsageError for options that are out of range, and for a group without parameters.
  AdamW(const torch::nn::Module& module, const OptimizerOptions& options);

  void zero_grad();
  // Call after each backward pass. Moves 16-bit gradients from their parameters to this object: one pass's gradients stay in 16 bits, those
  // of several passes are summed in fp32. Autograd itself sums fp32 gradients.
  void collect_gradients();
  struct Findings {
    Tensor loss_and_norm;   // double [2]: the loss, and the global 2-norm of the gradients
    Tensor update_enabled;  // float [], for step(): `enabled` (1 if undefined) if loss and norm are finite, else 0
  };
  // Computes the gradient norm on the parameters' device, without waiting for it. `loss` is fp32 or fp64 [], `enabled` float []. The next
  // step() scales the gradients by min(1, clip/(norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ does; the gradients are not modified.
  Findings clip_gradients(const Tensor& loss, const Tensor& enabled = {});
  // A learning rate as step() expects it, on the parameters' device: double [] on the CPU, float [] on a GPU.
  Tensor make_rate(double rate) const;
  // Updates the parameters unless `update_enabled`, float [] on their device, is 0; it is 0 or 1, and undefined means 1.
  void step(const Tensor& rate, const Tensor& update_enabled = {});
  void step(double rate) { step(make_rate(rate)); }

  struct Slot {
    std::string name;
    Tensor parameter, master;                   // the same tensor unless the parameter has 16 bits
    Tensor first_moment, second_moment, steps;  // steps: float [], as the fused update expects it
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
  std::vector<size_t>& members_of(double decay, double rate_scale);  // adds the group if it does not exist
  const Tensor& gradient(size_t slot) const;                         // undefined if the slot has none
  OptimizerOptions options_;
  std::vector<Slot> slots_;
  std::vector<Group> groups_;
  std::vector<Tensor> collected_;  // gradients of slots with a master: 16 bits after one backward pass, an fp32 sum after several
  std::optional<Tensor> scale_;    // factor of the gradients in the next step
};

}  // namespace based
