// Plans the kernel of a whole step of one sequence (kernels/step_program.h) from the kernels of its calls.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "based/decode/effects.h"
#include "based/kernels/step_program.h"

namespace based::decode {

struct StepLimits {
  int threads = 0;
  const Gpu& gpu;
};

// An instruction, and the memory behind it. `early`: read before other blocks' outputs have come.
struct Planned {
  kernels::StepInstruction step;
  Spans early, reads, outputs, states;     // reads in the order of StepInstruction::in
  Span x, sum;                             // of a norm: the residual stream before and behind it
  int64_t in[3] = {-1, -1, -1}, out = -1;  // mailboxes, as places in all of their words
  bool is_linear() const {
    using enum kernels::StepKind;
    return step.kind == linear || step.kind == swiglu || step.kind == conv;
  }
};

// The program of a stretch of units, as it grows.
class StepStretch {
 public:
  StepStretch(const StepLimits& limits, const Effects& effects) : limits_(limits), effects_(effects) {}

  // False: it cannot be part of the program, which stays as it was, for the reason given.
  bool add(const Unit& unit, std::string& why);
  bool is_empty() const { return steps_.empty(); }
  // Whether what it has is a program: states that many blocks read are written once a norm has heard of all blocks. `behind`: the unit
  // after the last one. What nobody wants there is not stored.
  bool finish(size_t behind, std::string& why);
  int count() const { return static_cast<int>(steps_.size()); }
  int threads() const { return limits_.threads; }
  int64_t mailbox_bytes() const { return 4 * mailbox_words_; }

  std::vector<kernels::StepInstruction> instructions(uint32_t* mailboxes) const;
  std::vector<kernels::StepCompanions> companions() const;
  std::vector<kernels::StepFetch> fetches() const;

 private:
  // Memory that an instruction has written, and none after it.
  struct Output {
    Span memory;
    size_t step;
    int index;      // of the instruction's outputs
    bool is_heard;  // by other blocks, through a mailbox
    size_t unit;    // that made it, of those that were added
  };
  // A place from before the program that is read while unit `unit` runs.
  struct EarlierMemory {
    Span memory;
    size_t unit;
  };
  // The norm of unit `unit` waits for all blocks to have done unit `heard`, and all before it.
  struct Meeting {
    size_t unit, heard;
  };
  bool add_instruction(Planned next, std::string& why);
  bool may_store(const Output& output) const;
  bool find_sources(const Planned& next, std::vector<Output*>& sources);
  void connect(Planned& next, const std::vector<Output*>& sources);
  void push(const Planned& next);
  kernels::StepShare share_of(const Planned& planned) const;
  void prefetch_state(Planned& next);
  bool follow_residual(Planned& next, const Output* add);
  bool finds_x(const Planned& next) const;

  StepLimits limits_;
  const Effects& effects_;
  std::vector<Planned> steps_;
  std::vector<Output> outputs_;
  Spans read_, written_;  // memory from before the program; by the program
  std::vector<EarlierMemory> earlier_;
  std::vector<Meeting> meetings_;
  size_t units_ = 0;
  int64_t mailbox_words_ = 0;
  size_t attended_ = 0;                   // behind the latest taylor or window
  std::optional<size_t> deferred_store_;  // that instruction, until a norm has heard of all blocks after it
  Span residual_{}, shared_x_{};          // what registers and shared memory hold
};

// A stretch of units [first, behind) that becomes one kernel.
struct StepProgramPlan {
  size_t first = 0, behind = 0;
  StepStretch stretch;
};
// All that are worth it; `reasons` of the others, one for each unit.
std::vector<StepProgramPlan> plan_step_programs(const std::vector<Unit>& units, const Effects& effects, const Gpu& gpu,
                                                std::vector<std::string>& reasons);

// The program in device memory, to be kept as long as it is launched; nothing is copied to a device without memory.
kernels::StepProgram upload(const StepStretch& stretch, at::Device device, Tensor& memory);

}  // namespace based::decode
