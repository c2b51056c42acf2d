// The plan of a step: the launches that replace its operators' own, and the reasons why other operators keep theirs.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "based/decode/effects.h"
#include "based/decode/pending.h"
#include "based/decode/trace.h"

namespace based::decode {

enum class StageForm {
  none,            // the launches that the operator recorded
  early_reads,     // its own kernel, which reads constants and private states while earlier kernels still run
  deferred_state,  // early reads, and updates of its state are pending in memory beside it
  fused,           // one launch for several operators: a norm with layers, an operator with its predecessors, or several layers
  whole_step,      // many operators in one kernel
};
const char* form_name(StageForm form);  // for people to read

// Units of a step, adjacent or not, that are one launch. Stages are ordered by their first units.
struct Stage {
  StageForm form = StageForm::none;
  std::vector<size_t> units;
  std::function<Status(Queue)> launch;  // null: the recorded launches stay
};

// The operators whose work one launch may do, which rounds elsewhere. Kernels always read constants and states early.
enum class Fusion {
  none,    // each operator keeps its own kernel, and the step its bits
  layers,  // layers with norms, and layers of one input: not the operators between a mixer's layers
  all,
};

struct PlanOptions {
  bool defers = true;  // whether updates of states may be deferred, in memory that the plan owns
  Fusion fusion = Fusion::all;
  int64_t tokens = 1;  // several: the rows are consecutive tokens of one sequence, without padding
};

class Plan {
 public:
  // Nodes of a recording after `before` (null: from its beginning) up to and including `after`, in this order; empty where they are no
  // chain.
  using NodesBetween = std::vector<void*> (*)(void* before, void* after);
  // The trace must have stopped. `nodes` is null where nothing was recorded. Memory for fused kernels is allocated on `device`.
  Plan(Trace& trace, const Gpu& gpu, at::Device device, NodesBetween nodes, const PlanOptions& options);
  Plan(const Plan&) = delete;

  const std::vector<Unit>& units() const { return units_; }
  const std::vector<Stage>& stages() const { return stages_; }
  const std::vector<std::shared_ptr<PendingTokens>>& pending() const { return pending_; }

  // The number of units of one operator with the same form and reason. Lines are in the order of their first units.
  struct Line {
    std::string op;
    StageForm form = StageForm::none;
    int64_t units = 0, launches = 0;  // launches whose first unit is one of these
    std::string why;                  // the reason against a better form; empty: there is none
  };
  std::vector<Line> report() const;
  int64_t launches() const { return static_cast<int64_t>(stages_.size()); }
  // The operators of each launch of several operators, in the order of the step. Two steps with the same list round in the same places.
  std::vector<std::string> fused() const;
  // Whether one kernel computes all layers of the step. The operators beside it give a row bits that do not depend on the other rows.
  bool is_one_program() const;
  std::string text() const;  // for people to read: a line each

 private:
  void collect(Trace& trace, size_t call, NodesBetween nodes);
  void plan_programs(const Effects& effects, const Gpu& gpu, at::Device device, int64_t tokens);
  void plan_joins(const Effects& effects, const Gpu& gpu, at::Device device);
  void plan_layers(const Gpu& gpu);
  void plan_chains(const Effects& effects, const Gpu& gpu);
  bool is_free(size_t unit) const;  // whether it has a kernel and no other stage contains it
  void put_stage(Stage stage);

  std::vector<Unit> units_;
  std::vector<Stage> stages_;
  std::vector<StageForm> forms_;      // one for each unit
  std::vector<std::string> reasons_;  // one for each unit
  std::vector<std::shared_ptr<PendingTokens>> pending_;
  std::vector<Tensor> memory_;
};

}  // namespace based::decode
