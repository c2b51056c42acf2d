#include "based/decode/step_program.h"

#include <cstring>

namespace based::decode {
namespace {

using kernels::StepKind;

constexpr size_t kFewestUnits = 8;  // shorter runs stay kernels of their own

kernels::StepCompanions companions_of(const Planned& planned) {
  using namespace kernels;
  const StepInstruction& step = planned.step;
  StepCompanions to;
  to.share = step.share;
  const auto set = [&to](int i, const void* source, int64_t each) {
    if (source != nullptr) to.source[i] = static_cast<const char*>(source), to.each[i] = static_cast<int32_t>(each);
  };
  if (step.kind == StepKind::norm) {
    to.whole = true;
    set(0, step.arguments.norm.weight, 2 * step.arguments.norm.width);
  }
  if (!planned.is_linear()) return to;
  const Linear& p = step.arguments.linear.linear;
  const float* scale = step.arguments.linear.scale;
  if (step_has_companions(step.share)) set(kStepScale, scale, 4);
  if (scale != nullptr && step.kind != StepKind::linear) set(kStepGateScale, scale + p.out / 2, 4);
  set(kStepBias, p.bias, 2);
  if (p.bias != nullptr && step.kind != StepKind::linear) set(kStepGateBias, static_cast<const char*>(p.bias) + p.out, 2);
  if (step.kind != StepKind::conv) return to;
  const ShortConv& c = step.arguments.linear.conv.step;
  set(kStepTaps, c.weight, 6), set(kStepTapsBias, c.bias, 2), set(kStepState, c.state, 8);
  to.slot = c.slot, to.slot_bytes = c.channels * 8;
  return to;
}

bool refuse(std::string& why, const char* reason) {
  why = reason;
  return false;
}

}  // namespace

std::optional<Planned> StepKernel::instruction(const StepLimits&, std::string& why) const {
  why = "has no instruction in the kernel of a whole step";
  return {};
}

bool StepProgramBuilder::add(const Unit& unit, std::string& why) {
  if (unit.kernel == nullptr) return refuse(why, unit.why.c_str());
  if (!steps_.empty() && !outputs_.empty()) {
    Planned joint = steps_.back();
    if (unit.kernel->join_instruction(joint, limits_)) {
      if (overlap(joint.early, written_)) return refuse(why, "reads memory early that the step has written");
      const Span& y = joint.outputs[0];
      if (overlap(y, read_) || overlap(y, residual_) || overlap(y, joint.outputs[1]))
        return refuse(why, "writes memory that earlier units read");
      outputs_.pop_back();  // the layer's output, which is the second one now
      joint.step.share = share_of(joint);
      append(read_, joint.early);
      steps_.pop_back();
      push(joint);
      ++units_;
      return true;
    }
  }
  std::optional<Planned> next = unit.kernel->instruction(limits_, why);
  return next && add_instruction(std::move(*next), why);
}

bool StepProgramBuilder::add_instruction(Planned next, std::string& why) {
  if (overlap(next.early, written_)) return refuse(why, "reads memory early that the step has written");
  const StepKind kind = next.step.kind;
  const bool attends = kind == StepKind::taylor || kind == StepKind::window;
  if (attends && deferred_store_) return refuse(why, "follows another mixer with a state, without a norm between them");
  next.step.x_is_shared = finds_x(next);
  if (next.step.x_is_shared) next.reads.clear();
  std::vector<Output*> sources;
  if (!find_sources(next, sources)) return refuse(why, "reads values that no block sends to the others");
  if (overlap(next.outputs, read_) || overlap(next.outputs, {residual_})) return refuse(why, "writes memory that earlier units read");
  if (kind == StepKind::norm && !follow_residual(next, sources[0])) return refuse(why, "is of another residual stream");
  connect(next, sources);
  if (kind == StepKind::norm && sources[0] != nullptr && deferred_store_ && sources[0]->step > *deferred_store_) deferred_store_.reset();
  next.step.share = share_of(next);
  if (kind == StepKind::norm && sources[0] != nullptr && steps_[sources[0]->step].step.share.each > 0)
    barriers_.push_back({units_, sources[0]->unit});
  if (attends) prefetch_state(next);
  push(next);
  ++units_;
  return true;
}

// Whether no block still reads the earlier contents of the output's memory: the blocks that read them had done so before an earlier norm of
// the program, which waits for all blocks.
bool StepProgramBuilder::may_store(const Output& output) const {
  size_t done = 0;  // the number of units that all blocks have done
  for (const Barrier& barrier : barriers_)
    if (barrier.unit <= output.unit) done = std::max(done, barrier.awaited + 1);
  return std::none_of(earlier_.begin(), earlier_.end(),
                      [&](const EarlierMemory& read) { return read.unit >= done && share_memory(read.memory, output.memory); });
}

bool StepProgramBuilder::finish(size_t end, std::string& why) {
  if (deferred_store_) return refuse(why, "ends between a mixer's state and the norm that waits for it");
  for (Planned& planned : steps_)
    if (planned.sum.storage >= 0 && !effects_.is_wanted(planned.sum, end)) planned.step.arguments.norm.sum = nullptr;
  for (const Output& output : outputs_) {
    if (!effects_.is_wanted(output.memory, end)) continue;
    if (!may_store(output)) return refuse(why, "its results overwrite memory that other blocks may still read");
    steps_[output.step].step.stores |= 1U << output.index;
  }
  return true;
}

std::vector<kernels::StepInstruction> StepProgramBuilder::instructions(uint32_t* mailboxes) const {
  std::vector<kernels::StepInstruction> all;
  for (const Planned& planned : steps_) {
    all.push_back(planned.step);
    for (int i = 0; i < 3; ++i)
      if (planned.in[i] >= 0) all.back().in[i] = mailboxes + planned.in[i];
    if (planned.out >= 0) all.back().out = mailboxes + planned.out;
  }
  return all;
}

bool StepProgramBuilder::has_int8() const {
  return std::any_of(steps_.begin(), steps_.end(),
                     [](const Planned& planned) { return planned.is_linear() && planned.step.arguments.linear.scale != nullptr; });
}

int32_t StepProgramBuilder::x_bytes() const {
  int32_t most = 0;
  for (const Planned& planned : steps_) {
    const kernels::StepArguments& arguments = planned.step.arguments;
    if (planned.is_linear()) most = std::max(most, kernels::step_x_bytes(arguments.linear.linear.in));
    if (planned.step.kind == StepKind::norm) most = std::max(most, kernels::step_x_bytes(arguments.norm.width));
    if (planned.step.kind == StepKind::window) most = std::max(most, kernels::step_window_bytes(arguments.window.step.head_dim));
  }
  return most;
}

int32_t StepProgramBuilder::width() const {
  const auto norm = std::find_if(steps_.begin(), steps_.end(), [](const Planned& planned) { return planned.step.kind == StepKind::norm; });
  return norm == steps_.end() ? 0 : static_cast<int32_t>(norm->step.arguments.norm.width);
}

std::vector<kernels::StepCompanions> StepProgramBuilder::companions() const {
  std::vector<kernels::StepCompanions> all;
  for (const Planned& planned : steps_) all.push_back(companions_of(planned));
  return all;
}

std::vector<kernels::StepFetch> StepProgramBuilder::fetches() const {
  std::vector<kernels::StepFetch> all;
  for (const Planned& planned : steps_) {
    if (!planned.is_linear()) continue;
    const kernels::Linear& p = planned.step.arguments.linear.linear;
    const int64_t row_bytes = planned.step.arguments.linear.scale != nullptr ? p.in : 2 * p.in;
    all.push_back({static_cast<const char*>(p.weight), planned.step.kind == StepKind::linear ? 0 : p.out / 2 * row_bytes,
                   planned.step.share, static_cast<int32_t>(row_bytes)});
  }
  return all;
}

// Finds the output that contains each read; null: memory from before the program. False where a read is only partly in an output, in one
// that has no mailbox, or in one whose tokens are further apart.
bool StepProgramBuilder::find_sources(const Planned& next, std::vector<Output*>& sources) {
  for (size_t i = 0; i < next.reads.size(); ++i) {
    const Span& read = next.reads[i];
    sources.push_back(nullptr);
    if (!overlap(read, written_)) continue;
    const auto found = std::find_if(outputs_.begin(), outputs_.end(), [&](const Output& o) { return contains(o.memory, read); });
    if (found == outputs_.end() || !found->is_sent || (read.begin - found->memory.begin) % 8 != 0) return false;
    if (limits_.tokens > 1 && steps_[found->step].step.out_stride != next.step.in_stride[i]) return false;
    sources.back() = &*found;
  }
  return true;
}

void StepProgramBuilder::connect(Planned& next, const std::vector<Output*>& sources) {
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i] == nullptr) {
      read_.push_back(next.reads[i]);
      earlier_.push_back({next.reads[i], units_});
      continue;
    }
    int64_t& mailbox = steps_[sources[i]->step].out;
    if (mailbox < 0) mailbox = mailbox_words_, mailbox_words_ += kernels::round_up(sources[i]->memory.bytes() / 2, 64);
    next.in[i] = mailbox + (next.reads[i].begin - sources[i]->memory.begin) / 2;
  }
  append(read_, next.early);
  for (const Span& early : next.early) earlier_.push_back({early, SIZE_MAX});  // threads that prefetch may read them at any time
}

void StepProgramBuilder::push(const Planned& next) {
  const StepKind kind = next.step.kind;
  for (size_t i = 0; i < next.outputs.size(); ++i) {
    const Span& memory = next.outputs[i];
    if (memory.bytes() == 0) continue;
    std::erase_if(outputs_, [&](const Output& o) { return overlap(o.memory, memory); });
    if (overlap(memory, shared_x_)) shared_x_ = {};
    outputs_.push_back({memory, steps_.size(), static_cast<int>(i), i == 0 && kind != StepKind::norm, units_});
  }
  append(written_, next.outputs), append(written_, next.states);
  if (kind == StepKind::norm) shared_x_ = next.outputs[0];
  if (kind == StepKind::window || (next.is_linear() && !next.step.x_is_shared)) shared_x_ = {};  // the instruction overwrites it
  steps_.push_back(next);
}

// A different block has the larger shares in each instruction.
kernels::StepShare StepProgramBuilder::share_of(const Planned& planned) const {
  const int blocks = limits_.gpu.multiprocessors;
  int64_t outputs = 1;
  if (planned.is_linear()) outputs = planned.step.arguments.linear.linear.out / (planned.step.kind == StepKind::linear ? 1 : 2);
  return {static_cast<int32_t>(outputs / blocks), static_cast<int32_t>(outputs % blocks),
          static_cast<int32_t>(steps_.size() * 37 % static_cast<size_t>(blocks))};
}

// Requests a state a few instructions before its use. Registers hold one state at a time.
void StepProgramBuilder::prefetch_state(Planned& next) {
  constexpr size_t kAhead = 5;
  Planned prefetch;
  prefetch.step = next.step;
  prefetch.step.kind = next.step.kind == StepKind::taylor ? StepKind::prefetch_taylor : StepKind::prefetch_window;
  const size_t at = std::max(attended_, steps_.size() - std::min(kAhead, steps_.size()));
  steps_.insert(steps_.begin() + static_cast<std::ptrdiff_t>(at), prefetch);
  for (Output& output : outputs_) output.step += output.step >= at ? 1 : 0;
  deferred_store_ = steps_.size(), attended_ = steps_.size() + 1;
}

// The residual stream stays in registers. Only the last norm writes its memory, after it has waited for all blocks, which may read it
// before.
bool StepProgramBuilder::follow_residual(Planned& next, const Output* add) {
  const bool sums = next.sum.storage >= 0, loads = residual_.storage < 0 || !(next.x == residual_);
  if (loads && (overlap(next.x, next.sum) || overlap(next.x, written_))) return false;
  const bool waits_for_all = add != nullptr && steps_[add->step].step.share.each > 0;
  if (sums && (!waits_for_all || (!(next.sum == next.x) && overlap(next.sum, written_)))) return false;
  if (!sums && next.reads[0].storage >= 0) return false;
  next.step.loads_x = loads;
  if (loads) read_.push_back(next.x), earlier_.push_back({next.x, units_});
  for (Planned& before : steps_)
    if (before.step.kind == StepKind::norm && sums && before.sum == next.sum) before.step.arguments.norm.sum = nullptr;
  residual_ = sums ? next.sum : next.x;
  if (sums) written_.push_back(next.sum);
  return true;
}

bool StepProgramBuilder::finds_x(const Planned& next) const {
  if (next.step.kind != StepKind::linear && next.step.kind != StepKind::swiglu) return false;
  const kernels::Linear& p = next.step.arguments.linear.linear;
  return shared_x_.storage >= 0 && shared_x_.bytes() == 2 * p.in * limits_.tokens && next.reads[0] == shared_x_;
}

namespace {

// The number of threads with which the most calls have an instruction.
int choose_threads(const std::vector<Unit>& units, const Gpu& gpu, int64_t tokens) {
  int best = kernels::kStepMostThreads;
  int64_t most = -1;
  std::string why;
  for (int threads = kernels::kStepMostThreads; threads >= kernels::kStepFewestThreads; threads -= 32) {
    const int64_t known = std::count_if(units.begin(), units.end(), [&](const Unit& unit) {
      return unit.kernel != nullptr && unit.kernel->instruction({threads, gpu, tokens}, why).has_value();
    });
    if (known > most) most = known, best = threads;
  }
  return best;
}

}  // namespace

std::vector<StepProgramPlan> plan_step_programs(const std::vector<Unit>& units, const Effects& effects, const Gpu& gpu, int64_t tokens,
                                                std::vector<std::string>& reasons) {
  std::vector<StepProgramPlan> found;
  reasons.assign(units.size(), "");
  if (!gpu.runs_hopper_code) {
    reasons.assign(units.size(), "the kernel of a whole step is for Hopper");
    return found;
  }
  const StepLimits limits{choose_threads(units, gpu, tokens), gpu, tokens};
  for (size_t first = 0, next = 0; first < units.size(); first = std::max(next, first + 1)) {
    StepProgramBuilder builder(limits, effects);
    std::string why;
    for (next = first; next < units.size() && builder.add(units[next], why); ++next) {}
    if (next < units.size()) reasons[next] = why;
    if (next - first < kFewestUnits || !builder.finish(next, why)) {
      if (next - first < kFewestUnits) why = "too few adjacent units for one kernel";
      for (size_t i = first; i < next; ++i) reasons[i] = why;
      continue;
    }
    found.push_back({first, next, std::move(builder)});
  }
  return found;
}

// The memory has counters, the program's lists and mailboxes. Counters and mailboxes begin with zeros, since launches count from 1.
kernels::StepProgram upload(const StepProgramBuilder& builder, at::Device device, Tensor& memory) {
  constexpr size_t kAlignment = 256;
  const auto bytes_of = [](const auto& values) {
    return static_cast<size_t>(kernels::round_up(static_cast<int64_t>(values.size() * sizeof(values[0])), kAlignment));
  };
  const auto fetches = builder.fetches();
  const auto companions = builder.companions();
  auto instructions = builder.instructions(nullptr);
  const size_t fetches_at = kAlignment, companions_at = fetches_at + bytes_of(fetches),
               instructions_at = companions_at + bytes_of(companions), mailboxes_at = instructions_at + bytes_of(instructions);
  const Tensor image = at::zeros({static_cast<int64_t>(mailboxes_at) + builder.mailbox_bytes()}, at::kByte);
  memory = at::empty(image.sizes(), image.options().device(device));
  auto* base = static_cast<char*>(memory.mutable_data_ptr());
  kernels::StepProgram program;
  program.instruction_count = builder.count(), program.fetch_count = static_cast<int32_t>(fetches.size());
  program.threads = builder.threads(), program.has_int8 = builder.has_int8();
  program.tokens = static_cast<int32_t>(builder.tokens()), program.x_bytes = builder.x_bytes(), program.width = builder.width();
  if (base == nullptr) return program;
  instructions = builder.instructions(reinterpret_cast<uint32_t*>(base + mailboxes_at));
  const auto put = [&image](size_t at, const auto& values) {
    std::memcpy(static_cast<char*>(image.mutable_data_ptr()) + at, values.data(), values.size() * sizeof(values[0]));
  };
  put(fetches_at, fetches), put(companions_at, companions), put(instructions_at, instructions);
  memory.copy_(image);
  program.counters = reinterpret_cast<unsigned*>(base);
  program.fetches = reinterpret_cast<const kernels::StepFetch*>(base + fetches_at);
  program.companions = reinterpret_cast<const kernels::StepCompanions*>(base + companions_at);
  program.instructions = reinterpret_cast<const kernels::StepInstruction*>(base + instructions_at);
  return program;
}

}  // namespace based::decode
