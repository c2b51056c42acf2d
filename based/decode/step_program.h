// Plans the kernel of a whole step of one sequence, of one or several tokens, (kernels/step/step_program.h) from the kernels of its calls.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "based/decode/effects.h"
#include "based/kernels/step/step_program.h"

namespace based::decode {

struct StepLimits {
  int threads = 0;
  const Gpu& gpu;
  int64_t tokens = 1;  // the sequence's tokens that the step reads, at most kernels::kStepTokens
};

// An instruction and the memory that it uses. `early` is read before the outputs of other blocks have arrived.
struct Planned {
  kernels::StepInstruction step;
  Spans early, reads, outputs, states;     // reads are in the order of StepInstruction::in, with the strides of step.in_stride
  Span x, sum;                             // for a norm: the residual stream before and after it
  int64_t in[3] = {-1, -1, -1}, out = -1;  // mailboxes, as offsets into the words of all mailboxes; −1: none
  bool is_linear() const {
    using enum kernels::StepKind;
    return step.kind == linear || step.kind == swiglu || step.kind == conv;
  }
};

// Builds the program of a run of adjacent units, one unit at a time.
class StepProgramBuilder {
 public:
  StepProgramBuilder(const StepLimits& limits, const Effects& effects) : limits_(limits), effects_(effects) {}

  // False: the unit cannot be part of the program, for the reason in `why`. The program does not change then.
  bool add(const Unit& unit, std::string& why);
  // Ends the program before unit `end`, and drops stores of values that no later unit reads. False, with the reason in `why`, where the
  // units are no complete program: a state that many blocks read may be written only after a norm has waited for all blocks.
  bool finish(size_t end, std::string& why);
  int count() const { return static_cast<int>(steps_.size()); }
  int threads() const { return limits_.threads; }
  int64_t tokens() const { return limits_.tokens; }
  int32_t x_bytes() const;  // StepProgram::x_bytes
  int32_t width() const;    // StepProgram::width; 0: there is no norm
  bool has_int8() const;    // whether an instruction has int8 weights
  int64_t mailbox_bytes() const { return 4 * mailbox_words_; }

  std::vector<kernels::StepInstruction> instructions(uint32_t* mailboxes) const;
  std::vector<kernels::StepCompanions> companions() const;
  std::vector<kernels::StepFetch> fetches() const;

 private:
  // Memory whose latest writer is an instruction of the program.
  struct Output {
    Span memory;
    size_t step;
    int index;     // among the instruction's outputs
    bool is_sent;  // to other blocks, through a mailbox
    size_t unit;   // the unit that computes it, counted from the program's first
  };
  // Memory from before the program that unit `unit` reads.
  struct EarlierMemory {
    Span memory;
    size_t unit;
  };
  // The norm of unit `unit` waits until all blocks have done unit `awaited` and all units before it.
  struct Barrier {
    size_t unit, awaited;
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
  Spans read_, written_;  // memory from before the program that it reads; memory that it writes
  std::vector<EarlierMemory> earlier_;
  std::vector<Barrier> barriers_;
  size_t units_ = 0;
  int64_t mailbox_words_ = 0;
  size_t attended_ = 0;                   // the instruction after the latest taylor or window
  std::optional<size_t> deferred_store_;  // the latest taylor or window, until a norm after it has waited for all blocks
  Span residual_{}, shared_x_{};          // the values in registers and in shared memory
};

// Units [first, end) that become one kernel.
struct StepProgramPlan {
  size_t first = 0, end = 0;
  StepProgramBuilder program;
};
// All programs that are faster than kernels of their own. `reasons` has an entry for each unit: why it is in no program.
std::vector<StepProgramPlan> plan_step_programs(const std::vector<Unit>& units, const Effects& effects, const Gpu& gpu, int64_t tokens,
                                                std::vector<std::string>& reasons);

// The program in `memory` on the device, which the caller keeps as long as it launches the program. On a device without memory nothing is
// copied.
kernels::StepProgram upload(const StepProgramBuilder& builder, at::Device device, Tensor& memory);

}  // namespace based::decode
