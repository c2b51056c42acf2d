// AdamW, its learning rate schedule and clipping.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "based/core/config.h"
#include "based/parallel/collectives.h"
#include "based/runtime/torch.h"
#include "based/train/gradient_buckets.h"
#include "based/train/weight_shards.h"

namespace based {

namespace ops {
struct GradientNormOf;
}

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

// A parameter's part of the optimizer's state: whole tensors on the CPU, which do not depend on how many ranks train.
struct SavedSlot {
  std::string name;
  Tensor master;                       // undefined if the parameter does not have 16 bits
  Tensor first_moment, second_moment;  // the parameter's shape and the master's type
  Tensor steps;                        // float []
};

// Decoupled weight decay p −= lr·decay·p, then p −= lr·m̂/(√v̂ + eps), with bias-corrected moments m̂ and v̂. A 16-bit parameter has an
// fp32 master copy: the update changes the master, and the parameter is the master rounded to 16 bits.
class AdamW {
 public:
  // Throws UsageError for options that are out of range, and for a group without parameters. If `ranks` has several ranks, each gives the
  // gradients of its part of the batch, and all make the same update. With `shard` each rank holds an equal part of the moments and
  // masters and updates that part of the weights (ZeRO-1); the parameters then become views of flat tensors. `bucket_bytes`: see
  // make_flat_buckets.
  AdamW(const torch::nn::Module& module, const OptimizerOptions& options, std::shared_ptr<Collectives> ranks = nullptr, bool shard = false,
        int64_t bucket_bytes = default_bucket_bytes(torch::kCPU, /*one_host=*/false));

  // Begins a step of this many backward passes. Several ranks need the number; the last of the passes sums the gradients over the ranks.
  void zero_grad(int64_t passes = 1);
  // Call after each backward pass. Moves 16-bit gradients from their parameters to this object: one pass's gradients stay in 16 bits, those
  // of several passes are summed in fp32. Autograd itself sums fp32 gradients.
  void collect_gradients();
  struct Findings {
    Tensor loss_and_norm;   // double [2]: the loss, and the global 2-norm of the gradients
    Tensor update_enabled;  // float [], for step(): `enabled` (1 if undefined) if loss and norm are finite, else 0
  };
  // Computes the gradient norm on the parameters' device, without waiting for it. `loss` is fp32 or fp64 [], `enabled` float []. The next
  // step() scales the gradients by min(1, clip/(norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ does; the gradients are not modified.
  // With several ranks `loss` is this rank's addend of the loss, all ranks must call this, and all get the same bits. A parameter without a
  // gradient on any rank is then updated with a gradient of 0; one rank alone does not update it.
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
    int64_t first = 0;  // with `shard`: index, in the flattened parameter, of the first element; the tensors are flat, maybe empty
    bool has_master() const { return !master.is_same(parameter); }
  };
  // In the order of the module's named parameters. With `shard` a slot has the elements that this rank owns.
  std::vector<Slot>& slots() { return slots_; }
  const std::vector<Slot>& slots() const { return slots_; }
  // The whole state in the order of the slots, in new tensors. All ranks must call it; only rank 0 gets the result, others an empty list.
  std::vector<SavedSlot> gather_state();
  // Takes the whole state, saved by any number of ranks. Does not communicate. A master of a parameter that now has none becomes the
  // parameter. Throws Error naming the parameter if a name, shape or type does not fit the module.
  void load_state(const std::vector<SavedSlot>& state);
  int64_t world() const { return ranks_ ? ranks_->world() : 1; }
  torch::Device device() const { return slots_.at(0).parameter.device(); }

 private:
  struct Group {
    double decay = 0, rate_scale = 1;
    std::vector<size_t> members;
  };
  std::vector<size_t>& members_of(double decay, double rate_scale);  // adds the group if it does not exist
  void add_slots(const std::vector<std::string>& names);
  const Tensor& gradient(size_t slot) const;  // undefined if the slot has none
  bool has_gradient(size_t slot) const { return gradient(slot).defined() && gradient(slot).numel() > 0; }
  void sum_over_ranks(ops::GradientNormOf& inputs) const;
  Tensor steps_of_all_slots() const;
  OptimizerOptions options_;
  std::shared_ptr<Collectives> ranks_;  // null: one rank
  std::vector<Tensor> parameters_;      // whole; a parameter has the index of its slot
  std::vector<Slot> slots_;
  std::vector<Group> groups_;
  std::vector<Tensor> collected_;         // gradients of slots with a master: 16 bits after one backward pass, an fp32 sum after several
  std::optional<Tensor> scale_;           // factor of the gradients in the next step
  std::unique_ptr<WeightShards> shards_;  // null unless several ranks share the state
  std::unique_ptr<GradientBuckets> buckets_;  // null unless there are several ranks
};

}  // namespace based
