#include "based/decode/plan.h"

#include <algorithm>
#include <array>
#include <set>

#include "based/decode/join_layers.h"
#include "based/decode/join_norms.h"
#include "based/decode/step_program.h"

namespace based::decode {
namespace {

// Calls that allocate memory and do not write it.
bool only_allocates(const std::string& op) {
  static constexpr std::array kNames{"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::resize_"};
  return std::any_of(kNames.begin(), kNames.end(), [&](const char* name) { return op.rfind(name, 0) == 0; });
}

// Whether the inner calls have recorded all nodes of the call.
bool inner_calls_cover_nodes(const Call& call, const std::vector<Call>& calls) {
  const void* last = call.before;
  for (const size_t inner : call.inner) {
    if (calls[inner].before != last) return false;
    last = calls[inner].after;
  }
  return !call.inner.empty() && last == call.after;
}

}  // namespace

const char* form_name(StageForm form) {
  static constexpr std::array<const char*, 5> kNames{"none", "early reads", "deferred", "fused", "whole step"};
  return kNames.at(static_cast<size_t>(form));
}

Plan::Plan(Trace& trace, const Gpu& gpu, at::Device device, NodesBetween nodes, const PlanOptions& options) {
  const Effects effects(units_, [&trace](const Span& span) { return trace.is_external(span); });
  for (const size_t call : trace.outermost()) collect(trace, call, nodes);
  forms_.assign(units_.size(), StageForm::none);
  for (const Unit& unit : units_) reasons_.push_back(unit.why);
  for (size_t i = 0; i < units_.size(); ++i) {
    if (units_[i].kernel == nullptr) continue;
    reasons_[i] = "";
    if (!units_[i].kernel->read_early(effects, i)) continue;
    forms_[i] = StageForm::early_reads;
    if (auto deferred = options.defers ? units_[i].kernel->deferred(gpu, effects, i) : nullptr) {
      units_[i].kernel = std::move(deferred);
      pending_.push_back(units_[i].kernel->pending());
      forms_[i] = StageForm::deferred_state;
    }
  }
  const bool is_one_sequence = options.tokens > 1 || std::any_of(units_.begin(), units_.end(),
                                                                 [](const Unit& unit) { return unit.kernel && unit.kernel->rows() == 1; });
  if (options.fusion == Fusion::all) {
    is_one_sequence ? plan_programs(effects, gpu, device, options.tokens) : plan_joins(effects, gpu, device);
    plan_chains(effects, gpu);
  }
  if (options.fusion == Fusion::layers) plan_joins(effects, gpu, device);
  if (options.fusion != Fusion::none) plan_layers(gpu);
  for (size_t i = 0; i < units_.size(); ++i) {
    const bool own = forms_[i] == StageForm::early_reads || forms_[i] == StageForm::deferred_state;
    if (own) put_stage({forms_[i], {i}, [kernel = units_[i].kernel.get()](Queue queue) { return kernel->launch(queue); }});
    if (forms_[i] == StageForm::none) put_stage({forms_[i], {i}, {}});
  }
  std::sort(stages_.begin(), stages_.end(), [](const Stage& a, const Stage& b) { return a.units.front() < b.units.front(); });
}

void Plan::collect(Trace& trace, size_t number, NodesBetween nodes) {
  Call& call = trace.calls()[number];
  const bool recorded = nodes != nullptr;
  if (recorded && call.before == call.after) return;
  const size_t before = units_.size();
  if (call.kernel == nullptr && (!recorded || inner_calls_cover_nodes(call, trace.calls())))
    for (const size_t inner : call.inner) collect(trace, inner, nodes);
  if (units_.size() > before || (!recorded && (call.writes.empty() || only_allocates(call.name)))) return;
  units_.push_back({call.name, call.reads, call.writes, std::move(call.kernel), call.why, {}});
  if (recorded) units_.back().nodes = nodes(call.before, call.after);
  if (recorded && units_.back().nodes.empty()) units_.back().kernel = nullptr, units_.back().why = "its launches are no chain";
}

void Plan::put_stage(Stage stage) {
  for (const size_t unit : stage.units) forms_[unit] = stage.form;
  stages_.push_back(std::move(stage));
}

void Plan::plan_programs(const Effects& effects, const Gpu& gpu, at::Device device, int64_t tokens) {
  std::vector<std::string> reasons;
  std::vector<StepProgramPlan> programs = plan_step_programs(units_, effects, gpu, tokens, reasons);
  for (size_t i = 0; i < units_.size(); ++i)
    if (units_[i].kernel != nullptr) reasons_[i] = reasons[i];
  for (const StepProgramPlan& planned : programs) {
    const kernels::StepProgram program = upload(planned.program, device, memory_.emplace_back());
    Stage stage{StageForm::whole_step, {}, [program](Queue queue) { return launch(program, queue); }};
    for (size_t i = planned.first; i < planned.end; ++i) stage.units.push_back(i);
    put_stage(std::move(stage));
  }
}

void Plan::plan_joins(const Effects& effects, const Gpu& gpu, at::Device device) {
  std::vector<std::string> reasons;
  const std::vector<NormJoin> joins = find_norm_joins(units_, gpu, reasons);
  for (size_t i = 0; i < units_.size(); ++i)
    if (!reasons[i].empty()) reasons_[i] = reasons[i];
  if (joins.empty()) return;
  for (JoinedLaunch& joined : join_norms(units_, joins, effects, gpu, device, memory_.emplace_back()))
    put_stage({StageForm::fused, std::move(joined.units), std::move(joined.launch)});
}

bool Plan::is_free(size_t unit) const {
  return units_[unit].kernel != nullptr && (forms_[unit] == StageForm::early_reads || forms_[unit] == StageForm::none);
}

// Layers of one row that read the same x.
void Plan::plan_layers(const Gpu& gpu) {
  const auto fits = [&](size_t i) {
    const LinearParts* layer = is_free(i) ? units_[i].kernel->linear() : nullptr;
    return layer != nullptr && !layer->gated && kernels::linear_at_once_supports(layer->arguments, gpu);
  };
  for (size_t first = 0, end = 0; first < units_.size(); first = std::max(end, first + 1)) {
    for (end = first; end < units_.size() && fits(end);) ++end;
    if (end - first < 2) continue;
    const std::vector<kernels::Linear> layers = layers_at_once(units_, first, end);
    end = first + layers.size();
    if (layers.size() < 2) continue;
    Stage stage{StageForm::fused, {}, [layers](Queue queue) { return launch_layers_of_one_row(layers, queue); }};
    for (size_t i = first; i < end; ++i) stage.units.push_back(i);
    put_stage(std::move(stage));
  }
}

// Kernels that replace the units right before their own.
void Plan::plan_chains(const Effects& effects, const Gpu& gpu) {
  constexpr size_t kLongest = 2;
  const auto is_only_for_next = [&](size_t i) {
    return std::all_of(units_[i].writes.begin(), units_[i].writes.end(),
                       [&](const Span& span) { return effects.is_only_for(i + 1, span); });
  };
  for (size_t last = 0; last < units_.size(); ++last) {
    std::vector<const StepKernel*> before;
    for (size_t i = last; is_free(last) && i > 0 && before.size() < kLongest && is_free(i - 1) && is_only_for_next(i - 1); --i)
      before.push_back(units_[i - 1].kernel.get());
    StepChain chain = before.empty() ? StepChain{} : units_[last].kernel->absorb_predecessors(before, gpu);
    if (chain.kernel == nullptr) continue;
    units_[last].kernel = std::move(chain.kernel);
    Stage stage{StageForm::fused, {}, [kernel = units_[last].kernel.get()](Queue queue) { return kernel->launch(queue); }};
    for (size_t i = last - chain.predecessors; i <= last; ++i) stage.units.push_back(i);
    put_stage(std::move(stage));
  }
  for (size_t i = 0; i < units_.size(); ++i)
    if (is_free(i) && units_[i].kernel->activation() != nullptr) reasons_[i] = "no kernel that reads it computes it";
}

std::vector<std::string> Plan::fused() const {
  std::vector<std::string> all;
  for (const Stage& stage : stages_) {
    if (stage.form != StageForm::fused && stage.form != StageForm::whole_step) continue;
    std::string ops;
    for (const size_t unit : stage.units) ops += (ops.empty() ? "" : " ") + units_[unit].op;
    all.push_back(std::move(ops));
  }
  return all;
}

bool Plan::is_one_program() const {
  static const std::set<std::string> kBefore = {"based::embedding_step_", "based::embedding_tokens_", "aten::add", "aten::cat"};
  static const std::set<std::string> kAfter = {"based::sample_", "based::sample_tokens_"};
  const auto is_program = [](const Stage& stage) { return stage.form == StageForm::whole_step; };
  const auto program = std::find_if(stages_.begin(), stages_.end(), is_program);
  if (program == stages_.end()) return false;
  // ATen's operators after the layers handle drawn tokens.
  const auto may_follow = [&](const std::string& op) { return !op.starts_with("based::") || kAfter.contains(op); };
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    const bool is_before = unit<program->units.front(), is_after = unit> program->units.back();
    if ((is_before && !kBefore.contains(units_[unit].op)) || (is_after && !may_follow(units_[unit].op))) return false;
  }
  return true;
}

std::string Plan::text() const {
  std::string all = std::to_string(units_.size()) + " operators, " + std::to_string(stages_.size()) + " launches\n";
  for (const Line& line : report())
    all += "  " + std::to_string(line.units) + " " + line.op + ", " + form_name(line.form) +
           (line.launches != line.units ? " (" + std::to_string(line.launches) + " launches)" : "") +
           (line.why.empty() ? "" : ": " + line.why) + "\n";
  return all;
}

std::vector<Plan::Line> Plan::report() const {
  std::vector<size_t> begins(units_.size(), 0);
  for (const Stage& stage : stages_) begins[stage.units.front()] = 1;
  std::vector<Line> lines;
  for (size_t i = 0; i < units_.size(); ++i) {
    const bool done = forms_[i] == StageForm::fused || forms_[i] == StageForm::whole_step;
    const std::string why = done ? "" : reasons_[i];
    auto found = std::find_if(lines.begin(), lines.end(),
                              [&](const Line& line) { return line.op == units_[i].op && line.form == forms_[i] && line.why == why; });
    if (found == lines.end()) found = lines.insert(lines.end(), {units_[i].op, forms_[i], 0, 0, why});
    ++found->units, found->launches += static_cast<int64_t>(begins[i]);
  }
  return lines;
}

}  // namespace based::decode
