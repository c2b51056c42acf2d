// The plan of a step: which of its operators become which launches, and why the others stay as they are.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "based/decode/effects.h"
#include "based/decode/pending.h"
#include "based/decode/trace.h"

namespace based::decode {

enum class StageForm {
  as_it_is,     // what the operator launched
  reads_ahead,  // its kernel, which reads what nothing writes before the kernels ahead of it have ended
  deferred,     // likewise, and what it adds to its state waits beside it
  joined,       // with norms or what makes its inputs as parts of it, or several layers at once
  whole_step,   // many operators in one kernel
};
const char* form_name(StageForm form);

// Units of a step, next to each other or not, that are one launch; in the order of the first one.
struct Stage {
  StageForm form = StageForm::as_it_is;
  std::vector<size_t> units;
  std::function<Status(Stream)> launch;  // null: as it is
};

struct PlanOptions {
  bool defers = true;  // updates of states may wait, in memory of the plan's
};

class Plan {
 public:
  // Nodes of a recording behind `before` (null: from its beginning) up to `after`, in this order; empty where they are no chain.
  using NodesBetween = std::vector<void*> (*)(void* before, void* after);
  // Of a trace that has stopped. `nodes`: null where nothing was recorded. Memory that fused kernels need is taken on `device`.
  Plan(Trace& trace, const Gpu& gpu, at::Device device, NodesBetween nodes, const PlanOptions& options);
  Plan(const Plan&) = delete;

  const std::vector<Unit>& units() const { return units_; }
  const std::vector<Stage>& stages() const { return stages_; }
  const std::vector<std::shared_ptr<PendingTokens>>& pending() const { return pending_; }

  // Alike units, counted: in the order in which the step has the first of them.
  struct Line {
    std::string op;
    StageForm form = StageForm::as_it_is;
    int64_t units = 0, launches = 0;  // launches: that begin with one of them
    std::string why;                  // not more than this; empty: nothing more is known to be had
  };
  std::vector<Line> report() const;
  int64_t launches() const { return static_cast<int64_t>(stages_.size()); }
  std::string text() const;  // for people to read: a line each

 private:
  void collect(Trace& trace, size_t call, NodesBetween nodes);
  void plan_programs(const Effects& effects, const Gpu& gpu, at::Device device);
  void plan_joins(const Gpu& gpu, at::Device device);
  void plan_layers(const Gpu& gpu);
  void plan_chains(const Effects& effects, const Gpu& gpu);
  bool is_free(size_t unit) const;  // it has a kernel, and is part of nothing yet
  void put_stage(Stage stage);

  std::vector<Unit> units_;
  std::vector<Stage> stages_;
  std::vector<StageForm> forms_;  // of each unit
  std::vector<std::string> reasons_;
  std::vector<std::shared_ptr<PendingTokens>> pending_;
  std::vector<Tensor> memory_;
};

}  // namespace based::decode
